//! Why the engine refuses or fails a request, as numbers that fit in a status word.

use core::fmt;

/// What is wrong with a request record. The front end wrote it; the engine checks all of it.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BadRequest {
    /// The record's generation is not the submitted one.
    Generation = 0x100,
    /// A flag this version does not know.
    Flags = 0x101,
    /// The prompt is empty, or its span is misaligned or not inside the lease's input range.
    Prompt = 0x102,
    /// A prompt token is not in the vocabulary.
    PromptToken = 0x103,
    /// The output range is misaligned, too small or not inside the lease's output range.
    Output = 0x104,
    /// `num_logprobs` is out of range, or its range is misaligned or not inside the lease's output range.
    Logprobs = 0x105,
    /// `max_tokens` is 0 or more than the output range holds.
    MaxTokens = 0x106,
    /// `min_tokens` is above `max_tokens`.
    MinTokens = 0x107,
    /// `temperature` is not a finite number of at least 0.
    Temperature = 0x108,
    /// `top_p` is not in (0, 1].
    TopP = 0x109,
    /// `min_p` is not in [0, 1].
    MinP = 0x10a,
    /// `repetition_penalty` is not a finite number above 0.
    RepetitionPenalty = 0x10b,
    /// `presence_penalty` or `frequency_penalty` is not finite.
    Penalty = 0x10c,
    /// The stop-id span is bad or holds an id outside the vocabulary.
    StopIds = 0x10d,
    /// The bad-word span is bad, its lists do not add up, or one holds an id outside the vocabulary.
    BadWords = 0x10e,
    /// The allowed-id span is bad or holds an id outside the vocabulary.
    AllowedIds = 0x10f,
    /// The logit-bias span is bad, or a pair has an id outside the vocabulary or a bias that is not finite.
    LogitBias = 0x110,
    /// The mask area is bad, not room for two masks, or there although the request is not flagged.
    TokenMask = 0x111,
    /// The lease was revoked between submission and claim; nobody is left to read the answer.
    LeaseRevoked = 0x112,
    /// `num_prompt_logprobs` is out of range, or its range is misaligned or not inside the lease's output range.
    PromptLogprobs = 0x113,
}

const BAD_REQUESTS: [BadRequest; 20] = [
    BadRequest::Generation,
    BadRequest::Flags,
    BadRequest::Prompt,
    BadRequest::PromptToken,
    BadRequest::Output,
    BadRequest::Logprobs,
    BadRequest::MaxTokens,
    BadRequest::MinTokens,
    BadRequest::Temperature,
    BadRequest::TopP,
    BadRequest::MinP,
    BadRequest::RepetitionPenalty,
    BadRequest::Penalty,
    BadRequest::StopIds,
    BadRequest::BadWords,
    BadRequest::AllowedIds,
    BadRequest::LogitBias,
    BadRequest::TokenMask,
    BadRequest::LeaseRevoked,
    BadRequest::PromptLogprobs,
];

/// Number of the first [`BadRequest`].
const BAD_REQUEST_BASE: u16 = 0x100;

impl BadRequest {
    /// The number in the status word.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The variant with that number.
    pub const fn from_code(code: u16) -> Option<Self> {
        let Some(index) = code.checked_sub(BAD_REQUEST_BASE) else {
            return None;
        };
        if (index as usize) < BAD_REQUESTS.len() {
            Some(BAD_REQUESTS[index as usize])
        } else {
            None
        }
    }
}

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Generation => "request record does not belong to the submitted generation",
            Self::Flags => "request sets a flag this engine does not know",
            Self::Prompt => "prompt is empty or lies outside the lease's input range",
            Self::PromptToken => "prompt holds a token id outside the vocabulary",
            Self::Output => "output range is too small or outside the lease's output range",
            Self::Logprobs => "logprobs are out of range or outside the lease's output range",
            Self::MaxTokens => "max_tokens must be at least 1 and fit the output range",
            Self::MinTokens => "min_tokens must not exceed max_tokens",
            Self::Temperature => "temperature must be a finite number of at least 0",
            Self::TopP => "top_p must be above 0 and at most 1",
            Self::MinP => "min_p must be between 0 and 1",
            Self::RepetitionPenalty => "repetition_penalty must be a finite number above 0",
            Self::Penalty => "presence_penalty and frequency_penalty must be finite",
            Self::StopIds => "stop ids must be token ids inside the lease's input range",
            Self::BadWords => {
                "bad words must be non-empty lists of token ids inside the lease's input range"
            }
            Self::AllowedIds => "allowed ids must be token ids inside the lease's input range",
            Self::LogitBias => "logit bias must be pairs of a token id and a finite number",
            Self::TokenMask => {
                "mask area must be room for two masks inside the lease's input range"
            }
            Self::LeaseRevoked => "lease was revoked before the engine claimed the request",
            Self::PromptLogprobs => {
                "prompt logprobs are out of range or outside the lease's output range"
            }
        })
    }
}

