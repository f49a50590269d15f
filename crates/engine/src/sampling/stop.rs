//! Whether a sequence ends with the token just generated.
//!
//! Order as in vLLM: nothing but a length limit ends a sequence before `min_tokens`; then
//! end-of-sequence tokens, then the request's stop tokens, then the limits, so a stop token that is
//! also the last one allowed reports the stop. Stop *strings* are text, hence the front end's.

/// What can end a sequence. All counts are of generated tokens unless they say otherwise.
#[derive(Clone, Copy, Debug)]
pub struct StopParams<'a> {
    /// The model's end-of-sequence tokens.
    pub eos_ids: &'a [u32],
    /// The request's own stop tokens; they count even where `ignore_eos` is set.
    pub stop_ids: &'a [u32],
    /// Treat the end-of-sequence tokens as ordinary ones.
    pub ignore_eos: bool,
    /// No stop token ends the sequence before this many.
    pub min_tokens: u32,
    /// The sequence ends at this many.
    pub max_tokens: u32,
    /// Tokens in the prompt.
    pub prompt_len: u32,
    /// The sequence ends when prompt and generated tokens together reach this.
    pub max_model_len: u32,
}

/// Why a sequence is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model's end-of-sequence token.
    Eos(u32),
    /// One of the request's stop tokens.
    StopToken(u32),
    /// `max_tokens` were generated.
    MaxTokens,
    /// The context is full.
    ContextEnd,
}

impl FinishReason {
    /// Whether the API calls this `length` (and otherwise `stop`).
    pub fn is_length(self) -> bool {
        matches!(self, Self::MaxTokens | Self::ContextEnd)
    }
}

impl From<FinishReason> for izar_ring::FinishReason {
    fn from(reason: FinishReason) -> Self {
        match reason.is_length() {
            true => Self::Length,
            false => Self::Stop,
        }
    }
}

/// Whether `token` ends the sequence, it being the `num_generated`-th generated token (counted from
/// 1).
pub fn check(token: u32, num_generated: u32, params: &StopParams<'_>) -> Option<FinishReason> {
    if num_generated >= params.min_tokens {
        if !params.ignore_eos && params.eos_ids.contains(&token) {
            return Some(FinishReason::Eos(token));
        }
        if params.stop_ids.contains(&token) {
            return Some(FinishReason::StopToken(token));
        }
    }
    if num_generated >= params.max_tokens {
        return Some(FinishReason::MaxTokens);
    }
    let total = u64::from(params.prompt_len) + u64::from(num_generated);
    (total >= u64::from(params.max_model_len)).then_some(FinishReason::ContextEnd)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: StopParams<'static> = StopParams {
        eos_ids: &[2, 3],
        stop_ids: &[7],
        ignore_eos: false,
        min_tokens: 0,
        max_tokens: 10,
        prompt_len: 5,
        max_model_len: 100,
    };

    #[test]
    fn every_eos_and_stop_token_ends_the_sequence() {
        assert_eq!(check(2, 1, &PARAMS), Some(FinishReason::Eos(2)));
        assert_eq!(check(3, 1, &PARAMS), Some(FinishReason::Eos(3)));
        assert_eq!(check(7, 1, &PARAMS), Some(FinishReason::StopToken(7)));
        assert_eq!(check(4, 1, &PARAMS), None);
    }

    #[test]
    fn ignore_eos_ignores_all_of_them_but_not_stop_tokens() {
        let params = StopParams {
            ignore_eos: true,
            ..PARAMS
        };
        assert_eq!(check(2, 1, &params), None);
        assert_eq!(check(3, 1, &params), None);
        assert_eq!(check(7, 1, &params), Some(FinishReason::StopToken(7)));
        let both = StopParams {
            stop_ids: &[2],
            ..params
        };
        assert_eq!(check(2, 1, &both), Some(FinishReason::StopToken(2)));
    }

    #[test]
    fn min_tokens_come_before_stop_tokens_and_do_not_count_the_prompt() {
        let params = StopParams {
            min_tokens: 4,
            ..PARAMS
        };
        assert_eq!(check(2, 3, &params), None);
        assert_eq!(check(7, 3, &params), None);
        assert_eq!(check(2, 4, &params), Some(FinishReason::Eos(2)));
    }

    #[test]
    fn a_stop_token_at_the_limit_is_a_stop() {
        assert_eq!(check(2, 10, &PARAMS), Some(FinishReason::Eos(2)));
        assert_eq!(check(4, 10, &PARAMS), Some(FinishReason::MaxTokens));
        assert_eq!(check(4, 9, &PARAMS), None);
    }

    #[test]
    fn the_context_end_holds_even_before_min_tokens() {
        let params = StopParams {
            max_model_len: 8,
            min_tokens: 6,
            ..PARAMS
        };
        assert_eq!(check(4, 2, &params), None);
        let end = check(2, 3, &params);
        assert_eq!(end, Some(FinishReason::ContextEnd));
        assert!(end.is_some_and(FinishReason::is_length));
        assert!(!FinishReason::Eos(2).is_length());
    }

    #[test]
    fn lengths_near_the_integer_limit_do_not_wrap() {
        let params = StopParams {
            prompt_len: u32::MAX,
            max_model_len: u32::MAX,
            max_tokens: u32::MAX,
            ..PARAMS
        };
        assert_eq!(check(4, 5, &params), Some(FinishReason::ContextEnd));
    }
}
