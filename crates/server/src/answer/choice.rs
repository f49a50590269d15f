//! One sequence of an answer: polled for tokens, it hands pieces of text to a [`Sink`].

use std::task::{Context, Poll};

use izar_transport::client::{
    Finish, FinishReason, GeneratedToken, Progress, RequestHandle, TokenLogprobs,
};

use super::failure::of_request;
use super::scores::{PromptScores, ScoredPrompt};
use crate::constrain::{Outcome, Watch};
use crate::error::ApiError;
use crate::message::{Delta, MessageParser};
use crate::metrics::{EngineTimes, FinishedReason, SequenceMeter};
use crate::output::assembler::{Assembler, Stopped};
use crate::output::head::{Ending, Part, Piece, StopReason};
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

/// Takes a choice's text apart, for chats that have more than text.
pub struct MessageReader {
    parser: MessageParser,
    /// Whether reasoning is left out.
    hide_reasoning: bool,
    /// What the ids of the choice's calls begin with.
    call_id: String,
}

impl MessageReader {
    /// A reader at the beginning of a choice; the ids of its calls begin with `call_id`.
    pub fn new(parser: MessageParser, hide_reasoning: bool, call_id: String) -> Self {
        Self {
            parser,
            hide_reasoning,
            call_id,
        }
    }
}

