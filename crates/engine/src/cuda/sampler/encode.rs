//! Bindings as words for the device: records first, then what they refer to.
//!
//! Everything is checked here, as [`crate::sampling::RowState::bind`] checks it, so that kernels need not: a binding
//! that fails becomes a row that answers every sample with the reason.

use izar_kernels::{BindingRecord, MappedRegion, RowFlags, SamplerRow};
use izar_ring::{BadRequest, EngineError, LogitBias, MASK_BUFFERS, mask_words};
use izar_transport::TokenMasks;

use crate::driver::RowBinding;
use crate::sampling::elementary::ln_positive;
use crate::sampling::{BadWords, RowLimits, TokenLists, philox};

const RECORD_WORDS: usize = size_of::<BindingRecord>() / 4;
/// Words of a bad word in the lists, beside its prefix.
const BAD_WORD_WORDS: usize = 3;

/// Writes bindings of rows with these limits.
#[derive(Debug)]
pub(super) struct Encoder {
    limits: RowLimits,
    list_capacity: usize,
    /// Where masked rows find their masks.
    ring: Option<MappedRegion>,
    biases: Vec<LogitBias>,
}

/// Words from the start of a slice.
struct Writer<'a> {
    words: &'a mut [u32],
    len: usize,
}

impl Writer<'_> {
    /// Appends words and returns where they start.
    fn push(&mut self, words: impl IntoIterator<Item = u32>) -> u32 {
        let start = self.len;
        for word in words {
            self.words[self.len] = word;
            self.len += 1;
        }
        start as u32
    }
}

/// Where a masked row looks for its masks; addresses are the device's.
struct MaskPlace {
    generation: u32,
    word: u64,
    area: u64,
}

/// What of a binding's history a row needs.
struct History<'a> {
    /// To mark as seen.
    prompt: &'a [u32],
    /// To count.
    generated: &'a [u32],
    /// To look back at.
    recent: &'a [u32],
}

impl Encoder {
    pub(super) fn new(limits: RowLimits, list_capacity: usize) -> Self {
        Self {
            limits,
            list_capacity,
            ring: None,
            biases: Vec::new(),
        }
    }

    /// Masked rows find their masks in `ring` from now on.
    pub(super) fn map_ring(&mut self, ring: MappedRegion) {
        self.ring = Some(ring);
    }

    /// Words that no binding exceeds.
    pub(super) fn max_words(&self) -> usize {
        RECORD_WORDS + self.mask_words() + self.limits.max_model_len + 2 * self.list_capacity
    }

    fn mask_words(&self) -> usize {
        self.limits.vocab_size.div_ceil(32)
    }

    /// Writes as many of the bindings as fit, at least one, and returns how many. `words` has room for
    /// [`Encoder::max_words`].
    pub(super) fn encode(&mut self, bindings: &[RowBinding], words: &mut [u32]) -> usize {
        let mut num_words = 0;
        let fits = bindings.iter().take_while(|binding| {
            num_words += self.words_of(binding);
            num_words <= words.len()
        });
        let count = fits.count().max(1);
        let mut writer = Writer {
            words,
            len: count * RECORD_WORDS,
        };
        for (idx, binding) in bindings[..count].iter().enumerate() {
            let record = self
                .record(binding, &mut writer)
                .unwrap_or_else(|error| broken(binding, error));
            let at = idx * RECORD_WORDS;
            writer.words[at..at + RECORD_WORDS]
                .copy_from_slice(bytemuck::cast_slice(std::slice::from_ref(&record)));
        }
        count
    }

    /// An upper bound of the words of a binding.
    fn words_of(&self, binding: &RowBinding) -> usize {
        let history = binding.history.len().min(self.limits.max_model_len);
        RECORD_WORDS + self.mask_words() + history + 2 * self.list_capacity.min(list_words(binding))
    }

