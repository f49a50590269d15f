//! The request tracker: every request in flight, and one poll of the ring for all of them (Blink §4.4).
//!
//! A poll has three parts: one bulk read of the progress words; one batch of contiguous reads of whatever is new, straight
//! into the mirror; then publishing, with one wake-up per request. Requests without a first token are looked at first (the
//! urgent list). The tokens of one poll are bounded; what is left over comes first in the next.
//!
//! Owned by the token reader's thread. Nothing here allocates per token or takes a lock per token.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

use izar_ring::{
    FinishReason as RingFinish, OUTPUT_BYTES, Observation, PROGRESS_BYTES, RESULT_BYTES,
    ResultRecord, SlotIdx, logprob_stride, observe,
};

use super::arena::Extent;
use super::outcome::{Finish, FinishReason, RequestError};
use super::shared::Shared;
use super::stream::Stream;
use crate::{ReadOp, TransportError};

/// Words of one slot in the progress array.
const PROGRESS_WORDS: usize = PROGRESS_BYTES as usize / size_of::<u64>();

/// A request on its way into the tracker.
pub(super) struct Newcomer {
    pub(super) stream: Arc<Stream>,
    pub(super) input: Extent,
    pub(super) submitted: Instant,
}

struct Entry {
    stream: Arc<Stream>,
    /// Held until the engine has given the slot back: it reads the prompt until then.
    _input: Extent,
    submitted: Instant,
    num_read: u32,
    /// Everything was read and the engine was told so; only EMPTY is still to come.
    recycled: bool,
}

/// What a poll has to do for one slot.
struct Work {
    idx: u32,
    from: u32,
    to: u32,
    /// Set if nothing comes after `to`.
    ended: Option<RingFinish>,
}

/// What one slot's progress words mean for us.
enum Seen {
    Nothing,
    News { to: u32, ended: Option<RingFinish> },
    Emptied,
    Broken(RequestError),
}

/// What a poll found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Polled {
    Nothing,
    News,
    /// News, among it slots that say what they should not: time to ask whether the lease still holds.
    Suspect,
}

/// Requests in flight.
pub(super) struct Tracker {
    first_slot: u32,
    entries: Vec<Option<Entry>>,
    /// Those without a first token, oldest first.
    urgent: Vec<u32>,
    active: Vec<u32>,
    /// Where in `active` the next poll starts, so that a bounded poll is fair.
    cursor: usize,
    max_tokens_per_poll: u32,
    progress: Vec<u64>,
    // Buffers that polls use again and again.
    work: Vec<Work>,
    results: Vec<[u8; RESULT_BYTES as usize]>,
    ops: Vec<ReadOp<'static>>,
    emptied: Vec<u32>,
    broken: Vec<(u32, RequestError)>,
}

impl Tracker {
    /// No requests; slots `first_slot..first_slot + num_slots` can come.
    pub(super) fn new(first_slot: u32, num_slots: u32, max_tokens_per_poll: u32) -> Tracker {
        Tracker {
            first_slot,
            entries: (0..num_slots).map(|_| None).collect(),
            urgent: Vec::new(),
            active: Vec::new(),
            cursor: 0,
            max_tokens_per_poll,
            progress: vec![0; num_slots as usize * PROGRESS_WORDS],
            work: Vec::new(),
            results: Vec::new(),
            ops: Vec::new(),
            emptied: Vec::new(),
            broken: Vec::new(),
        }
    }

