//! Runs both samplers on the same steps and compares.

use bytemuck::Zeroable;
use izar_engine::driver::{NoToken, RowBinding, StepOutput};
use izar_engine::sampling::stop::{self, FinishReason, StopParams};
use izar_engine::sampling::{BadWords, RowLimits, RowState, SampleError, Sampler, TokenLists};
use izar_kernels::StepMeta;
use izar_ring::{EngineError, LogprobEntry};

use crate::{EOS_IDS, Gpu, MAX_MODEL_LEN};

/// Relative to the logprob, beside an absolute 1e-5.
const LOGPROB_TOLERANCE: f32 = 1e-5;

/// A row on the CPU.
pub struct Oracle {
    binding: RowBinding,
    state: RowState,
    is_broken: bool,
}

/// What a row sampled, on either side.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub token: Result<u32, NoToken>,
    finish: Option<FinishReason>,
    rank: u32,
    logprobs: Vec<LogprobEntry>,
}

impl Oracle {
    pub fn bind(vocab_size: usize, binding: &RowBinding) -> Self {
        let limits = RowLimits {
            vocab_size,
            max_model_len: MAX_MODEL_LEN,
            max_logprobs: 128,
        };
        let mut state = RowState::new(limits);
        let lists = TokenLists {
            eos_ids: if binding.limits.ignore_eos {
                &[]
            } else {
                &EOS_IDS
            },
            stop_ids: &binding.stop_ids,
            allowed_ids: &binding.allowed_ids,
            logit_bias: &binding.logit_bias,
            bad_words: BadWords(&binding.bad_words),
        };
        let (prompt, generated) = binding.history.split_at(binding.limits.prompt_len as usize);
        let bound = state.bind(&binding.params, &lists, prompt, generated.iter().copied());
        Self {
            binding: binding.clone(),
            is_broken: bound.is_err(),
            state,
        }
    }

    /// The request, without its long lists.
    pub fn describe(&self) -> String {
        let b = &self.binding;
        format!(
            "{:?} {:?} generated {}, stop ids {}, allowed {}, biases {}, bad words {:?}",
            b.params,
            b.limits,
            self.state.num_generated(),
            b.stop_ids.len(),
            b.allowed_ids.len(),
            b.logit_bias.len(),
            &b.bad_words[..b.bad_words.len().min(12)],
        )
    }

    /// Tokens of prompt and output.
    pub fn len(&self) -> u32 {
        self.binding.limits.prompt_len + self.num_generated()
    }

    pub fn num_generated(&self) -> u32 {
        self.state.num_generated()
    }

    /// What a row says that is put off, unless it is broken anyhow.
    pub fn put_off(&self) -> Outcome {
        let why = match self.is_broken {
            true => NoToken::Failed(EngineError::RequestChanged),
            false => NoToken::Deferred,
        };
        Outcome {
            token: Err(why),
            finish: None,
            rank: 0,
            logprobs: Vec::new(),
        }
    }

    pub fn sample(
        &mut self,
        sampler: &mut Sampler,
        logits: &mut [f32],
        grammar: Option<&[u32]>,
    ) -> Outcome {
        let token = if self.is_broken {
            Err(EngineError::RequestChanged)
        } else {
            sampler
                .sample(logits, &mut self.state, grammar)
                .map_err(|error| match error {
                    SampleError::NonFinite => EngineError::NonFiniteLogits,
                    SampleError::NothingAllowed => EngineError::NothingAllowed,
                })
        };
        let stop_params = StopParams {
            eos_ids: &EOS_IDS,
            stop_ids: &self.binding.stop_ids,
            ignore_eos: self.binding.limits.ignore_eos,
            min_tokens: self.binding.params.min_tokens,
            max_tokens: self.binding.limits.max_tokens,
            prompt_len: self.binding.limits.prompt_len,
            max_model_len: MAX_MODEL_LEN as u32,
        };
        let finish = token
            .ok()
            .and_then(|token| stop::check(token, self.state.num_generated(), &stop_params));
        let logprobs = self.state.logprobs().filter(|_| token.is_ok());
        Outcome {
            token: token.map_err(NoToken::Failed),
            finish,
            rank: logprobs.map_or(0, |l| l.rank()),
            logprobs: logprobs.map_or(Vec::new(), |l| l.entries().to_vec()),
        }
    }
}

