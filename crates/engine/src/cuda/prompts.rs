//! Log-probabilities of prompts: what a step's chunks say about the prompt tokens that come after each of their own.
//!
//! Few requests ask for them, so they are no part of the captured steps: behind the graph of a step that has such chunks come
//! launches that norm the residual stream it left, a few rows at a time, project them, and look the tokens up. The next step comes
//! behind those. Results lie in pinned memory, one set for each half of the double buffer, and can be read when the half's marks
//! say that the step is complete. Used by the thread that launches.

use izar_kernels::{
    CudaError, Device, LOGPROB_ENTRIES, MAX_DECODE_TOKENS, Mark, PinnedBuffer, RmsNorm,
    SampleLogprob, ScoreTokens, StepMarks, Stream, TokenScore, rms_norm, score_tokens, step_mark,
};

use super::error::StepError;
use super::half::StepLimits;
use super::model::CudaModel;
use super::sampler::logprob_entry;
use crate::driver::{PromptLogprobs, RowBinding, StepEntry, StepOutput, StepWork};

/// See the module documentation.
pub(super) struct PromptScorer {
    /// By row.
    prompts: Vec<Option<Prompt>>,
    halves: [ScoreHalf; 2],
}

/// The prompt of a row that wants it scored.
struct Prompt {
    tokens: Vec<u32>,
    num_top: u32,
}

/// Scores of one step.
struct ScoreHalf {
    marks: StepMarks,
    chunks: Vec<ScoredChunk>,
    /// `[max_num_tokens]`: what to look up.
    tokens: PinnedBuffer<u32>,
    /// `[max_num_tokens]`.
    scores: PinnedBuffer<TokenScore>,
    /// `[max_num_tokens * LOGPROB_ENTRIES]`.
    logprobs: PinnedBuffer<SampleLogprob>,
}

/// A run of a step's tokens, and the prompt tokens after them.
#[derive(Clone, Copy)]
struct ScoredChunk {
    slot: u32,
    /// Position of the first prompt token that is looked up.
    position: u32,
    /// Token of the step that it comes after.
    first_token: u32,
    num_tokens: u32,
    num_top: u32,
    /// Its place in `tokens` and `scores`.
    at: usize,
    /// Its place in `logprobs`.
    logprobs_at: usize,
}

impl ScoredChunk {
    /// Log-probabilities of a token.
    fn entries(&self) -> usize {
        1 + self.num_top as usize
    }
}

impl PromptScorer {
    pub(super) fn new(device: &Device, limits: StepLimits) -> Result<Self, CudaError> {
        let half = || -> Result<ScoreHalf, CudaError> {
            Ok(ScoreHalf {
                marks: StepMarks::new(device)?,
                chunks: Vec::with_capacity(limits.max_num_seqs),
                tokens: PinnedBuffer::new(device, limits.max_num_tokens)?,
                scores: PinnedBuffer::new(device, limits.max_num_tokens)?,
                logprobs: PinnedBuffer::new(device, limits.max_num_tokens * LOGPROB_ENTRIES)?,
            })
        };
        Ok(Self {
            prompts: (0..limits.max_num_seqs).map(|_| None).collect(),
            halves: [half()?, half()?],
        })
    }

    /// What the rows that change hands want.
    pub(super) fn bind(&mut self, bindings: &[RowBinding], vocab_size: usize) {
        for binding in bindings {
            let prompt_len = binding.limits.prompt_len as usize;
            // A binding without its prompt is refused by the sampler.
            let prompt = binding.history.get(..prompt_len);
            let wanted = binding.prompt_logprobs.zip(prompt);
            self.prompts[binding.row as usize] = wanted.map(|(num_top, prompt)| Prompt {
                tokens: prompt.to_vec(),
                num_top: num_top
                    .min(vocab_size as u32)
                    .min(LOGPROB_ENTRIES as u32 - 1),
            });
        }
    }

    /// Launches the scoring of what `work`, which is step `step` and was launched before, has of such prompts. False if
    /// that is nothing, and nothing is launched.
    pub(super) fn launch(
        &mut self,
        model: &CudaModel,
        stream: &Stream,
        work: &StepWork,
        step: u64,
    ) -> Result<bool, StepError> {
        let half = &mut self.halves[(step % 2) as usize];
        half.gather(work, &self.prompts);
        for chunk in &half.chunks {
            half.score(model, stream, chunk)?;
        }
        if half.chunks.is_empty() {
            return Ok(false);
        }
        let meta = Some(&model.inputs.meta);
        step_mark(stream, &half.marks, Mark::Finished, meta)?;
        Ok(true)
    }

    /// What says that the scores of step `step` are there, and when.
    pub(super) fn marks(&self, step: u64) -> &StepMarks {
        &self.halves[(step % 2) as usize].marks
    }

    /// Appends the scores of step `step`, which its marks say are there.
    pub(super) fn collect(&self, step: u64, output: &mut StepOutput) {
        let half = &self.halves[(step % 2) as usize];
        for chunk in &half.chunks {
            half.collect(chunk, output);
        }
    }
}

