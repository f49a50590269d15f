//! What the ring's client says, in the API's words.

use std::time::Duration;

use izar_transport::client::{EngineError, EngineHealth, RequestError, SubmitError};

use crate::error::{ApiError, Shortage};

/// The engine or the ring could not carry a request through.
pub fn of_request(error: &RequestError) -> ApiError {
    let unavailable = |reason| ApiError::EngineUnavailable { reason };
    match error {
        RequestError::Engine(error) => of_engine(*error),
        RequestError::EngineStopped | RequestError::ClientClosed => unavailable("it is stopping"),
        RequestError::EngineLost(_) => unavailable("it gives no sign of life"),
        RequestError::EngineFailed(_) => unavailable("it has failed"),
        RequestError::LeaseRevoked => unavailable("it took this front end for dead"),
        RequestError::Transport(_) => unavailable("its memory cannot be reached"),
        RequestError::CorruptRing(_) | RequestError::ReaderFailed => ApiError::EngineFailed {
            reason: error.to_string(),
            client_fault: false,
        },
    }
}

fn of_engine(error: EngineError) -> ApiError {
    let client_fault = match error {
        EngineError::EngineStopping | EngineError::EngineFailed | EngineError::EngineRestarted => {
            return ApiError::EngineUnavailable {
                reason: "it is stopping",
            };
        }
        EngineError::NeverFits
        | EngineError::TooLong
        | EngineError::NothingAllowed
        | EngineError::BadRequest(_) => true,
        EngineError::NonFiniteLogits | EngineError::RequestChanged | EngineError::MaskLate => false,
    };
    ApiError::EngineFailed {
        reason: error.to_string(),
        client_fault,
    }
}

/// There is no room now, and probably some in `retry_after`.
pub fn at_capacity(shortage: Shortage, retry_after: Duration) -> ApiError {
    ApiError::AtCapacity {
        shortage,
        retry_after_s: retry_after.as_secs().clamp(1, 60) as u32,
    }
}

/// A request did not get into the ring.
pub fn of_submit(error: &SubmitError) -> ApiError {
    match error {
        SubmitError::Full { retry_after, .. } => at_capacity(Shortage::RingFull, *retry_after),
        SubmitError::InputTooLarge { .. }
        | SubmitError::OutputTooLarge { .. }
        | SubmitError::Invalid(_) => ApiError::EngineFailed {
            reason: error.to_string(),
            client_fault: true,
        },
        SubmitError::EngineNotReady(health) => of_health(*health),
        SubmitError::Disconnected(error) => of_request(error),
    }
}

/// The engine takes no requests now.
pub fn of_health(health: EngineHealth) -> ApiError {
    ApiError::EngineUnavailable {
        reason: match health {
            EngineHealth::Ready => "it was busy changing state",
            EngineHealth::Starting => "it is still loading",
            EngineHealth::Draining => "it is shutting down",
            EngineHealth::Stopped => "it has stopped",
            EngineHealth::Failed(_) => "it has failed",
            EngineHealth::Lost => "it gives no sign of life",
        },
    }
}