    fn record(
        &mut self,
        binding: &RowBinding,
        writer: &mut Writer<'_>,
    ) -> Result<BindingRecord, EngineError> {
        let prompt_len = binding.limits.prompt_len as usize;
        let split = binding.history.split_at_checked(prompt_len);
        let (prompt, generated) = split.ok_or(EngineError::RequestChanged)?;
        let lists = TokenLists {
            eos_ids: &[],
            stop_ids: &binding.stop_ids,
            allowed_ids: &binding.allowed_ids,
            logit_bias: &binding.logit_bias,
            bad_words: BadWords(&binding.bad_words),
        };
        self.limits
            .check(&binding.params, &lists, prompt, generated)
            .map_err(|_| EngineError::RequestChanged)?;
        self.check_list_words(binding)?;
        let masks = binding.masks.as_ref();
        let masks = masks.map(|masks| self.locate(masks)).transpose()?;

        let has_mask = !binding.allowed_ids.is_empty();
        let history = history(binding, prompt, generated);
        let lists_at = writer.len as u32;
        let num_bad_words = self.push_lists(binding, writer);
        let num_list_words = writer.len as u32 - lists_at;
        let state = state(binding, has_mask, num_bad_words, generated.len());
        Ok(BindingRecord {
            state: with_masks(state, masks),
            row: binding.row,
            lists_at,
            num_list_words,
            mask_at: if has_mask {
                self.push_mask(binding, writer)
            } else {
                0
            },
            prompt_at: writer.push(history.prompt.iter().copied()),
            num_prompt: history.prompt.len() as u32,
            generated_at: writer.push(history.generated.iter().copied()),
            num_generated: history.generated.len() as u32,
            recent_at: writer.push(history.recent.iter().copied()),
            num_recent: history.recent.len() as u32,
            last_token: last_token(binding),
            reserved: [0; 5],
        })
    }

    /// Where the device finds a request's masks. A ring that it does not see has none for it.
    fn locate(&self, masks: &TokenMasks) -> Result<MaskPlace, EngineError> {
        let source = masks.source();
        let words = mask_words(self.limits.vocab_size as u32);
        let area_bytes = u64::from(MASK_BUFFERS * words) * 8;
        let ring = self.ring.as_ref();
        let place = ring.and_then(|ring| {
            ring.address_of(source.area_offset() + area_bytes)?;
            Some(MaskPlace {
                generation: source.generation(),
                word: ring.address_of(source.word_offset())?,
                area: ring.address_of(source.area_offset())?,
            })
        });
        place.ok_or(EngineError::BadRequest(BadRequest::Flags))
    }

    fn check_list_words(&self, binding: &RowBinding) -> Result<(), EngineError> {
        if list_words(binding) <= self.list_capacity {
            return Ok(());
        }
        let lists = [
            (binding.stop_ids.len(), BadRequest::StopIds),
            (2 * binding.logit_bias.len(), BadRequest::LogitBias),
            (bad_word_words(binding), BadRequest::BadWords),
        ];
        let longest = lists.into_iter().max_by_key(|&(len, _)| len);
        Err(longest.map_or(EngineError::RequestChanged, |(_, reason)| {
            EngineError::BadRequest(reason)
        }))
    }

    /// Writes the lists and returns the number of bad words.
    fn push_lists(&mut self, binding: &RowBinding, writer: &mut Writer<'_>) -> u32 {
        let lists_at = writer.len;
        writer.push(binding.stop_ids.iter().copied());
        self.biases.clone_from(&binding.logit_bias);
        // Stable: a token's addends stay in the request's order.
        self.biases.sort_by_key(|pair| pair.token);
        writer.push(
            self.biases
                .iter()
                .flat_map(|pair| [pair.token, pair.bias.to_bits()]),
        );
        let words = || BadWords(&binding.bad_words).iter().flatten();
        let num_bad_words = words().count();
        let mut prefix_at = writer.len - lists_at + BAD_WORD_WORDS * num_bad_words;
        for (&last, prefix) in words().filter_map(|word| word.split_last()) {
            writer.push([last, prefix_at as u32, prefix.len() as u32]);
            prefix_at += prefix.len();
        }
        for (_, prefix) in words().filter_map(|word| word.split_last()) {
            writer.push(prefix.iter().copied());
        }
        num_bad_words as u32
    }

