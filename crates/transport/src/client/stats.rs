//! What the client counts, for metrics. Counters are relaxed atomics: each is exact, together they are no snapshot.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The client's gauges and counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientStats {
    /// Slots of the lease.
    pub num_slots: u32,
    /// Slots in use now, those that the engine has not given back yet included.
    pub slots_in_use: u32,
    /// Size of the lease's input arena in bytes.
    pub input_bytes: u64,
    /// Of which in use now.
    pub input_used_bytes: u64,
    /// Size of the lease's output arena in bytes.
    pub output_bytes: u64,
    /// Of which in use now; a slow reader of a finished request still holds its part.
    pub output_used_bytes: u64,
    /// Requests submitted whose first token (or end) has not come yet.
    pub num_pending: u64,
    /// Requests taken so far.
    pub num_submitted: u64,
    /// Requests refused because the ring was full, so far.
    pub num_refused: u64,
    /// Requests that ended by a stop token or at their length limit, so far.
    pub num_completed: u64,
    /// Requests that ended by cancellation, so far.
    pub num_cancelled: u64,
    /// Requests that ended by an error, so far.
    pub num_failed: u64,
    /// Tokens received so far.
    pub num_tokens: u64,
    /// Times the token reader has read the progress array.
    pub num_polls: u64,
    /// Of which brought something.
    pub num_polls_with_news: u64,
}

/// The counters behind [`ClientStats`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) pending: Counter,
    pub(super) submitted: Counter,
    pub(super) refused: Counter,
    pub(super) completed: Counter,
    pub(super) cancelled: Counter,
    pub(super) failed: Counter,
    pub(super) tokens: Counter,
    pub(super) polls: Counter,
    pub(super) polls_with_news: Counter,
    /// Moving average of how long requests take, in microseconds.
    mean_request_us: AtomicU64,
}

/// A relaxed counter: it orders nothing.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    /// A request took this long. Called by the token reader only.
    pub(super) fn took(&self, time: Duration) {
        // Relaxed: one writer, and nothing hangs on it.
        let (new, old) = (
            time.as_micros() as u64,
            self.mean_request_us.load(Ordering::Relaxed),
        );
        let mean = if old == 0 {
            new
        } else {
            old - old / 8 + new / 8
        };
        self.mean_request_us.store(mean, Ordering::Relaxed);
    }

    /// When something will probably be free, by Little's law: the mean time of a request over how many there are.
    pub(super) fn retry_after(&self, in_flight: u32) -> Duration {
        let mean = Duration::from_micros(self.mean_request_us.load(Ordering::Relaxed));
        (mean / in_flight.max(1)).clamp(Duration::from_millis(100), Duration::from_secs(30))
    }
}
