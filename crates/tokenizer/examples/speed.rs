//! Measures a vocabulary: loading, encoding against `tokenizers`, chats, detokenizing.
//!
//! `cargo run --release -p izar-tokenizer --example speed -- path/to/tokenizer.json path/to/text.txt`
//!
//! The text is cut into pieces of 40, 800 and 8000 characters, each of which is encoded once: figures are medians over
//! the pieces, so words may have been seen before but texts have not. One thread. Chats and detokenizing: best of five.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use izar_tokenizer::{
    ChatEncoder, ChatOptions, ChatTemplate, Detokenizer, DetokenizerOptions, EncodeOptions,
    SpecialTokens, Tokenizer,
};
use serde_json::json;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [vocabulary, text] = args.as_slice() else {
        eprintln!("usage: speed TOKENIZER.JSON TEXT");
        return ExitCode::FAILURE;
    };
    match run(Path::new(vocabulary), Path::new(text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(vocabulary: &Path, text: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let start = Instant::now();
    let tokenizer = Arc::new(Tokenizer::from_file(vocabulary)?);
    let loaded = start.elapsed();
    let start = Instant::now();
    let reference = tokenizers::Tokenizer::from_file(vocabulary).map_err(|e| e.to_string())?;
    let reference_loaded = start.elapsed();
    let text: Vec<char> = std::fs::read_to_string(text)?.chars().collect();
    println!(
        "{}: encoded by {}",
        vocabulary.display(),
        tokenizer.backend()
    );
    println!(
        "load       {:>9.1} ms (tokenizers {:.1} ms)",
        ms(loaded),
        ms(reference_loaded)
    );
    for len in [40, 800, 8000] {
        let pieces: Vec<String> = text
            .chunks(len)
            .take(300)
            .map(|c| c.iter().collect())
            .collect();
        let options = EncodeOptions::default();
        let ours = median(&pieces, |piece| {
            tokenizer.encode(piece, options).map_or(0, |ids| ids.len())
        });
        let theirs = median(&pieces, |piece| {
            reference.encode_fast(piece, true).map_or(0, |e| e.len())
        });
        let ratio = theirs.as_secs_f64() / ours.as_secs_f64();
        println!(
            "encode {len:>5} characters {:>9.1} us (tokenizers {:>9.1} us, {ratio:.1} x)",
            us(ours),
            us(theirs)
        );
    }
    chats(&tokenizer)?;
    let ids = tokenizer.encode(
        &text.iter().take(1_000_000).collect::<String>(),
        EncodeOptions::default(),
    )?;
    let mut out = String::with_capacity(8 << 20);
    let spent = best(|| {
        out.clear();
        let mut stream = Detokenizer::new(tokenizer.clone(), DetokenizerOptions::default());
        ids.iter().for_each(|&id| stream.push(id, &mut out));
        stream.finish(&mut out);
        out.len()
    });
    println!(
        "detokenize {:>9.1} ns a token, {} tokens",
        spent.as_secs_f64() * 1e9 / ids.len() as f64,
        ids.len()
    );
    Ok(())
}

/// A ChatML conversation of ten messages of 200 characters, plain and with a special token in one of them.
fn chats(tokenizer: &Arc<Tokenizer>) -> Result<(), Box<dyn std::error::Error>> {
    let source =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    let template = ChatTemplate::new(source, SpecialTokens::default())?;
    let chat = ChatEncoder::new(tokenizer.clone(), template);
    let content = "Tell me about it. ".repeat(11);
    let mut messages: Vec<_> = (0..10)
        .map(|_| json!({"role": "user", "content": content}))
        .collect();
    let measure = |name: &str, messages: &[serde_json::Value]| {
        let time = best(|| {
            chat.encode(messages, &ChatOptions::default())
                .map_or(0, |c| c.ids.len())
        });
        println!("chat of 10 messages, {name:<24} {:>9.1} us", us(time));
    };
    measure("rendered and encoded", &messages);
    messages[5]["content"] = "a <|im_end|> written out".into();
    measure("with a special token", &messages);
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The best of five runs of `f`.
fn best(mut f: impl FnMut() -> usize) -> Duration {
    let runs = (0..5).map(|_| {
        let start = Instant::now();
        std::hint::black_box(f());
        start.elapsed()
    });
    runs.min().unwrap_or_default()
}

fn median(pieces: &[String], mut f: impl FnMut(&str) -> usize) -> Duration {
    let once = |piece: &String| {
        let start = Instant::now();
        std::hint::black_box(f(piece));
        start.elapsed()
    };
    let mut times: Vec<Duration> = pieces.iter().map(once).collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
