//! One sequence of an answer: polled for tokens, it hands pieces of text to a [`Sink`].

use std::task::{Context, Poll};

use izar_transport::client::{Finish, FinishReason, GeneratedToken, Progress, RequestHandle};

use super::failure::of_request;
use crate::error::ApiError;
use crate::metrics::{EngineTimes, FinishedReason, SequenceMeter};
use crate::output::assembler::{Assembler, StopRules, Stopped};
use crate::output::head::{Ending, Piece, StopReason};
use crate::output::logprobs::TokenEntry;

/// Where pieces of choices go.
pub trait Sink {
    /// The next piece of choice `index`, made of `num_tokens` tokens.
    fn piece(&mut self, index: usize, num_tokens: u64, piece: &Piece<'_>);
    /// The end of choice `index`; the piece has no text.
    fn ending(&mut self, index: usize, num_tokens: u64, piece: &Piece<'_>, ending: &Ending);
    /// Whether to come back later with more.
    fn is_full(&self) -> bool;
}

/// What a poll of a choice came to.
#[derive(Debug)]
pub enum Step {
    /// Nothing more now; the task is woken when there is.
    Waiting,
    /// The sink is full; there may be more at once.
    Full,
    /// The choice has ended.
    Ended,
    /// The engine could not finish it.
    Failed(ApiError),
}

/// What the client wants to know of each token.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// Log probabilities.
    pub logprobs: bool,
    /// Ids.
    pub token_ids: bool,
}

/// One sequence and the text it has made.
pub struct Choice {
    index: usize,
    /// The sequence in the ring. None once the choice ended, and where nothing is generated at all.
    handle: Option<RequestHandle>,
    assembler: Assembler,
    rules: std::sync::Arc<StopRules>,
    meter: SequenceMeter,
    wanted: Wanted,
    /// The prompt, until it is echoed.
    echo: Option<String>,
    stopped: Option<Stopped>,
    ended: bool,
    cached_tokens: Option<u64>,
    /// Text and tokens that are not yet handed on.
    text: String,
    entries: Vec<TokenEntry>,
    token_ids: Vec<u32>,
    num_tokens: u64,
}

impl Choice {
    /// Choice `index` of an answer, made from the tokens of `handle`; without one, `echo` is all of it.
    pub fn new(
        index: usize,
        handle: Option<RequestHandle>,
        assembler: Assembler,
        rules: std::sync::Arc<StopRules>,
        meter: SequenceMeter,
        wanted: Wanted,
        echo: Option<String>,
    ) -> Self {
        Self {
            index,
            handle,
            assembler,
            rules,
            meter,
            wanted,
            echo,
            stopped: None,
            ended: false,
            cached_tokens: None,
            text: String::new(),
            entries: Vec::new(),
            token_ids: Vec::new(),
            num_tokens: 0,
        }
    }

    /// What the client wants to know of each token.
    pub fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// Prompt tokens that came from the prefix cache, where the engine has said so.
    pub fn cached_tokens(&self) -> Option<u64> {
        self.cached_tokens
    }

    /// Hands on what has come since the last poll. `scratch` is empty before and after.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut Vec<GeneratedToken>,
        sink: &mut impl Sink,
    ) -> Step {
        self.put_echo(sink);
        while !self.ended {
            let Some(handle) = &mut self.handle else {
                self.end("length", None, sink);
                break;
            };
            let Poll::Ready(progress) = handle.poll_tokens(cx, scratch) else {
                return Step::Waiting;
            };
            let surplus = self.take_all(scratch, sink);
            match (self.stopped, progress) {
                (_, Progress::Finished(finish)) => {
                    if let Err(error) = self.finish(&finish, sink) {
                        return Step::Failed(error);
                    }
                }
                (Some(Stopped::Text(_)), _) => self.end("stop", None, sink),
                (Some(_), _) if surplus => self.end("stop", None, sink),
                _ if sink.is_full() => return Step::Full,
                _ => {}
            }
        }
        Step::Ended
    }

    /// Hands on the prompt, once, where it is to be echoed.
    pub(super) fn put_echo(&mut self, sink: &mut impl Sink) {
        if let Some(prompt) = self.echo.take() {
            sink.piece(
                self.index,
                0,
                &Piece {
                    text: &prompt,
                    ..Piece::default()
                },
            );
        }
    }

