//! An answer made of given tokens instead of a ring's, streamed and whole: what fuzz targets compare.

use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use izar_transport::client::{GeneratedToken, TokenLogprobs};

use super::choice::Sink;
use super::collect::Collector;
use super::stream::Events;
use super::submit::{self, Order};
use crate::app::App;
use crate::metrics::{PromptMeter, SequenceMeter};
use crate::output::chunk::ChunkWriter;
use crate::output::events::EventWriter;
use crate::output::head::{Ending, Head, Usage};
use crate::output::whole::{WholeChoice, body};

/// A token that the engine is to have said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayToken {
    /// Its id.
    pub id: u32,
    /// Whether the front end is to have seen it together with the token before it.
    pub joins_previous: bool,
}

/// One answer in both forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// Server-sent events.
    pub events: Vec<u8>,
    /// The body where the request did not ask for a stream.
    pub whole: Vec<u8>,
}

/// Answers `order`, of which the first choice of the first prompt is taken, with `tokens`, after which the engine reaches its length.
pub fn replay(app: &App, order: &Order, tokens: &[ReplayToken]) -> Replayed {
    let head = Head {
        shape: order.shape,
        id: "replayed".to_owned(),
        created: 0,
        model: order.model.clone(),
        tokenizer: Arc::clone(&app.model.tokenizer),
    };
    let usage = Usage {
        prompt_tokens: order.prompts[0].ids.len() as u64,
        ..Usage::default()
    };
    Replayed {
        events: events(app, order, tokens, head.clone(), usage),
        whole: whole(app, order, tokens, &head, usage),
    }
}

fn events(app: &App, order: &Order, tokens: &[ReplayToken], head: Head, usage: Usage) -> Vec<u8> {
    let writer = ChunkWriter::new(head, 1, order.stream.include_usage);
    let mut out = BytesMut::new();
    writer.put_role(&mut out, 0, None);
    let mut events = Events {
        out,
        writer,
        usage,
        continuous_usage: order.stream.continuous_usage,
        full_at: usize::MAX,
    };
    run(app, order, tokens, &mut events);
    events.writer.done(&mut events.out, &events.usage);
    events.out.to_vec()
}

fn whole(app: &App, order: &Order, tokens: &[ReplayToken], head: &Head, usage: Usage) -> Vec<u8> {
    let choice = WholeChoice {
        text: String::new(),
        reasoning: String::new(),
        calls: Vec::new(),
        entries: order.logprobs.is_some().then(Vec::new),
        token_ids: order.sampling.return_token_ids.then(Vec::new),
        prompt_token_ids: None,
        prompt_logprobs: None,
        ending: Ending {
            finish_reason: "length",
            stop_reason: None,
        },
    };
    let mut collector = Collector {
        choices: vec![choice],
        usage,
    };
    run(app, order, tokens, &mut collector);
    body(head, &collector.choices, &collector.usage).to_vec()
}

/// Takes the tokens as they come and ends the choice, at the first stop or with the last token.
fn run(app: &App, order: &Order, tokens: &[ReplayToken], sink: &mut impl Sink) {
    let rules = Arc::new(submit::stop_rules(app, order));
    let prompt_meter = PromptMeter::start(&app.metrics, 0, 1);
    let meter = SequenceMeter::start(&prompt_meter, Instant::now(), 0);
    let mut choice = submit::choice(app, order, &order.prompts[0], 0, None, &rules, meter);
    choice.put_echo(sink);
    for together in tokens.chunk_by(|_, next| next.joins_previous) {
        let mut seen = together
            .iter()
            .map(|token| generated(app, order, token.id))
            .collect();
        choice.take_all(&mut seen, sink);
    }
    choice.end("length", None, sink);
}

/// A token with made-up log probabilities where they are wanted.
fn generated(app: &App, order: &Order, token: u32) -> GeneratedToken {
    let logprobs = order.logprobs.map(|num_top| {
        let top = (0..num_top).map(|i| ((token + i) % app.limits.vocab_size, -1.5 - i as f32));
        Box::new(TokenLogprobs {
            sampled: -1.5,
            rank: 1,
            top: top.collect(),
        })
    });
    GeneratedToken {
        token,
        timestamp_ns: 0,
        logprobs,
    }
}
