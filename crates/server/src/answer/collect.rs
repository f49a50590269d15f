//! An answer as one body.

use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use serde_json::{Map, Value};

use super::choice::{Choice, Sink, Step};
use super::{Answer, cached_tokens};
use crate::deadline::Deadline;
use crate::error::ApiError;
use crate::output::head::{Ending, Piece, Usage};
use crate::output::response::{Items, ResponseHead, Status};
use crate::output::whole::{WholeChoice, body};

/// Collects pieces of all choices.
pub(super) struct Collector {
    pub(super) choices: Vec<WholeChoice>,
    pub(super) usage: Usage,
}

impl Sink for Collector {
    fn piece(&mut self, index: usize, num_tokens: u64, piece: &Piece<'_>) {
        self.usage.completion_tokens += num_tokens;
        self.choices[index].append(piece);
    }

    fn ending(&mut self, index: usize, num_tokens: u64, piece: &Piece<'_>, ending: &Ending) {
        self.usage.completion_tokens += num_tokens;
        self.choices[index].append(piece);
        self.choices[index].ending = ending.clone();
    }

    fn is_full(&self) -> bool {
        false
    }
}

impl Answer {
    /// Waits for all choices and returns the body.
    ///
    /// # Errors
    /// Whatever failed one of the choices; the others are cancelled.
    pub async fn whole(self) -> Result<Bytes, ApiError> {
        Deadline::bound(self.deadline, self.collect()).await
    }

    async fn collect(mut self) -> Result<Bytes, ApiError> {
        let mut collector = Collector {
            choices: (0..self.choices.len())
                .map(|index| self.blank(index))
                .collect(),
            usage: self.usage,
        };
        run(&mut self.choices, &mut collector).await?;
        for (whole, choice) in collector.choices.iter_mut().zip(&mut self.choices) {
            whole.prompt_logprobs = choice.take_listed();
        }
        collector.usage.cached_tokens = cached_tokens(&self.choices, self.n);
        Ok(body(&self.head, &collector.choices, &collector.usage).freeze())
    }

    /// Waits for the answer and returns it as a `response` that repeats `echo` of the request.
    ///
    /// # Errors
    /// Whatever failed the choice.
    pub async fn whole_response(self, echo: Map<String, Value>) -> Result<Bytes, ApiError> {
        Deadline::bound(self.deadline, self.gather(echo)).await
    }

    async fn gather(mut self, echo: Map<String, Value>) -> Result<Bytes, ApiError> {
        let mut gatherer = Gatherer {
            items: Items::new(&self.head.id),
            usage: self.usage,
            ending: None,
        };
        run(&mut self.choices, &mut gatherer).await?;
        let Gatherer {
            items,
            mut usage,
            ending,
        } = gatherer;
        usage.cached_tokens = cached_tokens(&self.choices, self.n);
        let response = ResponseHead {
            head: self.head,
            echo,
        };
        let status = match &ending {
            Some(ending) => Status::Ended(ending, &usage),
            None => Status::InProgress,
        };
        Ok(response.json(&items, status).to_string().into())
    }

    fn blank(&self, index: usize) -> WholeChoice {
        let wanted = self.choices[index].wanted();
        WholeChoice {
            text: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
            entries: wanted.logprobs.then(Vec::new),
            token_ids: wanted.token_ids.then(Vec::new),
            prompt_token_ids: self.prompt_ids_of(index).map(<[u32]>::to_vec),
            prompt_logprobs: None,
            ending: Ending {
                finish_reason: "length",
                stop_reason: None,
            },
        }
    }
}

/// Collects the items of a response, whose only choice is its output.
struct Gatherer {
    items: Items,
    usage: Usage,
    ending: Option<Ending>,
}

impl Sink for Gatherer {
    fn piece(&mut self, _index: usize, num_tokens: u64, piece: &Piece<'_>) {
        self.usage.completion_tokens += num_tokens;
        self.items.add(num_tokens, piece);
    }

    fn ending(&mut self, _index: usize, num_tokens: u64, _piece: &Piece<'_>, ending: &Ending) {
        self.usage.completion_tokens += num_tokens;
        self.ending = Some(ending.clone());
    }

    fn is_full(&self) -> bool {
        false
    }
}

/// Polls choices until all have ended, or one has failed.
async fn run(choices: &mut [Choice], sink: &mut impl Sink) -> Result<(), ApiError> {
    let mut scratch = Vec::new();
    let mut open: Vec<usize> = (0..choices.len()).collect();
    poll_fn(|cx| {
        let mut failed = None;
        open.retain(|&index| match choices[index].poll(cx, &mut scratch, sink) {
            Step::Waiting | Step::Full => true,
            Step::Ended => false,
            Step::Failed(error) => {
                failed = Some(error);
                false
            }
        });
        match failed {
            Some(error) => Poll::Ready(Err(error)),
            None if open.is_empty() => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    })
    .await
}