    /// Takes tokens up to the one that stops the choice; returns whether there were more.
    pub(super) fn take_all(
        &mut self,
        tokens: &mut Vec<GeneratedToken>,
        sink: &mut impl Sink,
    ) -> bool {
        let mut surplus = false;
        for token in tokens.drain(..) {
            if self.stopped.is_some() {
                surplus = true;
                break;
            }
            self.take(token, sink);
        }
        surplus
    }

    fn take(&mut self, token: GeneratedToken, sink: &mut impl Sink) {
        self.meter.token(token.timestamp_ns);
        self.num_tokens += 1;
        if let Some(logprobs) = token.logprobs {
            self.entries.push(TokenEntry {
                token: token.token,
                logprobs,
                text_offset: self.assembler.num_chars(),
            });
        }
        if self.wanted.token_ids {
            self.token_ids.push(token.token);
        }
        self.stopped = self.assembler.push(token.token, &mut self.text);
        self.hand_on(sink);
    }

    /// Hands on the text there is, with all tokens since the last piece.
    fn hand_on(&mut self, sink: &mut impl Sink) {
        if !self.text.is_empty() {
            sink.piece(self.index, self.num_tokens, &self.piece());
            self.text.clear();
            self.forget_tokens();
        }
    }

    fn piece(&self) -> Piece<'_> {
        Piece {
            text: &self.text,
            entries: self.wanted.logprobs.then_some(&self.entries),
            token_ids: self.wanted.token_ids.then_some(&self.token_ids),
        }
    }

    fn forget_tokens(&mut self) {
        self.num_tokens = 0;
        self.entries.clear();
        self.token_ids.clear();
    }

    /// The engine has ended the sequence.
    fn finish(&mut self, finish: &Finish, sink: &mut impl Sink) -> Result<(), ApiError> {
        self.cached_tokens = Some(finish.num_cached_tokens.into());
        let times = EngineTimes {
            claimed_ns: finish.claimed_ns,
            first_token_ns: finish.first_token_ns,
            completed_ns: finish.completed_ns,
            num_cached_tokens: finish.num_cached_tokens.into(),
        };
        match &finish.reason {
            // The text had ended before the engine heard of it.
            FinishReason::Cancelled | FinishReason::Failed(_) if self.stopped.is_some() => {
                self.end("stop", None, sink)
            }
            FinishReason::Stop { .. } => self.end("stop", Some(times), sink),
            FinishReason::Length => self.end("length", Some(times), sink),
            FinishReason::Cancelled => {
                return Err(self.fail(ApiError::EngineUnavailable {
                    reason: "it is stopping",
                }));
            }
            FinishReason::Failed(error) => return Err(self.fail(of_request(error))),
        }
        Ok(())
    }

    fn fail(&mut self, error: ApiError) -> ApiError {
        self.meter.finish(FinishedReason::Error, None);
        self.handle = None;
        self.ended = true;
        error
    }

    /// Releases the last text and ends the choice, for `reason` unless the text or the tokens tell of a stop.
    pub(super) fn end(
        &mut self,
        reason: &'static str,
        times: Option<EngineTimes>,
        sink: &mut impl Sink,
    ) {
        if !matches!(self.stopped, Some(Stopped::Text(_))) {
            let stopped = self.assembler.finish(&mut self.text);
            self.stopped = stopped.or(self.stopped);
        }
        self.hand_on(sink);
        let finish_reason = if self.stopped.is_some() {
            "stop"
        } else {
            reason
        };
        let ending = Ending {
            finish_reason,
            stop_reason: self.stop_reason(),
        };
        sink.ending(self.index, self.num_tokens, &self.piece(), &ending);
        self.forget_tokens();
        if self.handle.is_some() {
            let reason = if finish_reason == "stop" {
                FinishedReason::Stop
            } else {
                FinishedReason::Length
            };
            self.meter.finish(reason, times);
        }
        self.handle = None;
        self.ended = true;
    }

    fn stop_reason(&self) -> Option<StopReason> {
        match self.stopped? {
            Stopped::Eos => None,
            Stopped::Token(token) => Some(StopReason::Token(token)),
            Stopped::Text(stop) => Some(StopReason::Text(self.rules.strings.text(stop).to_owned())),
        }
    }
}
