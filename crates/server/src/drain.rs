//! Shutting down without cutting answers off: what is in flight is counted, and nothing new comes in while draining.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::error::ApiError;

/// The count of answers being made, and whether more may start.
#[derive(Debug, Default)]
pub struct Drain {
    draining: AtomicBool,
    in_flight: AtomicUsize,
    idle: Notify,
}

/// An answer being made; it ends when this is dropped.
#[derive(Debug)]
pub struct InFlight(Arc<Drain>);

impl Drain {
    /// Starts an answer.
    ///
    /// # Errors
    /// [`ApiError::Draining`] once the server is shutting down.
    pub fn enter(self: &Arc<Self>) -> Result<InFlight, ApiError> {
        // SYNC drain: counted first, then the flag is read; `begin` sets the flag, then `wait_idle` reads the count. Both need the total order of
        // SeqCst, or each could miss the other's write and an answer would start that nobody waits for.
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let in_flight = InFlight(Arc::clone(self));
        if self.draining.load(Ordering::SeqCst) {
            Err(ApiError::Draining)
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
        if self.0.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