/// One sequence and the text it has made.
pub struct Choice {
    index: usize,
    /// The sequence in the ring. None once the choice ended, and where nothing is generated at all.
    handle: Option<RequestHandle>,
    /// What its grammar comes to, if it has one.
    watch: Option<Watch>,
    /// What its prompt's log probabilities are for, until they are there.
    scores: Option<PromptScores>,
    /// Those that the answer lists.
    listed: Option<ScoredPrompt>,
    assembler: Assembler,
    meter: SequenceMeter,
    wanted: Wanted,
    /// None where the text is all there is to a message.
    reader: Option<MessageReader>,
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
        meter: SequenceMeter,
        wanted: Wanted,
        reader: Option<MessageReader>,
        echo: Option<String>,
    ) -> Self {
        Self {
            index,
            handle,
            watch: None,
            scores: None,
            listed: None,
            assembler,
            meter,
            wanted,
            reader,
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

    /// The choice, which ends when its grammar is complete.
    pub fn watching(mut self, watch: Option<Watch>) -> Self {
        self.watch = watch;
        self
    }

    /// The choice, which waits for its prompt's log probabilities.
    pub fn scoring(mut self, scores: Option<PromptScores>) -> Self {
        self.scores = scores;
        self
    }

    /// The log probabilities of the prompt that the answer lists, where it does.
    pub fn take_listed(&mut self) -> Option<ScoredPrompt> {
        self.listed.take()
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
        if self.scores.is_none() {
            self.put_echo(sink);
        }
        while !self.ended {
            let Some(handle) = &mut self.handle else {
                self.end("length", None, sink);
                break;
            };
            let Poll::Ready(progress) = handle.poll_tokens(cx, scratch) else {
                // The grammar's worker wakes the task after it has set the outcome.
                let num_taken = handle.num_taken();
                match self.watch.as_ref().and_then(Watch::outcome) {
                    Some(&Outcome::Complete { num_tokens }) if num_tokens == num_taken => {
                        self.end("stop", None, sink);
                        break;
                    }
                    Some(Outcome::Failed) => {
                        return Step::Failed(self.fail(ApiError::EngineFailed {
                            reason: "its grammar is too complex for the text so far".to_owned(),
                            client_fault: true,
                        }));
                    }
                    _ => return Step::Waiting,
                }
            };
            if let Some(scores) = self.scores.take_if(|_| !is_failure(&progress)) {
                // They came with the first news.
                let logprobs = handle.prompt_logprobs().unwrap_or_default();
                let is_all = scores.is_all;
                self.put_scores(scores, logprobs, sink);
                if is_all {
                    scratch.clear();
                    self.end("length", None, sink);
                    break;
                }
            }
            let surplus = self.take_all(scratch, sink);
            match (self.stopped, progress) {
                (_, Progress::Finished(finish)) => {
                    if let Err(error) = self.finish(&finish, sink) {
                        return Step::Failed(error);
                    }
                }
                (Some(Stopped::Text(_) | Stopped::Called), _) => self.end("stop", None, sink),
                (Some(_), _) if surplus => self.end("stop", None, sink),
                _ if sink.is_full() => return Step::Full,
                _ => {}
            }
        }
        Step::Ended
    }

    /// Hands on the prompt with its log probabilities, or keeps them for the list.
    fn put_scores(
        &mut self,
        scores: PromptScores,
        logprobs: Vec<TokenLogprobs>,
        sink: &mut impl Sink,
    ) {
        let prompt = ScoredPrompt {
            ids: scores.ids,
            logprobs,
        };
        if let Some(text) = self.echo.take_if(|_| scores.beside_echo) {
            let entries = prompt.entries(&scores.tokenizer, &text);
            let piece = Piece {
                part: Part::Text(&text),
                entries: Some(&entries),
                token_ids: None,
            };
            sink.piece(self.index, 0, &piece);
        }
        self.put_echo(sink);
        self.listed = scores.is_listed.then_some(prompt);
    }

    /// Hands on the prompt, once, where it is to be echoed.
    pub(super) fn put_echo(&mut self, sink: &mut impl Sink) {
        if let Some(prompt) = self.echo.take() {
            sink.piece(
                self.index,
                0,
                &Piece {
                    part: Part::Text(&prompt),
                    entries: None,
                    token_ids: None,
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
                logprobs: Some(logprobs),
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
        if self.text.is_empty() {
            return;
        }
        match self.reader.take() {
            None => {
                sink.piece(
                    self.index,
                    self.num_tokens,
                    &self.piece(Part::Text(&self.text)),
                );
                self.text.clear();
                self.forget_tokens();
            }
            Some(mut reader) => {
                let text = std::mem::take(&mut self.text);
                let deltas = reader.parser.push(&text);
                self.hand_on_deltas(deltas, reader.hide_reasoning, &reader.call_id, sink);
                if reader.parser.is_over() && self.stopped.is_none() {
                    self.stopped = Some(Stopped::Called);
                }
                self.text = text;
                self.text.clear();
                self.reader = Some(reader);
            }
        }
    }

    /// Hands on parts of the message; the tokens go with the first.
    fn hand_on_deltas(
        &mut self,
        deltas: impl Iterator<Item = Delta>,
        hide_reasoning: bool,
        call_id: &str,
        sink: &mut impl Sink,
    ) {
        for delta in deltas {
            let id;
            let part = match &delta {
                Delta::Content(text) => Part::Text(text),
                Delta::Reasoning(_) if hide_reasoning => continue,
                Delta::Reasoning(text) => Part::Reasoning(text),
                &Delta::Call { index, ref name } => {
                    id = format!("{call_id}{index:02x}");
                    Part::Call {
                        index,
                        id: &id,
                        name,
                    }
                }
                &Delta::Arguments { index, ref text } => Part::Arguments { index, text },
            };
            sink.piece(self.index, self.num_tokens, &self.piece(part));
            self.forget_tokens();
        }
    }

    fn piece<'a>(&'a self, part: Part<'a>) -> Piece<'a> {
        Piece {
            part,
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
        if !matches!(self.stopped, Some(Stopped::Text(_) | Stopped::Called)) {
            let stopped = self.assembler.finish(&mut self.text);
            self.stopped = stopped.or(self.stopped);
        }
        self.hand_on(sink);
        let has_called = self.finish_message(sink);
        let finish_reason = match self.stopped {
            None => reason,
            Some(_) => "stop",
        };
        let is_stop = finish_reason == "stop";
        let ending = Ending {
            finish_reason: if is_stop && has_called {
                "tool_calls"
            } else {
                finish_reason
            },
            stop_reason: self.stop_reason(),
        };
        let piece = self.piece(Part::Text(""));
        sink.ending(self.index, self.num_tokens, &piece, &ending);
        self.forget_tokens();
        if self.handle.is_some() {
            let reason = if is_stop {
                FinishedReason::Stop
            } else {
                FinishedReason::Length
            };
            self.meter.finish(reason, times);
        }
        self.handle = None;
        self.ended = true;
    }

    /// Hands on what the reader held; returns whether the model called tools of its own choice.
    fn finish_message(&mut self, sink: &mut impl Sink) -> bool {
        let Some(mut reader) = self.reader.take() else {
            return false;
        };
        let deltas = reader.parser.finish();
        self.hand_on_deltas(deltas, reader.hide_reasoning, &reader.call_id, sink);
        reader.parser.has_called()
    }

    fn stop_reason(&self) -> Option<StopReason> {
        match self.stopped? {
            Stopped::Eos | Stopped::Called => None,
            Stopped::Token(token) => Some(StopReason::Token(token)),
            Stopped::Text(stop) => Some(StopReason::Text(
                self.assembler.rules().strings.text(stop).to_owned(),
            )),
        }
    }
}

fn is_failure(progress: &Progress) -> bool {
    matches!(
        progress,
        Progress::Finished(Finish {
            reason: FinishReason::Failed(_) | FinishReason::Cancelled,
            ..
        })
    )
}
