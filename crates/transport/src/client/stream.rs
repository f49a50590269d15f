//! What the token reader and a request's handle share: how far tokens are staged, how it ended, whom to wake.
//!
//! One writer each: the reader moves `staged` and sets `finish`; handle and mask feed only read them. No lock is on the
//! token path, but for masks: they may be written only while the slot is the request's.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::task::Waker;

use atomic_waker::AtomicWaker;
use izar_ring::{MaskWord, OUTPUT_BYTES, SlotIdx, logprob_stride};

use super::arena::Extent;
use super::lease::Lease;
use super::outcome::Finish;
use crate::{Transport, TransportError};

/// Set in `staged` once `finish` is.
const FINISHED: u64 = 1 << 63;

/// Sizes of what a request produces, and where its masks go.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Tokens there is room for.
    pub(super) capacity: u32,
    /// As in the request record: -1 none, else how many alternatives.
    pub(super) num_logprobs: i32,
    /// The same for the prompt's tokens.
    pub(super) num_prompt_logprobs: i32,
    /// Tokens of the prompt.
    pub(super) prompt_len: u32,
    /// Bytes of one mask; 0 for a request without masks.
    pub(super) mask_bytes: u64,
}

impl Shape {
    /// Bytes of output arena that all of it takes.
    pub(super) fn output_bytes(&self) -> u64 {
        u64::from(self.capacity) * (OUTPUT_BYTES + logprob_stride(self.num_logprobs))
            + self.prompt_logprob_bytes()
    }

    /// Bytes of the prompt's log probabilities: a record for each token but the first.
    pub(super) fn prompt_logprob_bytes(&self) -> u64 {
        u64::from(self.prompt_len.saturating_sub(1)) * logprob_stride(self.num_prompt_logprobs)
    }
}

/// One request in flight.
pub(super) struct Stream {
    /// Ring slot.
    pub(super) slot: u32,
    /// Generation of the slot.
    pub(super) generation: u32,
    /// What of it lies where.
    pub(super) shape: Shape,
    /// Space for tokens, then log probabilities, then those of the prompt; comes back when all are through with it.
    output: Extent,
    /// Region offset of the mask area.
    masks: u64,
    staged: AtomicU64,
    finish: OnceLock<Finish>,
    waker: AtomicWaker,
    feed_waker: AtomicWaker,
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
        shape: Shape,
        output: Extent,
        masks: u64,
    ) -> Stream {
        Stream {
            slot,
            generation,
            shape,
            masks,
            output,
            staged: AtomicU64::new(0),
            finish: OnceLock::new(),
            waker: AtomicWaker::new(),
            feed_waker: AtomicWaker::new(),
            holds_slot: Mutex::new(true),
        }
    }

    /// Region offset of the output record of token `i`.
    pub(super) fn token_offset(&self, i: u32) -> u64 {
        self.output.offset() + u64::from(i) * OUTPUT_BYTES
    }

    /// Region offset of the log-probability record of token `i`.
    pub(super) fn logprob_offset(&self, i: u32) -> u64 {
        self.token_offset(self.shape.capacity)
            + u64::from(i) * logprob_stride(self.shape.num_logprobs)
    }

    /// Region offset of the log-probability record of prompt token `i + 1`.
    pub(super) fn prompt_logprob_offset(&self, i: u32) -> u64 {
        self.logprob_offset(self.shape.capacity)
            + u64::from(i) * logprob_stride(self.shape.num_prompt_logprobs)
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

    /// Reader: wakes whoever waits, after `publish` or `finish`.
    pub(super) fn wake(&self) {
        self.feed_waker.wake();
        self.waker.wake();
    }

    /// Mask feed: wakes the handle's task.
    pub(super) fn wake_handle(&self) {
        self.waker.wake();
    }

    /// Mask feed: wake this one when there is something new. Look again after calling it.
    pub(super) fn register_feed(&self, waker: &Waker) {
        self.feed_waker.register(waker);
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

    /// Mask feed: writes `mask` to its buffer, if it allows not everything, and then the word that promises it. False if the
    /// slot is no longer this request's.
    pub(super) fn deliver(
        &self,
        lease: &Lease,
        transport: &dyn Transport,
        buffer: u32,
        mask: Option<&[u8]>,
        word: MaskWord,
    ) -> Result<bool, TransportError> {
        let holds = self
            .holds_slot
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !*holds {
            return Ok(false);
        }
        if let Some(mask) = mask {
            let offset = self.masks + u64::from(buffer) * self.shape.mask_bytes;
            transport.write(offset, mask)?;
        }
        let offset = lease.layout().mask_offset(SlotIdx(self.slot));
        // SYNC mask-delivered: pairs with the engine's acquire load of the mask word.
        transport.write_flag(offset, word.pack())?;
        Ok(true)
    }

    /// Reader: no word is written for the slot under this generation any more.
    pub(super) fn let_go(&self) {
        *self
            .holds_slot
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = false;
    }
}