    /// Writes the allowed ids as a mask.
    fn push_mask(&self, binding: &RowBinding, writer: &mut Writer<'_>) -> u32 {
        let len = self.mask_words();
        let start = writer.len;
        let words = &mut writer.words[start..start + len];
        writer.len += len;
        words.fill(0);
        for &token in &binding.allowed_ids {
            words[token as usize / 32] |= 1 << (token % 32);
        }
        start as u32
    }
}

fn bad_word_words(binding: &RowBinding) -> usize {
    let words = BadWords(&binding.bad_words).iter().flatten();
    words.map(|word| BAD_WORD_WORDS + word.len() - 1).sum()
}

/// Words of a binding's lists.
fn list_words(binding: &RowBinding) -> usize {
    binding.stop_ids.len() + 2 * binding.logit_bias.len() + bad_word_words(binding)
}

fn history<'a>(binding: &RowBinding, prompt: &'a [u32], generated: &'a [u32]) -> History<'a> {
    let params = &binding.params;
    let counts_prompt = params.has_repetition_penalty();
    let counts_generated = counts_prompt || params.has_generated_penalty();
    let look_back = BadWords(&binding.bad_words).longest_prefix();
    History {
        prompt: if counts_prompt { prompt } else { &[] },
        generated: if counts_generated { generated } else { &[] },
        recent: &generated[generated.len().saturating_sub(look_back)..],
    }
}

fn state(
    binding: &RowBinding,
    has_mask: bool,
    num_bad_words: u32,
    num_generated: usize,
) -> SamplerRow {
    let params = &binding.params;
    let counts_prompt = params.has_repetition_penalty();
    let flags = [
        (params.is_greedy(), RowFlags::GREEDY),
        (has_mask, RowFlags::HAS_MASK),
        (counts_prompt, RowFlags::COUNTS_PROMPT),
        (
            counts_prompt || params.has_generated_penalty(),
            RowFlags::COUNTS_GENERATED,
        ),
        (binding.limits.ignore_eos, RowFlags::IGNORE_EOS),
    ];
    // The smallest scaled logit that is kept: above what is masked, or what min-p says.
    let smallest = match params.min_p > 0.0 {
        true => ln_positive(params.min_p.max(f32::MIN_POSITIVE)),
        false => f32::MIN,
    };
    SamplerRow {
        flags: flags.iter().filter(|flag| flag.0).map(|flag| flag.1).sum(),
        scale: 1.0 / params.temperature,
        top_p: params.top_p,
        top_k: params.top_k,
        max_key: smallest.to_bits() & 0x7FFF_FFFF,
        repetition_penalty: params.repetition_penalty,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        philox_key: philox::key(params.seed),
        min_tokens: params.min_tokens,
        max_tokens: binding.limits.max_tokens,
        prompt_len: binding.limits.prompt_len,
        num_top_logprobs: params.logprobs.map_or(-1, |n| n as i32),
        num_stop_ids: binding.stop_ids.len() as u32,
        num_biases: binding.logit_bias.len() as u32,
        num_bad_words,
        num_generated: num_generated as u32,
        ..SamplerRow::unbound()
    }
}

fn with_masks(state: SamplerRow, masks: Option<MaskPlace>) -> SamplerRow {
    let Some(place) = masks else {
        return state;
    };
    SamplerRow {
        flags: state.flags | RowFlags::MASKED,
        mask_generation: place.generation,
        mask_word: place.word,
        mask_area: place.area,
        ..state
    }
}

fn broken(binding: &RowBinding, error: EngineError) -> BindingRecord {
    BindingRecord {
        state: SamplerRow {
            error: error.code().into(),
            ..SamplerRow::unbound()
        },
        row: binding.row,
        last_token: last_token(binding),
        ..bytemuck::Zeroable::zeroed()
    }
}

fn last_token(binding: &RowBinding) -> u32 {
    binding.history.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests;
