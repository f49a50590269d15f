//! [`RequestHandle`]: the caller's end of one request, for tasks of any runtime and for plain threads.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use izar_ring::{OUTPUT_BYTES, OUTPUT_HAS_LOGPROBS, OutputRecord, decode_logprobs, logprob_stride};

use super::masks::MaskFeed;
use super::outcome::{GeneratedToken, Progress, TokenLogprobs};
use super::shared::Shared;
use super::stream::Stream;
use crate::TransportError;

/// One submitted request. Dropping it before the end cancels the request.
///
/// All methods take tokens out of a local mirror that the token reader fills: none of them waits for the engine's memory.
#[must_use = "dropping the handle cancels the request"]
pub struct RequestHandle {
    shared: Arc<Shared>,
    stream: Arc<Stream>,
    num_taken: u32,
    request_id: u64,
    has_feed: bool,
}

impl RequestHandle {
    pub(super) fn new(shared: Arc<Shared>, stream: Arc<Stream>, request_id: u64) -> RequestHandle {
        RequestHandle {
            shared,
            stream,
            num_taken: 0,
            request_id,
            has_feed: false,
        }
    }

    /// The number under which both sides log the request.
    pub fn request_id(&self) -> u64 {
        self.request_id
    }

    /// The ring slot that the request occupies, or did until it ended.
    pub fn slot(&self) -> u32 {
        self.stream.slot
    }

    /// Tokens taken so far.
    pub fn num_taken(&self) -> u32 {
        self.num_taken
    }

    /// The feed that delivers a masked request's masks; the first call only. Without it, or once it is dropped, the engine
    /// waits for masks until it gives the request up.
    pub fn take_mask_feed(&mut self) -> Option<MaskFeed> {
        let is_masked = self.stream.shape.mask_bytes > 0;
        if !is_masked || std::mem::replace(&mut self.has_feed, true) {
            return None;
        }
        Some(MaskFeed::new(self.shared.clone(), self.stream.clone()))
    }

    /// Log probabilities of the prompt's tokens but the first, in order, once there is a token or the end. `None` before, and
    /// where they were not asked for.
    pub fn prompt_logprobs(&self) -> Option<Vec<TokenLogprobs>> {
        let stream = &*self.stream;
        let staged = stream.look();
        if stream.shape.num_prompt_logprobs < 0
            || (staged.num_tokens == 0 && staged.finish.is_none())
        {
            return None;
        }
        let bytes = stream.shape.prompt_logprob_bytes() as usize;
        if bytes == 0 {
            return Some(Vec::new());
        }
        // SAFETY: published together with the first token or the end, as `look` has just said; the extent lives as long as
        // `stream`.
        let records = unsafe {
            self.shared
                .staging
                .published(stream.prompt_logprob_offset(0), bytes)
        };
        let stride = logprob_stride(stream.shape.num_prompt_logprobs) as usize;
        records.chunks_exact(stride).map(read_logprobs).collect()
    }

    /// Appends all new tokens to `out` without waiting. `None` if there is nothing new.
    pub fn try_next(&mut self, out: &mut Vec<GeneratedToken>) -> Option<Progress> {
        let stream = self.stream.clone();
        let staged = stream.look();
        let had = self.num_taken;
        self.take_until(staged.num_tokens, out);
        match staged.finish {
            Some(finish) => Some(Progress::Finished(finish.clone())),
            None if self.num_taken > had => Some(Progress::More),
            None => None,
        }
    }

    /// Appends all new tokens to `out`; wakes the task when there is something new.
    pub fn poll_tokens(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<GeneratedToken>,
    ) -> Poll<Progress> {
        if let Some(progress) = self.try_next(out) {
            return Poll::Ready(progress);
        }
        self.stream.register(cx.waker());
        // Something may have come between the look and the registration.
        self.try_next(out).map_or(Poll::Pending, Poll::Ready)
    }

    /// Waits for new tokens and appends them to `out`. Dropping the future loses nothing.
    pub async fn next(&mut self, out: &mut Vec<GeneratedToken>) -> Progress {
        poll_fn(|cx| self.poll_tokens(cx, out)).await
    }

    /// As [`RequestHandle::next`] for a thread without a runtime: blocks it. `None` if `timeout` passed without news.
    pub fn wait(&mut self, out: &mut Vec<GeneratedToken>, timeout: Duration) -> Option<Progress> {
        let deadline = Instant::now() + timeout;
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut cx = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(progress) = self.poll_tokens(&mut cx, out) {
                return Some(progress);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            std::thread::park_timeout(left);
        }
    }

    /// Asks the engine to end the request. Tokens may still come; then it finishes as cancelled (or however it ended first).
    ///
    /// # Errors
    /// If the ring cannot be reached; the request then ends by that, too.
    pub fn cancel(&self) -> Result<(), TransportError> {
        if self.stream.is_finished() {
            Ok(())
        } else {
            self.stream.cancel(&self.shared.lease)
        }
    }

    fn take_until(&mut self, end: u32, out: &mut Vec<GeneratedToken>) {
        if end == self.num_taken {
            return;
        }
        let (stream, first) = (&*self.stream, self.num_taken);
        let bytes = (end - first) as usize * OUTPUT_BYTES as usize;
        // SAFETY: `look` said that the first `end` tokens are published; the extent lives as long as `stream`.
        let records = unsafe {
            self.shared
                .staging
                .published(stream.token_offset(first), bytes)
        };
        out.extend(
            records
                .as_chunks()
                .0
                .iter()
                .zip(first..)
                .map(|(record, i)| {
                    let record = OutputRecord::decode(record);
                    let logprobs = if record.flags & OUTPUT_HAS_LOGPROBS != 0 {
                        self.logprobs(i)
                    } else {
                        None
                    };
                    GeneratedToken {
                        token: record.token,
                        timestamp_ns: record.timestamp_ns,
                        logprobs,
                    }
                }),
        );
        self.num_taken = end;
    }

    /// Log probabilities of published token `i`.
    fn logprobs(&self, i: u32) -> Option<Box<TokenLogprobs>> {
        let stream = &*self.stream;
        if stream.shape.num_logprobs < 0 {
            return None;
        }
        let stride = logprob_stride(stream.shape.num_logprobs) as usize;
        // SAFETY: token `i` is published, and its log probabilities with it; the extent lives as long as `stream`.
        let record = unsafe {
            self.shared
                .staging
                .published(stream.logprob_offset(i), stride)
        };
        read_logprobs(record).map(Box::new)
    }
}

/// Decodes one record; `None` if it holds nothing.
fn read_logprobs(record: &[u8]) -> Option<TokenLogprobs> {
    let (head, mut entries) = decode_logprobs(record)?;
    let sampled = entries.next()?.logprob;
    let top = entries.map(|entry| (entry.token, entry.logprob)).collect();
    Some(TokenLogprobs {
        sampled,
        rank: head.rank,
        top,
    })
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        if let Err(error) = self.cancel() {
            tracing::warn!(request = self.request_id, %error, "cannot cancel an abandoned request");
        }
    }
}

impl std::fmt::Debug for RequestHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            request_id,
            num_taken,
            ..
        } = self;
        write!(
            f,
            "RequestHandle {{ request_id: {request_id}, slot: {}, num_taken: {num_taken} }}",
            self.slot()
        )
    }
}

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Handles move between tasks and threads.
const _: fn() = || {
    fn moves<T: Send + Sync + Unpin>() {}
    moves::<RequestHandle>();
    moves::<MaskFeed>();
    moves::<super::RingClient>();
};
