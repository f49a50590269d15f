//! How many sequences may be in the engine's hands at once: those it can run, and so many more that wait.
//!
//! Without a limit, sequences queue until the ring is full. With one, a request that would make the queue longer is refused at once, so
//! that its client can go elsewhere instead of waiting for a slot behind all others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts sequences in the engine's hands and says when there are too many.
#[derive(Debug)]
pub struct Admission {
    /// Most that the engine runs at once.
    max_running: usize,
    /// Most that may wait beside them.
    max_queued: Option<usize>,
    num_sequences: AtomicUsize,
}

/// Sequences that were let in; they count until this is dropped.
#[derive(Debug)]
pub struct Admitted {
    admission: Arc<Admission>,
    num_sequences: usize,
}

impl Admission {
    /// Lets in what the engine runs at once, `max_running`, and `max_queued` more; all, where that is none.
    pub fn new(max_running: usize, max_queued: Option<usize>) -> Self {
        Self {
            max_running,
            max_queued,
            num_sequences: AtomicUsize::new(0),
        }
    }

    /// Whether there is a limit at all.
    pub fn is_limited(&self) -> bool {
        self.max_queued.is_some()
    }

    /// Lets `num_sequences` in together; `None` where they do not fit now. `num_waiting` is how many the engine says it
    /// keeps waiting: with memory short, it runs fewer than it could.
    pub fn admit(self: &Arc<Self>, num_sequences: usize, num_waiting: u64) -> Option<Admitted> {
        let limit = match self.max_queued {
            Some(queued) if num_waiting > 0 && num_waiting >= queued as u64 => return None,
            Some(queued) => queued.saturating_add(self.max_running),
            None => usize::MAX,
        };
        // Relaxed: a count that publishes nothing.
        self.num_sequences
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
                let after = before.saturating_add(num_sequences);
                // A request that alone exceeds the limit is let into an idle engine: there is no better time for it.
                (after <= limit || before == 0).then_some(after)
            })
            .ok()?;
        Some(Admitted {
            admission: Arc::clone(self),
            num_sequences,
        })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        // Relaxed: see `admit`.
        self.admission
            .num_sequences
            .fetch_sub(self.num_sequences, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_run_and_queue_are_let_in_and_room_comes_back() {
        let admission = Arc::new(Admission::new(2, Some(1)));
        let first = admission.admit(2, 0).expect("room");
        let _second = admission.admit(1, 0).expect("room in the queue");
        assert!(admission.admit(1, 0).is_none());
        drop(first);
        assert!(admission.admit(2, 0).is_some());
    }

    #[test]
    fn queue_that_the_engine_reports_as_full_lets_nobody_in() {
        let admission = Arc::new(Admission::new(100, Some(3)));
        assert!(admission.admit(1, 2).is_some());
        assert!(admission.admit(1, 3).is_none());
        assert!(Arc::new(Admission::new(1, Some(0))).admit(1, 0).is_some());
    }

    #[test]
    fn without_a_limit_and_into_an_idle_engine_everything_is_let_in() {
        let open = Arc::new(Admission::new(1, None));
        let _held = open.admit(1000, 1000).expect("no limit");
        assert!(open.admit(1000, 1000).is_some());
        assert!(Arc::new(Admission::new(1, Some(1))).admit(5, 0).is_some());
    }
}