    /// Whether nothing is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.active.is_empty()
    }

    /// Takes a request in.
    pub(super) fn admit(&mut self, newcomer: Newcomer) {
        let Newcomer {
            stream,
            input,
            submitted,
        } = newcomer;
        let idx = stream.slot - self.first_slot;
        self.urgent.push(idx);
        let entry = Entry {
            stream,
            _input: input,
            submitted,
            num_read: 0,
            recycled: false,
        };
        let before = self.entries[idx as usize].replace(entry);
        assert!(
            before.is_none(),
            "slot {} was handed out twice",
            idx + self.first_slot
        );
    }

    /// The streams in flight.
    pub(super) fn streams(&self) -> impl Iterator<Item = &Arc<Stream>> {
        self.entries.iter().flatten().map(|entry| &entry.stream)
    }

    /// Forgets everything, without a word to the engine.
    pub(super) fn clear(&mut self) {
        self.entries.iter_mut().for_each(|entry| *entry = None);
        self.urgent.clear();
        self.active.clear();
    }

    /// Reads the progress of all slots in flight, fetches what is new and hands it on.
    pub(super) fn poll(&mut self, shared: &Shared) -> Result<Polled, TransportError> {
        let Some(span) = self.span() else {
            return Ok(Polled::Nothing);
        };
        self.read_progress(shared, span)?;
        self.scan();
        shared.counters.polls.add(1);
        if self.work.is_empty() && self.emptied.is_empty() && self.broken.is_empty() {
            return Ok(Polled::Nothing);
        }
        shared.counters.polls_with_news.add(1);
        let polled = if self.broken.is_empty() {
            Polled::News
        } else {
            Polled::Suspect
        };
        self.fetch(shared)?;
        self.publish(shared)?;
        self.settle(shared);
        Ok(polled)
    }

    /// The lowest and highest slot in flight.
    fn span(&self) -> Option<RangeInclusive<u32>> {
        let in_flight = || self.urgent.iter().chain(&self.active).copied();
        Some(in_flight().min()?..=in_flight().max()?)
    }

    fn read_progress(
        &mut self,
        shared: &Shared,
        span: RangeInclusive<u32>,
    ) -> Result<(), TransportError> {
        let words =
            *span.start() as usize * PROGRESS_WORDS..(*span.end() as usize + 1) * PROGRESS_WORDS;
        let offset = shared
            .lease
            .layout()
            .progress_offset(SlotIdx(self.first_slot + span.start()));
        // SYNC token-published, slot-completed, slot-emptied: pairs with the engine's release stores of progress words.
        shared
            .transport
            .read(offset, bytemuck::cast_slice_mut(&mut self.progress[words]))
    }

    /// Compares progress with what we have, urgent slots first, until the bound on tokens is reached.
    fn scan(&mut self) {
        self.work.clear();
        let mut budget = self.max_tokens_per_poll;
        let start = self.cursor.min(self.active.len());
        let (later, sooner) = self.active.split_at(start);
        let mut num_looked_at = 0;
        for &idx in self.urgent.iter().chain(sooner).chain(later) {
            if budget == 0 {
                break;
            }
            num_looked_at += 1;
            let at = idx as usize * PROGRESS_WORDS;
            let entry = self.entries[idx as usize]
                .as_ref()
                .expect("listed slots are in flight");
            match entry.examine(self.progress[at], self.progress[at + 1], budget) {
                Seen::Nothing => {}
                Seen::News { to, ended } => {
                    budget -= to - entry.num_read;
                    self.work.push(Work {
                        idx,
                        from: entry.num_read,
                        to,
                        ended,
                    });
                }
                Seen::Emptied => self.emptied.push(idx),
                Seen::Broken(error) => self.broken.push((idx, error)),
            }
        }
        let num_active_seen = usize::saturating_sub(num_looked_at, self.urgent.len());
        self.cursor = if self.active.is_empty() {
            0
        } else {
            (start + num_active_seen) % self.active.len()
        };
    }

    /// Fetches new tokens, their log probabilities and the results of ended requests, all in one batch.
    fn fetch(&mut self, shared: &Shared) -> Result<(), TransportError> {
        self.results.clear();
        self.results
            .resize(self.work.len(), [0; RESULT_BYTES as usize]);
        let mut ops: Vec<ReadOp<'_>> = emptied(std::mem::take(&mut self.ops));
        for (work, result) in self.work.iter().zip(&mut self.results) {
            let entry = self.entries[work.idx as usize]
                .as_ref()
                .expect("work is for slots in flight");
            let stream = &*entry.stream;
            let num_new = (work.to - work.from) as usize;
            let mut add = |offset: u64, len: usize| {
                if len > 0 {
                    // SAFETY: we are the token reader; `from..to` is not published yet and inside
                    // the stream's extent, which the entry keeps; nothing else in the batch covers it.
                    let dst = unsafe { shared.staging.unpublished(offset, len) };
                    ops.push(ReadOp { offset, dst });
                }
            };
            add(
                stream.token_offset(work.from),
                num_new * OUTPUT_BYTES as usize,
            );
            add(
                stream.logprob_offset(work.from),
                num_new * logprob_stride(stream.shape.num_logprobs) as usize,
            );
            if work.from == 0 {
                let bytes = stream.shape.prompt_logprob_bytes() as usize;
                add(stream.prompt_logprob_offset(0), bytes);
            }
            if work.ended.is_some() {
                let offset = shared.lease.layout().result_offset(SlotIdx(stream.slot));
                ops.push(ReadOp {
                    offset,
                    dst: result,
                });
            }
        }
        let done = shared.transport.read_batch(&mut ops);
        self.ops = emptied(ops);
        done
    }

    /// Hands on what was fetched, and tells the engine about everything that has been read out.
    fn publish(&mut self, shared: &Shared) -> Result<(), TransportError> {
        let mut any_recycled = false;
        for (work, result) in self.work.iter().zip(&self.results) {
            let entry = self.entries[work.idx as usize]
                .as_mut()
                .expect("work is for slots in flight");
            let had_none = entry.num_read == 0;
            entry.num_read = work.to;
            shared.counters.tokens.add(u64::from(work.to - work.from));
            match work.ended {
                None => entry.stream.publish(work.to),
                Some(reason) => {
                    entry.end(
                        shared,
                        finish_from(reason, entry.stream.generation, work.to, result),
                        had_none,
                    );
                    entry.stream.let_go();
                    shared
                        .lease
                        .recycle(entry.stream.slot, entry.stream.generation)?;
                    entry.recycled = true;
                    any_recycled = true;
                }
            }
            if had_none && work.ended.is_none() {
                shared.counters.pending.sub(1);
            }
            entry.stream.wake();
        }
        if any_recycled {
            shared.lease.ring()
        } else {
            Ok(())
        }
    }

    /// Puts slots back, fails broken requests and keeps the lists true.
    fn settle(&mut self, shared: &Shared) {
        for (idx, error) in self.broken.drain(..) {
            let entry = self.entries[idx as usize]
                .as_ref()
                .expect("listed slots are in flight");
            entry.fail(shared, error);
        }
        if !self.emptied.is_empty() {
            let mut slots = shared.slots();
            for idx in self.emptied.drain(..) {
                let entry = self.entries[idx as usize]
                    .take()
                    .expect("listed slots are in flight");
                slots.put_back(entry.stream.slot, entry.stream.generation);
            }
            self.active
                .retain(|&idx| self.entries[idx as usize].is_some());
        }
        let entries = &self.entries;
        let is_urgent = |idx: &u32| {
            entries[*idx as usize]
                .as_ref()
                .is_some_and(Entry::is_urgent)
        };
        self.active.extend(
            self.urgent
                .iter()
                .filter(|idx| !is_urgent(idx) && entries[**idx as usize].is_some()),
        );
        self.urgent.retain(is_urgent);
    }

    /// Ends every request that has not ended with `error`; the slots stay until the engine gives them back.
    pub(super) fn fail_all(&mut self, shared: &Shared, error: &RequestError) {
        self.entries
            .iter()
            .flatten()
            .for_each(|entry| entry.fail(shared, error.clone()));
    }
}

