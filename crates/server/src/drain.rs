//! Shutting down without cutting answers off: what is in flight is counted, and nothing new comes in while draining.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::admission::Admitted;
use crate::error::{ApiError, Shortage};

/// The count of answers being made, and whether more may start.
#[derive(Debug, Default)]
pub struct Drain {
    /// Most answers at once, where there is a limit.
    max_in_flight: Option<usize>,
    draining: AtomicBool,
    in_flight: AtomicUsize,
    idle: Notify,
}

/// An answer being made; it ends when this is dropped.
#[derive(Debug)]
pub struct InFlight {
    drain: Arc<Drain>,
    admitted: Option<Admitted>,
}

impl InFlight {
    /// Keeps `admitted` for as long as the answer is being made.
    #[must_use]
    pub fn holding(mut self, admitted: Admitted) -> Self {
        self.admitted = Some(admitted);
        self
    }
}

impl Drain {
    /// Lets at most `max_in_flight` answers be made at once, where that is given.
    pub fn new(max_in_flight: Option<usize>) -> Self {
        Self {
            max_in_flight,
            ..Self::default()
        }
    }

    /// Starts an answer.
    ///
    /// # Errors
    /// [`ApiError::Draining`] once the server is shutting down, [`ApiError::AtCapacity`] where too many are being made.
    pub fn enter(self: &Arc<Self>) -> Result<InFlight, ApiError> {
        // SYNC drain: counted first, then the flag is read; `begin` sets the flag, then `wait_idle` reads the count. Both need the total order of
        // SeqCst, or each could miss the other's write and an answer would start that nobody waits for.
        let before = self.in_flight.fetch_add(1, Ordering::SeqCst);
        let in_flight = InFlight {
            drain: Arc::clone(self),
            admitted: None,
        };
        if self.draining.load(Ordering::SeqCst) {
            Err(ApiError::Draining)
        } else if self.max_in_flight.is_some_and(|most| before >= most) {
            Err(ApiError::AtCapacity {
                shortage: Shortage::TooManyRequests,
                retry_after_s: 1,
            })
        } else {
            Ok(in_flight)
        }
    }

    /// From now on nothing new starts.
    pub fn begin(&self) {
        // SYNC drain: pairs with `enter`.
        self.draining.store(true, Ordering::SeqCst);
    }

    /// Whether the server is shutting down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Answers being made now.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Returns once no answer is being made.
    pub async fn wait_idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.in_flight() == 0 {
                return;
            }
            idle.await;
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // Room for other sequences first: whoever sees the answer gone finds it.
        drop(self.admitted.take());
        if self.drain.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.drain.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_answers_are_made_at_once_than_allowed() {
        let drain = Arc::new(Drain::new(Some(1)));
        let answer = drain.enter().expect("room");
        for _ in 0..2 {
            assert!(matches!(drain.enter(), Err(ApiError::AtCapacity { .. })));
        }
        drop(answer);
        assert!(drain.enter().is_ok());
    }

    #[tokio::test]
    async fn drain_waits_for_the_last_answer_and_starts_no_more() {
        let drain = Arc::new(Drain::default());
        let answer = drain.enter().expect("open");
        drain.begin();
        assert_eq!(drain.enter().err(), Some(ApiError::Draining));
        let waiting = tokio::spawn({
            let drain = Arc::clone(&drain);
            async move { drain.wait_idle().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(answer);
        waiting.await.expect("idle");
        assert_eq!(drain.in_flight(), 0);
    }
}
