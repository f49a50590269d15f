//! What the token reader and a request's handle share: how far tokens are staged, how it ended, whom to wake.
//!
//! One writer each: the reader moves `staged` and sets `finish`; the handle only reads them. No lock is on the token path.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::task::Waker;

use atomic_waker::AtomicWaker;
use izar_ring::{OUTPUT_BYTES, logprob_stride};

use super::arena::Extent;
use super::lease::Lease;
use super::outcome::Finish;
use crate::TransportError;

/// Set in `staged` once `finish` is.
const FINISHED: u64 = 1 << 63;

/// One request in flight.
pub(super) struct Stream {
    /// Ring slot.
    pub(super) slot: u32,
    /// Generation of the slot.
    pub(super) generation: u32,
    /// Tokens there is room for.
    pub(super) capacity: u32,
    /// As in the request record: -1 none, else how many alternatives.
    pub(super) num_logprobs: i32,
    /// Space for tokens, then log probabilities; comes back when reader and handle are both through with it.
    output: Extent,
    staged: AtomicU64,
    finish: OnceLock<Finish>,
    waker: AtomicWaker,
    /// Whether the slot is still this request's. The lock keeps a late cancel word from overwriting a successor's.
    holds_slot: Mutex<bool>,
}

/// A look at a stream: tokens that can be read, and the end if it has come.
pub(super) struct Staged<'a> {
    pub(super) num_tokens: u32,
    pub(super) finish: Option<&'a Finish>,
}

impl Stream {
    pub(super) fn new(
        slot: u32,
        generation: u32,
        capacity: u32,
        num_logprobs: i32,
        output: Extent,
    ) -> Stream {
        Stream {
            slot,
            generation,
            capacity,
            num_logprobs,
            output,
            staged: AtomicU64::new(0),
            finish: OnceLock::new(),
            waker: AtomicWaker::new(),
            holds_slot: Mutex::new(true),
        }
    }

    /// Bytes of output arena that so many tokens take, with log probabilities; `None` if no arena is that large.
    pub(super) fn output_bytes(capacity: u32, num_logprobs: i32) -> u64 {
        u64::from(capacity) * (OUTPUT_BYTES + logprob_stride(num_logprobs))
    }

    /// Region offset of the output record of token `i`.
    pub(super) fn token_offset(&self, i: u32) -> u64 {
        self.output.offset() + u64::from(i) * OUTPUT_BYTES
    }

    /// Region offset of the log-probability record of token `i`.
    pub(super) fn logprob_offset(&self, i: u32) -> u64 {
        self.token_offset(self.capacity) + u64::from(i) * logprob_stride(self.num_logprobs)
    }

    /// Reader: the first `num_tokens` tokens are staged.
    pub(super) fn publish(&self, num_tokens: u32) {
        // SYNC token-staged: pairs with the acquire load in `look`. Makes the mirror's bytes visible.
        self.staged.store(u64::from(num_tokens), Ordering::Release);
    }

    /// Reader: it is over, with this many tokens staged. Once only.
    pub(super) fn finish(&self, num_tokens: u32, finish: Finish) {
        self.finish.set(finish).expect("a request ends once");
        // SYNC token-staged: pairs with the acquire load in `look`. Makes `finish` visible, too.
        self.staged
            .store(u64::from(num_tokens) | FINISHED, Ordering::Release);
    }

    /// Reader: wakes the task or thread that waits, after `publish` or `finish`.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Whether it is over.
    pub(super) fn is_finished(&self) -> bool {
        self.finish.get().is_some()
    }

    /// Handle: where it stands.
    pub(super) fn look(&self) -> Staged<'_> {
        // SYNC token-staged: pairs with the release stores in `publish` and `finish`.
        let staged = self.staged.load(Ordering::Acquire);
        let finish = if staged & FINISHED != 0 {
            self.finish.get()
        } else {
            None
        };
        Staged {
            num_tokens: staged as u32,
            finish,
        }
    }

    /// Handle: wake this one when there is something new. Look again after calling it.
    pub(super) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// Asks the engine to end the request, unless it has already given the slot up.
    pub(super) fn cancel(&self, lease: &Lease) -> Result<(), TransportError> {
        let holds = self
            .holds_slot
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *holds {
            lease.cancel(self.slot, self.generation)
        } else {
            Ok(())
        }
    }

    /// Reader: no word is written for the slot under this generation any more.
    pub(super) fn let_go(&self) {
        *self
            .holds_slot
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = false;
    }
}
