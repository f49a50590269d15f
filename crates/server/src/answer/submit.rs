//! From a checked request to sequences in the ring.

use std::sync::Arc;
use std::time::Instant;

use izar_tokenizer::{Detokenizer, DetokenizerOptions, EncodeOptions};
use izar_transport::client::{RequestHandle, SamplingParams, Submission};

use super::choice::{Choice, MessageReader, Wanted};
use super::scores::PromptScores;
use super::{Answer, failure};
use crate::admission::Admitted;
use crate::api::{SamplingRequest, StreamRequest};
use crate::app::App;
use crate::constrain::{Constraint, Watch};
use crate::deadline::Deadline;
use crate::drain::InFlight;
use crate::error::{ApiError, Shortage};
use crate::exchange::Exchange;
use crate::message::{MessageFormat, MessageParser};
use crate::metrics::{PromptMeter, SequenceMeter};
use crate::output::assembler::{Assembler, StopRules};
use crate::output::head::{Head, Shape, Usage};
use crate::output::stop::StopSet;

/// A prompt, encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptTokens {
    /// Its tokens, at least one.
    pub ids: Vec<u32>,
    /// Its text, where the answer is to begin with it.
    pub echo: Option<String>,
}

/// All that is wanted of the engine for one request.
#[derive(Debug, Clone)]
pub struct Order {
    /// Which answer.
    pub shape: Shape,
    /// The model as the client named it.
    pub model: String,
    /// At least one prompt.
    pub prompts: Vec<PromptTokens>,
    /// Limit on output tokens; none is what the context has room for, 0 is an echo alone.
    pub max_tokens: Option<u32>,
    /// Log probabilities wanted: none, or the number of alternatives.
    pub logprobs: Option<u32>,
    /// Whether the output goes on in the middle of a text.
    pub continuation: bool,
    /// What the output's text is made of.
    pub format: MessageFormat,
    /// Whether reasoning is left out of the answer.
    pub hide_reasoning: bool,
    /// Sampling and stopping.
    pub sampling: SamplingRequest,
    /// Streaming.
    pub stream: StreamRequest,
    /// What the sampling's format was compiled to ([`compile_format`]).
    pub constraint: Option<Constraint>,
}

