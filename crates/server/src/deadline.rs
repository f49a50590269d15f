//! When a request must be done.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use crate::error::ApiError;

/// A request's last moment.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    at: Instant,
    allowed: Duration,
}

impl Deadline {
    /// `allowed` after `arrival`.
    pub fn new(arrival: Instant, allowed: Duration) -> Self {
        Self {
            at: arrival + allowed,
            allowed,
        }
    }

    /// What a request is told that was not done in time.
    pub fn error(self) -> ApiError {
        ApiError::TimedOut {
            seconds: self.allowed.as_secs(),
        }
    }

    /// Resolves at the deadline.
    pub fn sleep(self) -> Pin<Box<Sleep>> {
        Box::pin(tokio::time::sleep_until(self.at.into()))
    }

    /// Runs `work`, at most until `deadline` where there is one.
    ///
    /// # Errors
    /// That of `work`, or [`ApiError::TimedOut`].
    pub async fn bound<T>(
        deadline: Option<Self>,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        match deadline {
            None => work.await,
            Some(deadline) => tokio::time::timeout_at(deadline.at.into(), work)
                .await
                .unwrap_or_else(|_| Err(deadline.error())),
        }
    }
}