impl core::error::Error for BadRequest {}

/// Number of [`EngineError::NeverFits`].
pub const ERROR_NEVER_FITS: u16 = 1;
/// Number of [`EngineError::TooLong`].
pub const ERROR_TOO_LONG: u16 = 2;
/// Number of [`EngineError::NonFiniteLogits`].
pub const ERROR_NON_FINITE_LOGITS: u16 = 3;
/// Number of [`EngineError::EngineStopping`].
pub const ERROR_ENGINE_STOPPING: u16 = 4;
/// Number of [`EngineError::EngineFailed`].
pub const ERROR_ENGINE_FAILED: u16 = 5;
/// Number of [`EngineError::EngineRestarted`].
pub const ERROR_ENGINE_RESTARTED: u16 = 6;
/// Number of [`EngineError::NothingAllowed`].
pub const ERROR_NOTHING_ALLOWED: u16 = 7;
/// Number of [`EngineError::RequestChanged`].
pub const ERROR_REQUEST_CHANGED: u16 = 8;
/// Number of [`EngineError::MaskLate`].
pub const ERROR_MASK_LATE: u16 = 9;

/// Why the engine ended a request, or itself, with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineError {
    /// Prompt and output together can never fit in the KV blocks the engine has.
    NeverFits,
    /// The prompt is longer than the model allows.
    TooLong,
    /// The model produced logits that are not finite.
    NonFiniteLogits,
    /// The engine is stopping and takes or finishes no more.
    EngineStopping,
    /// The engine failed in the middle of the request (its log says why).
    EngineFailed,
    /// A new engine took the ring over; the former one's work is lost.
    EngineRestarted,
    /// The request's own constraints (allowed ids, mask, bad words, minimum length) left no token to sample.
    NothingAllowed,
    /// The front end changed the request after it was validated.
    RequestChanged,
    /// The front end did not deliver a token mask in time.
    MaskLate,
    /// The request record is wrong.
    BadRequest(BadRequest),
}

impl EngineError {
    /// The number in the status word; never 0.
    pub const fn code(self) -> u16 {
        match self {
            Self::NeverFits => ERROR_NEVER_FITS,
            Self::TooLong => ERROR_TOO_LONG,
            Self::NonFiniteLogits => ERROR_NON_FINITE_LOGITS,
            Self::EngineStopping => ERROR_ENGINE_STOPPING,
            Self::EngineFailed => ERROR_ENGINE_FAILED,
            Self::EngineRestarted => ERROR_ENGINE_RESTARTED,
            Self::NothingAllowed => ERROR_NOTHING_ALLOWED,
            Self::RequestChanged => ERROR_REQUEST_CHANGED,
            Self::MaskLate => ERROR_MASK_LATE,
            Self::BadRequest(bad) => bad.code(),
        }
    }

    /// The error with that number.
    pub const fn from_code(code: u16) -> Option<Self> {
        Some(match code {
            ERROR_NEVER_FITS => Self::NeverFits,
            ERROR_TOO_LONG => Self::TooLong,
            ERROR_NON_FINITE_LOGITS => Self::NonFiniteLogits,
            ERROR_ENGINE_STOPPING => Self::EngineStopping,
            ERROR_ENGINE_FAILED => Self::EngineFailed,
            ERROR_ENGINE_RESTARTED => Self::EngineRestarted,
            ERROR_NOTHING_ALLOWED => Self::NothingAllowed,
            ERROR_REQUEST_CHANGED => Self::RequestChanged,
            ERROR_MASK_LATE => Self::MaskLate,
            _ => match BadRequest::from_code(code) {
                Some(bad) => Self::BadRequest(bad),
                None => return None,
            },
        })
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverFits => f.write_str("request can never fit in the engine's KV blocks"),
            Self::TooLong => f.write_str("prompt is longer than the model's maximum length"),
            Self::NonFiniteLogits => f.write_str("model produced logits that are not finite"),
            Self::EngineStopping => f.write_str("engine is stopping"),
            Self::EngineFailed => f.write_str("engine failed while the request ran"),
            Self::EngineRestarted => f.write_str("engine was restarted while the request ran"),
            Self::NothingAllowed => f.write_str("request's constraints leave no token to sample"),
            Self::RequestChanged => {
                f.write_str("request was changed after the engine validated it")
            }
            Self::MaskLate => f.write_str("front end did not deliver a token mask in time"),
            Self::BadRequest(bad) => bad.fmt(f),
        }
    }
}

impl core::error::Error for EngineError {}