impl Gpu {
    /// Says after which positions the samples of the next step are drawn: those that end sequences of `lens` tokens.
    pub fn write_lens(&self, lens: &[u32]) {
        let tokens: Vec<u32> = (0..lens.len() as u32).collect();
        let positions: Vec<u32> = lens.iter().map(|len| len - 1).collect();
        let inputs = &self.inputs;
        inputs.sample_tokens.write(&self.stream, &tokens).unwrap();
        inputs.positions.write(&self.stream, &positions).unwrap();
    }

    /// Binds rows, then samples `rows` on `logits` (`[rows, vocab_size]`, a vector a row) as step `step`.
    pub fn step(
        &mut self,
        step: u64,
        bindings: &[RowBinding],
        rows: &[u32],
        logits: &[Vec<f32>],
    ) -> Vec<Outcome> {
        // Rows of NaN where there is none, so that reading beyond a row shows.
        let mut host = vec![f32::NAN; rows.len() * self.stride];
        for (row, logits) in host.chunks_mut(self.stride).zip(logits) {
            row[..logits.len()].copy_from_slice(logits);
        }
        self.logits.write(&self.stream, &host).unwrap();
        let mut meta = StepMeta::zeroed();
        meta.num_samples = rows.len() as u32;
        meta.step = step;
        self.inputs.meta.write(&self.stream, &[meta]).unwrap();
        self.inputs.sample_rows.write(&self.stream, rows).unwrap();
        self.sampler.bind(&self.stream, step, bindings).unwrap();
        let bucket = self.inputs.sample_rows.len() as u32;
        let logits = &self.logits;
        self.sampler
            .record_masks(&self.stream, &self.inputs, None, bucket, false)
            .unwrap();
        self.sampler
            .record(
                &self.stream,
                logits,
                self.stride as u32,
                &self.inputs,
                bucket,
            )
            .unwrap();
        self.stream.synchronize().unwrap();
        let mut output = StepOutput::default();
        let read = self
            .sampler
            .read_results(step, rows.iter().copied(), &mut output);
        assert!(
            read,
            "step {step}: results are missing after the stream ended"
        );
        let outcomes = output.samples.iter().map(|sample| {
            let first = sample.first_logprob as usize;
            Outcome {
                token: sample.token,
                finish: sample.finish,
                rank: sample.rank,
                logprobs: output.logprobs[first..first + sample.num_logprobs as usize].to_vec(),
            }
        });
        let outcomes: Vec<Outcome> = outcomes.collect();
        self.check_last_tokens(bindings, rows, &outcomes);
        outcomes
    }
}

impl Gpu {
    /// What every row takes in next.
    pub fn last_tokens(&self) -> Vec<u32> {
        let mut last_tokens = vec![0; self.inputs.sample_rows.len()];
        let buffer = self.sampler.last_tokens();
        buffer.read(&self.stream, &mut last_tokens).unwrap();
        last_tokens
    }

    /// The next step's decodes take in what was sampled, or what a row that sampled nothing was bound with.
    fn check_last_tokens(&self, bindings: &[RowBinding], rows: &[u32], outcomes: &[Outcome]) {
        let last_tokens = self.last_tokens();
        for (&row, outcome) in rows.iter().zip(outcomes) {
            let bound = bindings.iter().find(|binding| binding.row == row);
            let bound = bound.and_then(|binding| binding.history.last().copied());
            if let Some(expected) = outcome.token.ok().or(bound) {
                assert_eq!(last_tokens[row as usize], expected, "row {row}");
            }
        }
    }
}

/// What differs, or nothing.
pub fn difference(got: &Outcome, expected: &Outcome) -> Option<String> {
    let exact = |o: &Outcome| {
        let tokens: Vec<u32> = o.logprobs.iter().map(|l| l.token).collect();
        (o.token, o.finish, o.rank, tokens)
    };
    if exact(got) != exact(expected) {
        return Some(format!(
            "got {:?}\nexpected {:?}",
            exact(got),
            exact(expected)
        ));
    }
    let pairs = got.logprobs.iter().zip(&expected.logprobs);
    pairs.clone().find_map(|(a, b)| {
        let is_near = (a.logprob - b.logprob).abs() <= LOGPROB_TOLERANCE * (1.0 + b.logprob.abs());
        (!is_near).then(|| {
            format!(
                "logprob of {}: got {}, expected {}",
                a.token, a.logprob, b.logprob
            )
        })
    })
}
