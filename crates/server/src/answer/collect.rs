//! An answer as one body.

use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;

use super::choice::{Sink, Step};
use super::{Answer, cached_tokens};
use crate::deadline::Deadline;
use crate::error::ApiError;
use crate::output::head::{Ending, Piece, Usage};
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
        let mut scratch = Vec::new();
        let mut open: Vec<usize> = (0..self.choices.len()).collect();
        poll_fn(|cx| {
            let mut failed = None;
            open.retain(|&index| {
                match self.choices[index].poll(cx, &mut scratch, &mut collector) {
                    Step::Waiting | Step::Full => true,
                    Step::Ended => false,
                    Step::Failed(error) => {
                        failed = Some(error);
                        false
                    }
                }
            });
            match failed {
                Some(error) => Poll::Ready(Err(error)),
                None if open.is_empty() => Poll::Ready(Ok(())),
                None => Poll::Pending,
            }
        })
        .await?;
        collector.usage.cached_tokens = cached_tokens(&self.choices, self.n);
        Ok(body(&self.head, &collector.choices, &collector.usage).freeze())
    }

    fn blank(&self, index: usize) -> WholeChoice {
        let wanted = self.choices[index].wanted();
        WholeChoice {
            text: String::new(),
            entries: wanted.logprobs.then(Vec::new),
            token_ids: wanted.token_ids.then(Vec::new),
            prompt_token_ids: self.prompt_ids_of(index).map(<[u32]>::to_vec),
            ending: Ending {
                finish_reason: "length",
                stop_reason: None,
            },
        }
    }
}