impl ScoreHalf {
    /// Finds the chunks of `work` that are to be scored, and writes the tokens to look up. The last step that used this half
    /// must be complete.
    fn gather(&mut self, work: &StepWork, prompts: &[Option<Prompt>]) {
        self.chunks.clear();
        // SAFETY: the launches that read the tokens belong to that step.
        let tokens = unsafe { self.tokens.as_mut_slice() };
        let (mut first_token, mut at, mut logprobs_at) = (0, 0, 0);
        for entry in &work.entries {
            let prompt = prompts[entry.row as usize].as_ref();
            let scored = prompt.and_then(|prompt| Some((prompt, following(prompt, entry)?)));
            if let Some((prompt, following)) = scored {
                tokens[at..at + following.len()].copy_from_slice(following);
                let chunk = ScoredChunk {
                    slot: entry.slot,
                    position: entry.start + 1,
                    first_token,
                    num_tokens: following.len() as u32,
                    num_top: prompt.num_top,
                    at,
                    logprobs_at,
                };
                at += following.len();
                logprobs_at += following.len() * chunk.entries();
                self.chunks.push(chunk);
            }
            first_token += entry.num_tokens;
        }
    }

    /// Launches norm, head and look-up for a chunk, as many rows at a time as there is room for logits.
    fn score(
        &self,
        model: &CudaModel,
        stream: &Stream,
        chunk: &ScoredChunk,
    ) -> Result<(), StepError> {
        let acts = &model.activations;
        let end = chunk.first_token + chunk.num_tokens;
        let residual = acts.residual.first(end);
        for done in (0..chunk.num_tokens).step_by(acts.logit_rows() as usize) {
            let rows = acts.logit_rows().min(chunk.num_tokens - done);
            let normed = acts.sampled.first(rows);
            let norm = RmsNorm {
                x: residual.rows_from(chunk.first_token + done, rows),
                residual: None,
                weight: model.weights.final_norm(),
                y: normed,
                epsilon: model.config.rms_norm_eps,
            };
            rms_norm(stream, &norm)?;
            model.project_head(stream, normed, rows > MAX_DECODE_TOKENS)?;
            let scoring = ScoreTokens {
                logits: acts.logits(rows),
                tokens: &self.tokens,
                tokens_at: chunk.at + done as usize,
                scores: &self.scores,
                logprobs: &self.logprobs,
                logprobs_at: chunk.logprobs_at + done as usize * chunk.entries(),
                num_top: chunk.num_top,
            };
            // SAFETY: prompts are checked before a row is bound to them (a broken one names tokens that the scheduler clamped
            // to the vocabulary); the half is read and written again when its step is complete.
            unsafe { score_tokens(stream, &scoring)? };
        }
        Ok(())
    }

    fn collect(&self, chunk: &ScoredChunk, output: &mut StepOutput) {
        // SAFETY: the step is complete, and the next one in this half is not launched.
        let (scores, logprobs) = unsafe { (self.scores.as_slice(), self.logprobs.as_slice()) };
        let scores = &scores[chunk.at..][..chunk.num_tokens as usize];
        let logprobs = logprobs[chunk.logprobs_at..].chunks_exact(chunk.entries());
        for ((score, entries), position) in scores.iter().zip(logprobs).zip(chunk.position..) {
            // Logits that are no numbers fail the row when it samples.
            if score.is_scored == 0 {
                continue;
            }
            output.prompt_logprobs.push(PromptLogprobs {
                slot: chunk.slot,
                position,
                rank: score.rank,
                first_logprob: output.logprobs.len() as u32,
                num_logprobs: entries.len() as u32,
            });
            output.logprobs.extend(entries.iter().map(logprob_entry));
        }
    }
}

/// The prompt's tokens after each of the entry's, as far as there are any.
fn following<'a>(prompt: &'a Prompt, entry: &StepEntry) -> Option<&'a [u32]> {
    let first = entry.start as usize + 1;
    let end = (first + entry.num_tokens as usize).min(prompt.tokens.len());
    prompt
        .tokens
        .get(first..end)
        .filter(|tokens| !tokens.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prompt_token_but_the_first_follows_one_of_a_chunk() {
        let prompt = Prompt {
            tokens: (100..110).collect(),
            num_top: 0,
        };
        let entry = |start, num_tokens| StepEntry {
            start,
            num_tokens,
            ..StepEntry::default()
        };
        let parts = [entry(0, 4), entry(4, 5), entry(9, 1), entry(10, 1)];
        let found = parts.iter().map(|entry| following(&prompt, entry));
        let found: Vec<u32> = found.flatten().flatten().copied().collect();
        assert_eq!(found, (101..110).collect::<Vec<u32>>());
        assert_eq!(following(&prompt, &entry(9, 1)), None);
        assert_eq!(following(&prompt, &entry(40, 1)), None);
    }
}
