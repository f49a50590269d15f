//! What a caller asks for: [`Submission`] and [`SamplingParams`]. Plain data; nothing here touches the ring.

/// How the next token is chosen. The default is greedy decoding with no penalty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    /// Softmax temperature; 0 takes the most probable token.
    pub temperature: f32,
    /// Keep the smallest set of tokens whose probabilities sum to at least this; 1 keeps all.
    pub top_p: f32,
    /// Keep the `top_k` most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep tokens at least this fraction as probable as the most probable one; 0 keeps all.
    pub min_p: f32,
    /// Divides (or multiplies, if negative) the logits of tokens seen in prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token already generated; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted once per earlier occurrence in the output; 0 is off.
    pub frequency_penalty: f32,
    /// Seed of the request's random numbers; without one the engine picks.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: None,
        }
    }
}

/// One request. Everything is copied into the ring by `submit`; nothing needs to outlive the call.
#[derive(Debug, Clone, Copy)]
pub struct Submission<'a> {
    /// Token ids of the prompt, at least one.
    pub prompt: &'a [u32],
    /// Most tokens to generate, at least one. Output space for all of them is taken at once, so ask for no more than the
    /// context window leaves.
    pub max_tokens: u32,
    /// Stop tokens are not sampled before this many tokens are generated.
    pub min_tokens: u32,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Token ids that end the request, besides the model's own end-of-sequence tokens (which the engine knows).
    pub stop_token_ids: &'a [u32],
    /// Generate on through end-of-sequence tokens.
    pub ignore_eos: bool,
    /// `None`: no log probabilities. `Some(0)`: of the sampled token. `Some(n)`: of the `n` most probable ones, too.
    pub logprobs: Option<u32>,
    /// Added to the logits: pairs of token id and bias.
    pub logit_bias: &'a [(u32, f32)],
    /// If given, no other token is ever sampled.
    pub allowed_token_ids: Option<&'a [u32]>,
    /// Every token waits for a mask of its own: take the request's [`super::MaskFeed`] and deliver them. Tokens of the
    /// vocabulary, as the engine counts them; 0 for a request without masks.
    pub masked_vocab_size: u32,
    /// `None`: no log probabilities of the prompt. `Some(n)`: of each of its tokens but the first, and of the `n` most probable
    /// ones at its place.
    pub prompt_logprobs: Option<u32>,
    /// Token sequences that must not appear in the output.
    pub bad_words: &'a [&'a [u32]],
    /// Lower runs earlier; the same value runs first come, first served.
    pub priority: i32,
    /// The caller's number for the request, for logs on both sides; 0 lets the client count.
    pub request_id: u64,
}

impl<'a> Submission<'a> {
    /// A greedy request for up to `max_tokens` tokens after `prompt`; set the other fields as needed.
    pub fn new(prompt: &'a [u32], max_tokens: u32) -> Submission<'a> {
        Submission {
            prompt,
            max_tokens,
            min_tokens: 0,
            sampling: SamplingParams::default(),
            stop_token_ids: &[],
            ignore_eos: false,
            logprobs: None,
            logit_bias: &[],
            allowed_token_ids: None,
            masked_vocab_size: 0,
            prompt_logprobs: None,
            bad_words: &[],
            priority: 0,
            request_id: 0,
        }
    }
}
