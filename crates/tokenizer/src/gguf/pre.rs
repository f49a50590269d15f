//! Pre-tokenizers by the names that GGUF files give them.
//!
//! The patterns are those of the models' own `tokenizer.json`; where a family normalises to NFC that is said here too.

use serde_json::{Value, json};

use crate::error::TokenizerError;

/// One family's rules.
pub(super) struct PreTokenizer {
    /// Patterns that split the text one after the other; every match and everything between matches is a piece.
    patterns: &'static [&'static str],
    /// Every digit is a piece.
    single_digits: bool,
    /// GPT-2's own pattern, as part of the byte-level step.
    gpt2_pattern: bool,
    /// Text is normalised to NFC first.
    pub nfc: bool,
    /// A piece that is a token is that token, whatever the merges say.
    pub ignore_merges: bool,
}

const NONE: PreTokenizer = PreTokenizer {
    patterns: &[],
    single_digits: false,
    gpt2_pattern: false,
    nfc: false,
    ignore_merges: false,
};
const GPT2: PreTokenizer = PreTokenizer {
    gpt2_pattern: true,
    ..NONE
};
const CL100K: PreTokenizer = PreTokenizer {
    patterns: &[CL100K_PATTERN],
    ..NONE
};
const QWEN2: PreTokenizer = PreTokenizer {
    patterns: &[QWEN2_PATTERN],
    nfc: true,
    ..NONE
};
const O200K: PreTokenizer = PreTokenizer {
    patterns: &[O200K_PATTERN],
    ..NONE
};

/// Names and rules. Names in one row are synonyms.
const FAMILIES: &[(&[&str], PreTokenizer)] = &[
    (
        &["default"],
        PreTokenizer {
            patterns: DEFAULT_PATTERNS,
            ..NONE
        },
    ),
    (&["gpt-2", "phi-2"], GPT2),
    (&["olmo", "mpt"], PreTokenizer { nfc: true, ..GPT2 }),
    (
        &["smollm", "starcoder", "refact", "codeshell"],
        PreTokenizer {
            single_digits: true,
            ..GPT2
        },
    ),
    (
        &["command-r"],
        PreTokenizer {
            single_digits: true,
            nfc: true,
            ..GPT2
        },
    ),
    (
        &["llama-bpe", "llama3", "llama-v3", "falcon3"],
        PreTokenizer {
            ignore_merges: true,
            ..CL100K
        },
    ),
    (&["dbrx", "smaug-bpe"], CL100K),
    (&["qwen2", "megrez", "stablelm2"], QWEN2),
    (
        &["deepseek-r1-qwen"],
        PreTokenizer {
            nfc: false,
            ..QWEN2
        },
    ),
    (
        &["qwen35"],
        PreTokenizer {
            patterns: &[QWEN35_PATTERN],
            nfc: false,
            ..QWEN2
        },
    ),
    (&["gpt-4o", "llama4"], O200K),
    (
        &["tekken"],
        PreTokenizer {
            patterns: &[TEKKEN_PATTERN],
            ignore_merges: true,
            ..NONE
        },
    ),
    (
        &["deepseek-llm"],
        PreTokenizer {
            patterns: DEEPSEEK_LLM_PATTERNS,
            ..NONE
        },
    ),
    (
        &["deepseek-coder"],
        PreTokenizer {
            patterns: DEEPSEEK_CODER_PATTERNS,
            single_digits: true,
            ..NONE
        },
    ),
    (
        &["deepseek-v3"],
        PreTokenizer {
            patterns: DEEPSEEK_V3_PATTERNS,
            ..NONE
        },
    ),
];

/// The rules for `name`.
pub(super) fn rules(name: &str) -> Result<&'static PreTokenizer, TokenizerError> {
    let family = FAMILIES.iter().find(|(names, _)| names.contains(&name));
    family.map(|(_, rules)| rules).ok_or_else(|| {
        let known: Vec<_> = FAMILIES
            .iter()
            .flat_map(|(names, _)| names.iter().copied())
            .collect();
        TokenizerError::UnknownPreTokenizer {
            name: name.into(),
            known: known.join(", "),
        }
    })
}

/// Families that put a BOS before a text when the file does not say.
pub(super) fn adds_bos(name: &str) -> bool {
    matches!(
        name,
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "tekken"
    )
}

impl PreTokenizer {
    /// The `pre_tokenizer` section of a `tokenizer.json`.
    pub fn pre_tokenizer(&self) -> Value {
        let mut steps: Vec<Value> = self
            .patterns
            .iter()
            .map(|p| json!({"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": false}))
            .collect();
        if self.single_digits {
            steps.push(json!({"type": "Digits", "individual_digits": true}));
        }
        steps.push(json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": self.gpt2_pattern,
        }));
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}

const CL100K_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K_PATTERN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN_PATTERN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEFAULT_PATTERNS: &[&str] = &[
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
];
const DEEPSEEK_LLM_PATTERNS: &[&str] = &[
    r"[\r\n]",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
];
const DEEPSEEK_CODER_PATTERNS: &[&str] =
    &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+"];
const DEEPSEEK_V3_PATTERNS: &[&str] = &[
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];
