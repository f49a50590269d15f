//! What can go wrong with a request, and how it is said over HTTP.
//!
//! Every failure of the API is one [`ApiError`]. Its HTTP status is decided in [`ApiError::status`] and nowhere else, and its
//! body is always `{"error":{"message","type","param","code"}}`. Messages are ours, bounded, and never contain what the client sent:
//! a body of megabytes must not come back, and logs of errors must not hold prompts.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// Longest `message` sent, in bytes. Only messages of chat templates and of model metadata can come near it.
const MAX_MESSAGE_BYTES: usize = 1024;

/// Why a request was refused or could not be finished.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The body is not a JSON object.
    #[error("the body is not valid JSON: {reason} at line {line}, column {column}")]
    MalformedJson {
        /// What the parser objects to, in our words.
        reason: &'static str,
        /// 1-based line of the objection.
        line: usize,
        /// 1-based column of the objection.
        column: usize,
    },
    /// The body is JSON but not an object.
    #[error("the body must be a JSON object")]
    NotAnObject,
    /// A field holds a value it may not hold.
    #[error("`{param}` {problem}")]
    InvalidField {
        /// Path of the field, such as `messages[2].role`.
        param: String,
        /// What is wrong and what would be right, as a predicate ("must be …").
        problem: String,
    },
    /// The prompt, or the prompt and the tokens asked for, do not fit the model's context.
    #[error("this model's context is {max_model_len} tokens, but the prompt has {prompt_tokens} tokens{}",
        match max_tokens { Some(n) => format!(" and `max_tokens` asks for {n} more"), None => " and leaves no room for an answer".to_owned() })]
    ContextLength {
        /// Field that holds the prompt.
        param: &'static str,
        /// Length of the prompt, tokens.
        prompt_tokens: usize,
        /// Tokens asked for, where that is what does not fit.
        max_tokens: Option<u64>,
        /// The model's limit, tokens.
        max_model_len: usize,
    },
    /// The named model is not served here.
    #[error("the model does not exist; this server serves: {served}")]
    UnknownModel {
        /// Names that would have been accepted.
        served: String,
    },
    /// The chat template refused the conversation (its `raise_exception`) or failed on it.
    #[error("the chat template refused the messages: {reason}")]
    TemplateRefused {
        /// The template's own words.
        reason: String,
    },
    /// No key, or a wrong one.
    #[error("a valid API key is required: send it as `Authorization: Bearer KEY`")]
    Unauthorized,
    /// No such path.
    #[error("no such endpoint")]
    NoSuchEndpoint,
    /// The path exists, the method is not for it.
    #[error("this endpoint does not accept that HTTP method")]
    MethodNotAllowed,
    /// The body is longer than the server accepts.
    #[error("the body is larger than the {limit_bytes} bytes this server accepts")]
    BodyTooLarge {
        /// The limit, bytes.
        limit_bytes: usize,
    },
    /// The body broke off or was framed wrongly.
    #[error("the body could not be read to its end")]
    BodyUnreadable,
    /// There is no room now: try again soon.
    #[error("the server is at capacity: {shortage}; try again in {retry_after_s} s")]
    AtCapacity {
        /// What there is no room in.
        shortage: Shortage,
        /// What `Retry-After` says, seconds.
        retry_after_s: u32,
    },
    /// The engine cannot take work now.
    #[error("the engine cannot take requests now: {reason}")]
    EngineUnavailable {
        /// Its state in a word or two.
        reason: &'static str,
    },
    /// The server is shutting down.
    #[error("the server is shutting down")]
    Draining,
    /// The answer was not finished in the time that the server allows.
    #[error("the request was not finished within the {seconds} s this server allows")]
    TimedOut {
        /// The limit, seconds.
        seconds: u64,
    },
    /// The engine refused or failed this sequence.
    #[error("the engine could not finish the request: {reason}")]
    EngineFailed {
        /// The engine's reason.
        reason: String,
        /// True where the request itself is the cause, and another try would end the same way.
        client_fault: bool,
    },
}

/// What an admitted request would have needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// Ring slots, or room for prompts and outputs in the ring.
    RingFull,
    /// A place in the queue.
    QueueFull,
    /// A place among the requests handled at once.
    TooManyRequests,
    /// A place among those who watch.
    TooManyWatchers,
}

impl Shortage {
    /// All of them, in the order of their counters.
    pub const ALL: [Self; 4] = [
        Self::RingFull,
        Self::QueueFull,
        Self::TooManyRequests,
        Self::TooManyWatchers,
    ];