/// Compiles the format that an order asks for, away from the threads that stream.
///
/// # Errors
/// [`ApiError::InvalidField`] where there is no grammar for it.
pub async fn compile_format(app: &Arc<App>, mut order: Order) -> Result<Order, ApiError> {
    let Some(request) = order.sampling.format.clone() else {
        return Ok(order);
    };
    let grammars = Arc::clone(&app.grammars);
    let compiled = tokio::task::spawn_blocking(move || {
        let compiled = grammars.compile(&request.format);
        compiled.map_err(|error| ApiError::field(request.param, error.to_string()))
    });
    match compiled.await {
        Ok(constraint) => order.constraint = Some(constraint?),
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
    Ok(order)
}

/// Puts all sequences of an order into the ring. If one does not fit, those before it are cancelled.
///
/// # Errors
/// [`ApiError::ContextLength`], [`ApiError::InvalidField`], [`ApiError::AtCapacity`], [`ApiError::EngineUnavailable`].
pub fn submit(
    app: &App,
    order: Order,
    arrival: Instant,
    in_flight: InFlight,
) -> Result<Answer, ApiError> {
    let sampling = &order.sampling;
    let limits: Vec<u32> = order
        .prompts
        .iter()
        .map(|prompt| token_limit(app, &order, prompt))
        .collect::<Result<_, _>>()?;
    let in_flight = in_flight.holding(admit(app, &order)?);
    let rules = Arc::new(stop_rules(app, &order));
    let bad_words = encode_bad_words(app, sampling);
    let mut choices = Vec::with_capacity(order.prompts.len() * sampling.n);
    for (prompt, &max_tokens) in order.prompts.iter().zip(&limits) {
        let prompt_meter = PromptMeter::start(&app.metrics, prompt.ids.len() as u64, sampling.n);
        for i in 0..sampling.n {
            let scores = prompt_scores(app, &order, prompt, max_tokens);
            let (handle, watch) = match max_tokens {
                0 if scores.is_none() => (None, None),
                _ => {
                    let sequence =
                        submit_one(app, &order, prompt, max_tokens, i, &rules, &bad_words)?;
                    (Some(sequence.0), sequence.1)
                }
            };
            let meter = SequenceMeter::start(&prompt_meter, arrival, max_tokens.into());
            let choice = choice(app, &order, prompt, choices.len(), handle, &rules, meter);
            choices.push(choice.watching(watch).scoring(scores));
        }
    }
    let prompt_tokens = order
        .prompts
        .iter()
        .map(|prompt| prompt.ids.len() as u64)
        .sum();
    if let Some(exchange) = Exchange::current() {
        exchange.note_prompt_tokens(prompt_tokens);
    }
    Ok(Answer {
        head: Head {
            shape: order.shape,
            id: app.ids.request_id(order.shape.id_prefix()),
            created: unix_seconds(),
            model: order.model,
            tokenizer: Arc::clone(&app.model.tokenizer),
        },
        choices,
        usage: Usage {
            prompt_tokens,
            ..Usage::default()
        },
        n: sampling.n,
        prompt_ids: sampling
            .return_token_ids
            .then(|| order.prompts.into_iter().map(|prompt| prompt.ids).collect()),
        deadline: app
            .request_timeout
            .map(|allowed| Deadline::new(arrival, allowed)),
        in_flight,
    })
}

/// A place in the queue for each of the order's sequences.
fn admit(app: &App, order: &Order) -> Result<Admitted, ApiError> {
    let num_sequences = order.prompts.len() * order.sampling.n;
    let num_waiting = if app.admission.is_limited() {
        // Where the ring cannot be read, submitting says so.
        app.client
            .engine_status()
            .map_or(0, |status| status.stats.num_waiting)
    } else {
        0
    };
    app.admission
        .admit(num_sequences, num_waiting)
        .ok_or_else(|| failure::at_capacity(Shortage::QueueFull, app.client.retry_after()))
}

/// How many tokens a prompt's sequences may produce.
fn token_limit(app: &App, order: &Order, prompt: &PromptTokens) -> Result<u32, ApiError> {
    let (max_model_len, prompt_tokens) = (app.limits.max_model_len, prompt.ids.len());
    let param = order.shape.prompt_param();
    if prompt_tokens == 0 {
        return Err(ApiError::field(param, "must make at least one token"));
    }
    let room = max_model_len.saturating_sub(prompt_tokens) as u32;
    let least = u32::from(wanted_of_prompt(order, prompt).is_some());
    let wanted = order.max_tokens.unwrap_or(room).max(least);
    if wanted > room
        || (room == 0 && wanted > 0)
        || (room == 0 && order.max_tokens.is_none())
        || prompt_tokens > max_model_len
    {
        let max_tokens = order.max_tokens.filter(|_| room > 0).map(u64::from);
        return Err(ApiError::ContextLength {
            param,
            prompt_tokens,
            max_tokens,
            max_model_len,
        });
    }
    if order.sampling.min_tokens > wanted {
        return Err(ApiError::field(
            "min_tokens",
            format!("must be at most the {wanted} tokens that may be generated"),
        ));
    }
    Ok(order.max_tokens.unwrap_or(wanted))
}

/// Log probabilities wanted of a prompt: those asked for, or as many as the answer's own where it begins with the prompt.
fn wanted_of_prompt(order: &Order, prompt: &PromptTokens) -> Option<u32> {
    let beside_echo = order.logprobs.filter(|_| echoes_all(order, prompt));
    order.sampling.prompt_logprobs.max(beside_echo)
}

/// Whether the answer begins with the whole prompt. A chat's echo is the last message alone, which has no log probabilities.
fn echoes_all(order: &Order, prompt: &PromptTokens) -> bool {
    order.shape == Shape::Completion && prompt.echo.is_some()
}

fn prompt_scores(
    app: &App,
    order: &Order,
    prompt: &PromptTokens,
    max_tokens: u32,
) -> Option<PromptScores> {
    wanted_of_prompt(order, prompt)?;
    Some(PromptScores {
        tokenizer: Arc::clone(&app.model.tokenizer),
        ids: prompt.ids.clone(),
        beside_echo: order.logprobs.is_some() && echoes_all(order, prompt),
        is_listed: order.sampling.prompt_logprobs.is_some(),
        is_all: max_tokens == 0,
    })
}

pub(super) fn stop_rules(app: &App, order: &Order) -> StopRules {
    let sampling = &order.sampling;
    let tokenizer = &app.model.tokenizer;
    StopRules {
        shown_token_ids: order
            .format
            .markers()
            .filter_map(|marker| tokenizer.token_to_id(marker))
            .filter(|&id| tokenizer.is_special(id))
            .collect(),
        strings: Arc::new(StopSet::new(&sampling.stop, sampling.include_stop)),
        token_ids: sampling.stop_token_ids.clone(),
        eos_token_ids: if sampling.ignore_eos {
            Vec::new()
        } else {
            app.model.eos_token_ids.clone()
        },
        include_stop: sampling.include_stop,
        min_tokens: sampling.min_tokens,
    }
}

/// Each word as it is encoded at the start of a text, and after a space where that differs in its first token alone.
fn encode_bad_words(app: &App, sampling: &SamplingRequest) -> Vec<Vec<u32>> {
    let plain = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    let encode = |text: &str| app.model.tokenizer.encode(text, plain).unwrap_or_default();
    let mut encoded = Vec::new();
    for word in &sampling.bad_words {
        let word = word.trim_start();
        let (bare, spaced) = (encode(word), encode(&format!(" {word}")));
        let is_other_form = spaced.len() == bare.len() && spaced.first() != bare.first();
        encoded.extend(
            [Some(bare), is_other_form.then_some(spaced)]
                .into_iter()
                .flatten()
                .filter(|ids| !ids.is_empty()),
        );
    }
    encoded
}

fn submit_one(
    app: &App,
    order: &Order,
    prompt: &PromptTokens,
    max_tokens: u32,
    i: usize,
    rules: &StopRules,
    bad_words: &[Vec<u32>],
) -> Result<(RequestHandle, Option<Watch>), ApiError> {
    let sampling = &order.sampling;
    let bad_words: Vec<&[u32]> = bad_words.iter().map(Vec::as_slice).collect();
    let stop_token_ids = [&rules.token_ids[..], &rules.eos_token_ids].concat();
    let submission = Submission {
        min_tokens: sampling.min_tokens,
        sampling: SamplingParams {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            repetition_penalty: sampling.repetition_penalty,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            seed: Some(
                sampling
                    .seed
                    .map_or_else(|| app.ids.seed(), |seed| seed.wrapping_add(i as u64)),
            ),
        },
        stop_token_ids: &stop_token_ids,
        ignore_eos: sampling.ignore_eos,
        logprobs: order.logprobs,
        logit_bias: &sampling.logit_bias,
        allowed_token_ids: sampling.allowed_token_ids.as_deref(),
        bad_words: &bad_words,
        priority: sampling.priority,
        masked_vocab_size: match order.constraint {
            Some(_) => app.limits.vocab_size,
            None => 0,
        },
        prompt_logprobs: wanted_of_prompt(order, prompt),
        // Log probabilities of a prompt alone come with a token that is dropped.
        ..Submission::new(&prompt.ids, max_tokens.max(1))
    };
    let mut handle = app
        .client
        .submit(&submission)
        .map_err(|error| failure::of_submit(&error))?;
    let watch = order.constraint.as_ref().and_then(|constraint| {
        let feed = handle.take_mask_feed()?;
        Some(
            app.mask_workers
                .run(constraint, feed, app.limits.vocab_size),
        )
    });
    Ok((handle, watch))
}

pub(super) fn choice(
    app: &App,
    order: &Order,
    prompt: &PromptTokens,
    index: usize,
    handle: Option<RequestHandle>,
    rules: &Arc<StopRules>,
    meter: SequenceMeter,
) -> Choice {
    let options = DetokenizerOptions {
        skip_special: order.sampling.skip_special_tokens,
        continuation: order.continuation,
    };
    let detokenizer = Detokenizer::new(Arc::clone(&app.model.tokenizer), options);
    let echoed_chars = prompt.echo.as_ref().map_or(0, |text| text.chars().count());
    let assembler = Assembler::new(detokenizer, Arc::clone(rules), echoed_chars);
    let wanted = Wanted {
        logprobs: order.logprobs.is_some(),
        token_ids: order.sampling.return_token_ids,
    };
    let reader = (!order.format.is_plain()).then(|| {
        let parser = MessageParser::new(&order.format);
        MessageReader::new(parser, order.hide_reasoning, app.ids.request_id("call_"))
    });
    Choice::new(
        index,
        handle,
        assembler,
        meter,
        wanted,
        reader,
        prompt.echo.clone(),
    )
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