impl Entry {
    /// Waits for its first token or its end.
    fn is_urgent(&self) -> bool {
        self.num_read == 0 && !self.recycled && !self.stream.is_finished()
    }

    /// What the slot's words mean, taking no more than `budget` tokens.
    fn examine(&self, status: u64, count: u64, budget: u32) -> Seen {
        let stream = &*self.stream;
        let (available, ended) = match observe(status, count, stream.generation) {
            Observation::Emptied if self.recycled || stream.is_finished() => return Seen::Emptied,
            _ if self.recycled => return Seen::Nothing,
            Observation::Completed { reason, .. } if stream.is_finished() => {
                (self.num_read, Some(reason))
            }
            _ if stream.is_finished() => return Seen::Nothing,
            Observation::Unclaimed => return Seen::Nothing,
            Observation::Running { num_generated, .. } => (num_generated, None),
            Observation::Completed {
                reason,
                num_generated,
            } => (num_generated, Some(reason)),
            Observation::Emptied | Observation::Lost => {
                return Seen::Broken(RequestError::LeaseRevoked);
            }
            Observation::Malformed => {
                return Seen::Broken(RequestError::CorruptRing("a slot's status word"));
            }
        };
        if available > stream.shape.capacity || available < self.num_read {
            return Seen::Broken(RequestError::CorruptRing("a slot's number of tokens"));
        }
        let to = available.min(self.num_read + budget);
        let ended = ended.filter(|_| to == available);
        if to == self.num_read && ended.is_none() {
            Seen::Nothing
        } else {
            Seen::News { to, ended }
        }
    }