    /// The value of the label `reason`.
    pub fn label(self) -> &'static str {
        match self {
            Self::RingFull => "ring_full",
            Self::QueueFull => "queue_full",
            Self::TooManyRequests => "too_many_requests",
            Self::TooManyWatchers => "too_many_watchers",
        }
    }
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::RingFull => "every slot is taken",
            Self::QueueFull => "the queue is full",
            Self::TooManyRequests => "too many requests at once",
            Self::TooManyWatchers => "too many watch already",
        })
    }
}

impl ApiError {
    /// The HTTP status of this error: the one place where it is decided.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::MalformedJson { .. }
            | Self::NotAnObject
            | Self::InvalidField { .. }
            | Self::ContextLength { .. }
            | Self::TemplateRefused { .. }
            | Self::BodyUnreadable => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::UnknownModel { .. } | Self::NoSuchEndpoint => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::AtCapacity { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::EngineUnavailable { .. } | Self::Draining => StatusCode::SERVICE_UNAVAILABLE,
            Self::TimedOut { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::EngineFailed {
                client_fault: true, ..
            } => StatusCode::BAD_REQUEST,
            Self::EngineFailed {
                client_fault: false,
                ..
            } => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// A field that holds what it may not; `problem` reads on from the field's name.
    pub fn field(param: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::InvalidField {
            param: param.into(),
            problem: problem.into(),
        }
    }

    fn kind(&self) -> &'static str {
        match self.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            StatusCode::INTERNAL_SERVER_ERROR => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn param(&self) -> Option<&str> {
        match self {
            Self::InvalidField { param, .. } => Some(param),
            Self::ContextLength { param, .. } => Some(param),
            Self::UnknownModel { .. } => Some("model"),
            Self::TemplateRefused { .. } => Some("messages"),
            _ => None,
        }
    }

    fn code(&self) -> Option<&'static str> {
        Some(match self {
            Self::MalformedJson { .. } | Self::NotAnObject => "invalid_json",
            Self::InvalidField { .. } => "invalid_value",
            Self::ContextLength { .. } => "context_length_exceeded",
            Self::UnknownModel { .. } => "model_not_found",
            Self::TemplateRefused { .. } => "chat_template_error",
            Self::Unauthorized => "invalid_api_key",
            Self::NoSuchEndpoint => "unknown_url",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::BodyTooLarge { .. } => "request_too_large",
            Self::AtCapacity { .. } => "rate_limit_exceeded",
            Self::EngineUnavailable { .. } => "engine_unavailable",
            Self::Draining => "shutting_down",
            Self::TimedOut { .. } => "request_timeout",
            Self::EngineFailed { .. } => "engine_error",
            Self::BodyUnreadable => return None,
        })
    }

    /// The body: `{"error":{"message","type","param","code"}}`.
    pub fn body(&self) -> serde_json::Value {
        let mut message = self.to_string();
        if message.len() > MAX_MESSAGE_BYTES {
            let cut = (0..=MAX_MESSAGE_BYTES)
                .rev()
                .find(|&at| message.is_char_boundary(at));
            message.truncate(cut.unwrap_or(0));
            message.push('…');
        }
        json!({"error": {"message": message, "type": self.kind(), "param": self.param(), "code": self.code()}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        tracing::debug!(status = self.status().as_u16(), error = %self, "request refused");
        let mut response = (
            self.status(),
            axum::body::Body::from(self.body().to_string()),
        )
            .into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        match self {
            Self::AtCapacity {
                shortage,
                retry_after_s,
            } => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(retry_after_s));
                // For whoever counts refusals.
                response.extensions_mut().insert(shortage);
            }
            Self::EngineUnavailable { .. } | Self::Draining => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(5_u32));
            }
            Self::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_has_exactly_the_four_members_openai_documents() {
        let body = ApiError::field("temperature", "must be between 0 and 2").body();
        assert_eq!(
            body["error"]["message"],
            "`temperature` must be between 0 and 2"
        );
        assert_eq!(body["error"]["type"], "invalid_request_error");
        assert_eq!(body["error"]["param"], "temperature");
        assert_eq!(body["error"]["code"], "invalid_value");
        assert_eq!(body["error"].as_object().map(|o| o.len()), Some(4));
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let error = ApiError::TemplateRefused {
            reason: "é".repeat(4000),
        };
        assert!(error.body().to_string().len() < 2048);
    }

    #[test]
    fn capacity_names_when_to_come_back() {
        let refused = ApiError::AtCapacity {
            shortage: Shortage::QueueFull,
            retry_after_s: 1,
        };
        assert!(refused.to_string().contains("queue"));
        let response = refused.into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    }

    #[test]
    fn context_error_names_both_lengths() {
        let text = ApiError::ContextLength {
            param: "messages",
            prompt_tokens: 9000,
            max_tokens: None,
            max_model_len: 8192,
        }
        .to_string();
        assert!(text.contains("9000") && text.contains("8192"), "{text}");
    }
}
