//! [`MaskFeed`]: the end of a masked request at which its token masks are delivered.
//!
//! It reads the request's tokens from the local mirror, as the handle does and independently of it, so that a client that
//! reads slowly does not make the engine wait. Whoever holds it answers every token with the mask of the next.

use std::sync::Arc;
use std::task::{Context, Poll};

use izar_ring::{MASK_BUFFERS, MaskWord, OUTPUT_BYTES, OutputRecord};

use super::shared::Shared;
use super::stream::Stream;
use crate::TransportError;

/// What a poll of a feed brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedProgress {
    /// New tokens were appended.
    Tokens,
    /// The request is over: no mask is wanted any more.
    Over,
}

/// Delivers the masks of one request, in order: mask `k` is for output token `k`.
pub struct MaskFeed {
    shared: Arc<Shared>,
    stream: Arc<Stream>,
    num_taken: u32,
    num_delivered: u32,
    is_open: [bool; MASK_BUFFERS as usize],
}

impl MaskFeed {
    pub(super) fn new(shared: Arc<Shared>, stream: Arc<Stream>) -> MaskFeed {
        MaskFeed {
            shared,
            stream,
            num_taken: 0,
            num_delivered: 0,
            is_open: [false; MASK_BUFFERS as usize],
        }
    }

    /// Appends the ids of all new tokens to `out`; wakes the task when there is something new.
    pub fn poll_tokens(&mut self, cx: &mut Context<'_>, out: &mut Vec<u32>) -> Poll<FeedProgress> {
        if let Some(progress) = self.try_next(out) {
            return Poll::Ready(progress);
        }
        self.stream.register_feed(cx.waker());
        // Something may have come between the look and the registration.
        self.try_next(out).map_or(Poll::Pending, Poll::Ready)
    }

    fn try_next(&mut self, out: &mut Vec<u32>) -> Option<FeedProgress> {
        let stream = self.stream.clone();
        let staged = stream.look();
        if staged.finish.is_some() {
            return Some(FeedProgress::Over);
        }
        if staged.num_tokens == self.num_taken {
            return None;
        }
        let num_new = (staged.num_tokens - self.num_taken) as usize;
        let offset = stream.token_offset(self.num_taken);
        // SAFETY: `look` said that these tokens are published; the extent lives as long as `stream`.
        let records = unsafe {
            self.shared
                .staging
                .published(offset, num_new * OUTPUT_BYTES as usize)
        };
        let (records, _) = records.as_chunks();
        out.extend(
            records
                .iter()
                .map(|record| OutputRecord::decode(record).token),
        );
        self.num_taken = staged.num_tokens;
        Some(FeedProgress::Tokens)
    }

    /// Delivers the next mask: one bit per vocabulary entry, low bit first, 0 forbids the token; without one, everything is
    /// allowed. False if the request is over.
    ///
    /// # Errors
    /// If the ring cannot be reached.
    ///
    /// # Panics
    /// If the token before the one that this mask is for has not been taken, or the mask is larger than the vocabulary.
    pub fn deliver(&mut self, mask: Option<&[u32]>) -> Result<bool, TransportError> {
        assert!(
            self.num_delivered <= self.num_taken,
            "mask {} depends on a token that has not been taken",
            self.num_delivered
        );
        let bytes = mask.map(bytemuck::cast_slice);
        let limit = self.stream.shape.mask_bytes;
        assert!(
            bytes.is_none_or(|bytes: &[u8]| bytes.len() as u64 <= limit),
            "a mask of the vocabulary has at most {limit} bytes"
        );
        let buffer = self.num_delivered % MASK_BUFFERS;
        self.num_delivered += 1;
        self.is_open[buffer as usize] = mask.is_none();
        let word = MaskWord {
            generation: self.stream.generation,
            num_delivered: self.num_delivered,
            is_open: self.is_open,
        };
        let shared = &*self.shared;
        self.stream
            .deliver(&shared.lease, &*shared.transport, buffer, bytes, word)
    }

    /// Wakes whoever waits for the request's tokens at its handle, for news that are not tokens.
    pub fn wake_handle(&self) {
        self.stream.wake_handle();
    }
}

impl std::fmt::Debug for MaskFeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            num_taken,
            num_delivered,
            ..
        } = self;
        write!(
            f,
            "MaskFeed {{ slot: {}, num_taken: {num_taken}, num_delivered: {num_delivered} }}",
            self.stream.slot
        )
    }
}