    /// Ends the stream and counts it. `was_pending`: no token had come.
    fn end(&self, shared: &Shared, finish: Finish, was_pending: bool) {
        if self.stream.is_finished() {
            return;
        }
        let counters = &shared.counters;
        let counter = match finish.reason {
            FinishReason::Stop { .. } | FinishReason::Length => &counters.completed,
            FinishReason::Cancelled => &counters.cancelled,
            FinishReason::Failed(_) => &counters.failed,
        };
        // Counted first: whoever sees the end sees it counted. Nobody else ends streams.
        counter.add(1);
        counters.took(self.submitted.elapsed());
        if was_pending {
            counters.pending.sub(1);
        }
        self.stream.finish(self.num_read, finish);
    }

    /// Ends the stream with an error, if it has not ended, and asks the engine to drop the sequence.
    fn fail(&self, shared: &Shared, error: RequestError) {
        if self.stream.is_finished() {
            return;
        }
        let finish = Finish::failed(error, self.num_read);
        self.end(shared, finish, self.num_read == 0);
        self.stream.wake();
        if let Err(error) = self.stream.cancel(&shared.lease) {
            tracing::warn!(slot = self.stream.slot, %error, "cannot cancel a failed request");
        }
    }
}

/// The end of a request as its slot tells it.
fn finish_from(
    reason: RingFinish,
    generation: u32,
    num_generated: u32,
    result: &[u8; RESULT_BYTES as usize],
) -> Finish {
    let result = ResultRecord::decode(result);
    if result.generation != generation {
        return Finish::failed(
            RequestError::CorruptRing("a result record's generation"),
            num_generated,
        );
    }
    let reason = match reason {
        RingFinish::Stop => FinishReason::Stop {
            token: result.stop_token(),
        },
        RingFinish::Length => FinishReason::Length,
        RingFinish::Cancelled => FinishReason::Cancelled,
        RingFinish::Error(error) => FinishReason::Failed(error.into()),
    };
    Finish {
        reason,
        num_generated,
        num_cached_tokens: result.num_cached_tokens,
        num_preemptions: result.num_preemptions,
        claimed_ns: result.claimed_ns,
        first_token_ns: result.first_token_ns,
        completed_ns: result.completed_ns,
    }
}

/// The same allocation with nothing in it, free for borrows of another lifetime.
fn emptied<'b>(mut ops: Vec<ReadOp<'_>>) -> Vec<ReadOp<'b>> {
    ops.clear();
    // Collecting in place keeps the allocation; nothing is ever mapped.
    ops.into_iter()
        .map(|_| unreachable!("cleared above"))
        .collect()
}
