//! `izar generate`: one answer in the terminal.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use izar_tokenizer::{ChatOptions, Detokenizer, DetokenizerOptions, EncodeOptions, ModelText};
use izar_transport::client::{
    FinishReason, GeneratedToken, Progress, RequestHandle, SamplingParams, Submission,
};
use serde_json::json;

use crate::backend::{Backend, default_name};
use crate::cli::GenerateArgs;
use crate::text::chat_encoder;

/// How long to wait before asking whether the engine still lives; the client ends a lost request by itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// Prints the answer as it comes, and how fast it came on standard error.
pub fn run(args: &GenerateArgs) -> Result<()> {
    ensure!(
        (0.0..=2.0).contains(&args.temperature),
        "--temperature must be from 0 to 2"
    );
    ensure!(
        args.top_p > 0.0 && args.top_p <= 1.0,
        "--top-p must be above 0 and at most 1"
    );
    let Backend {
        client,
        engine,
        mut text,
        ..
    } = Backend::start(&args.engine, &default_name(&args.engine.model))?;
    let prompt = encode(args, &mut text)?;
    let room = (client.engine_status()?.max_model_len as usize).saturating_sub(prompt.len()) as u32;
    ensure!(
        room > 0,
        "the prompt has {} tokens and leaves no room for an answer: raise --max-model-len",
        prompt.len()
    );
    let mut submission = Submission::new(&prompt, args.max_tokens.unwrap_or(room).min(room));
    submission.sampling = SamplingParams {
        temperature: args.temperature,
        top_p: args.top_p,
        top_k: args.top_k,
        seed: args.engine.seed,
        ..SamplingParams::default()
    };
    submission.stop_token_ids = &text.eos_ids;
    let begun = Instant::now();
    let mut handle = client.submit(&submission)?;
    let detokenizer = Detokenizer::new(
        text.tokenizer.clone(),
        DetokenizerOptions {
            skip_special: true,
            continuation: args.raw,
        },
    );
    let (num_tokens, first) = print_answer(&mut handle, detokenizer)?;
    report(prompt.len(), num_tokens, begun, first);
    drop((handle, client));
    Ok(engine.stop()?)
}

fn encode(args: &GenerateArgs, text: &mut ModelText) -> Result<Vec<u32>> {
    if args.raw {
        return Ok(text
            .tokenizer
            .encode(&args.prompt, EncodeOptions::default())?);
    }
    let Some(chat) = chat_encoder(text) else {
        bail!(
            "the model has no chat template: continue the prompt as it is with --raw, or give a template with --chat-template"
        );
    };
    let system = args
        .system
        .iter()
        .map(|system| json!({"role": "system", "content": system}));
    let messages: Vec<_> = system
        .chain([json!({"role": "user", "content": args.prompt})])
        .collect();
    Ok(chat
        .encode(
            &messages,
            &ChatOptions {
                add_generation_prompt: true,
                ..ChatOptions::default()
            },
        )?
        .ids)
}

/// Prints tokens until the end; returns their number and when the first came.
fn print_answer(
    handle: &mut RequestHandle,
    mut detokenizer: Detokenizer,
) -> Result<(u64, Option<Instant>)> {
    let (mut tokens, mut piece): (Vec<GeneratedToken>, _) = (Vec::new(), String::new());
    let (mut num_tokens, mut first) = (0, None);
    let mut stdout = std::io::stdout().lock();
    loop {
        let Some(progress) = handle.wait(&mut tokens, PATIENCE) else {
            continue;
        };
        for token in tokens.drain(..) {
            first.get_or_insert_with(Instant::now);
            num_tokens += 1;
            detokenizer.push(token.token, &mut piece);
        }
        let finish = match progress {
            Progress::More => None,
            Progress::Finished(finish) => {
                detokenizer.finish(&mut piece);
                Some(finish.reason)
            }
        };
        stdout.write_all(piece.as_bytes())?;
        stdout.flush()?;
        piece.clear();
        match finish {
            None => {}
            Some(FinishReason::Failed(error)) => bail!(error),
            Some(FinishReason::Stop { .. } | FinishReason::Length | FinishReason::Cancelled) => {
                writeln!(stdout)?;
                return Ok((num_tokens, first));
            }
        }
    }
}

fn report(num_prompt_tokens: usize, num_tokens: u64, begun: Instant, first: Option<Instant>) {
    let Some(first) = first else { return };
    let (prefill, decode) = ((first - begun).as_secs_f64(), first.elapsed().as_secs_f64());
    let speed = if num_tokens > 1 {
        format!("{:.1} tokens/s", (num_tokens - 1) as f64 / decode)
    } else {
        "one token".to_owned()
    };
    eprintln!(
        "\n{num_prompt_tokens} prompt tokens, first token after {:.0} ms, {num_tokens} tokens, {speed}",
        prefill * 1e3
    );
}
