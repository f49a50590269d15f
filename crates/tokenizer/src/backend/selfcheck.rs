//! Texts on which both encoders must agree before `fastokens` is used.
//!
//! Chosen to cross every kind of boundary that pre-tokenizers treat specially: contractions, digit runs, white space
//! runs and line ends, scripts without spaces, combining marks, emoji sequences, and special tokens in a text.

use super::{Added, Fast, Place, ReferenceSet};

const TEXTS: &[&str] = &[
    "",
    " ",
    "a",
    "Hello, world!",
    " leading and trailing  ",
    "I'm sure they'll say it's Bob's; WE'VE, DON'T, O'Neil 'quoted' ''",
    "0 12 345 6789 3.14159 1,000,000 ½ ² ٣٤٥ १२३",
    "line one\nline two\r\n\r\n\tindented\n\n\n   three\n ",
    "x  y   z    \t \t  tabs\u{a0}nbsp\u{3000}wide\u{2003}em",
    "fn main() {\n    let x: Vec<u32> = (0..10).map(|i| i * 2).collect();\n\treturn x[1] != 0x1F;\n}",
    "{\"key\": [1, 2.5e-3, null], \"url\": \"https://example.org/a?b=c&d=%20\"} <html><!-- c --></html>",
    "Größe, naïve, façade, Łódź, İstanbul, ǅ, ﬁ, ß ẞ",
    "e\u{301} a\u{308}\u{323} \u{1e9b}\u{323} \u{212b} \u{fb01} \u{1100}\u{1161}\u{11a8}",
    "Привет, мир! Ёжик съел щёголя.",
    "مرحبا بالعالم، كيف حالك؟ ١٢٣",
    "नमस्ते दुनिया, कैसे हैं आप? क्षत्रिय",
    "你好，世界！今天天气怎么样？「日本語」のテキスト、カタカナ。 한국어 문장입니다.",
    "สวัสดีชาวโลก ខ្មែរ བོད་ཡིག",
    "👋🏽 👨‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️‍🔥 😀😃😄 ☃︎",
    "\u{0}\u{1}\u{7f}\u{85}\u{ad}\u{200b}\u{200d}\u{feff}\u{fffd}\u{10ffff}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!!!!!!!!!!!!!!!!!!!!!!????????--------====",
    "∑ᵢ xᵢ² ≤ √(α·β) ∀ε>0 → ∞ ± € £ ¥ © ™ … — – “quotes” ‘single’",
];

/// The first text on which `fast` fails or gives other ids than `reference`.
pub(super) fn first_difference(fast: &Fast, reference: &ReferenceSet) -> Option<String> {
    let tokens: Vec<String> = special_texts(reference);
    let texts = TEXTS
        .iter()
        .copied()
        .chain(tokens.iter().map(String::as_str));
    let ways = [Added::All, Added::Ordinary, Added::None];
    texts
        .flat_map(|text| ways.map(|way| (text, way)))
        .find(|&(text, way)| {
            let mut expected = Vec::new();
            let known = reference
                .encode(text, way, Place::Start, &mut expected)
                .is_ok();
            !known || fast.try_encode(text, way).ok() != Some(expected)
        })
        .map(|(text, _)| text.to_owned())
}

/// A few of the vocabulary's added tokens in the middle of text and back to back.
fn special_texts(reference: &ReferenceSet) -> Vec<String> {
    let mut tokens: Vec<_> = reference
        .all
        .get_added_tokens_decoder()
        .into_iter()
        .collect();
    tokens.sort_by_key(|(id, _)| *id);
    let step = (tokens.len() / 8).max(1);
    let texts = tokens
        .iter()
        .step_by(step)
        .map(|(_, t)| format!("a {0} b{0}{0}\n {0}\n\n c", t.content));
    texts.collect()
}
