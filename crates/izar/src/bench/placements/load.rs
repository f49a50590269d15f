//! The load that placements are measured with: equal requests, all at once.

use anyhow::{Context, Result, ensure};
use izar_engine::driver::{StepLog, StepRecord, StepTimes};
use izar_transport::client::{RequestHandle, RingClient, SamplingParams, Submission};

use super::super::engine::{Running, TIMEOUT, finish};
use super::figures::Figures;

/// How tokens are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Features {
    /// The likeliest token.
    None,
    /// Temperature, top-p, top-k, min-p and three penalties.
    All,
}

impl Features {
    fn sampling(self, request: u32) -> SamplingParams {
        match self {
            Self::None => SamplingParams::default(),
            Self::All => SamplingParams {
                temperature: 0.8,
                top_p: 0.95,
                top_k: 50,
                min_p: 0.02,
                repetition_penalty: 1.1,
                presence_penalty: 0.1,
                frequency_penalty: 0.1,
                seed: Some(request.into()),
            },
        }
    }
}

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests at once.
    pub batch: u32,
    /// Tokens of the longest prompt; prompts are up to 15 tokens shorter, so that not all need a block in the same step.
    pub input: u32,
    /// Tokens of every answer.
    pub output: u32,
    /// Vocabulary of the model.
    pub vocab: u32,
}

impl Load {
    /// Runs all requests to their end.
    pub fn run(&self, running: &Running, log: &StepLog, features: Features) -> Result<Figures> {
        let submit = |request| self.submit(&running.client, request, features);
        let mut handles = (0..self.batch).map(submit).collect::<Result<Vec<_>>>()?;
        for handle in &mut handles {
            first_token(handle)?;
        }
        // From here on all of them decode.
        let begun = running.times();
        for handle in &mut handles {
            finish(handle)?;
        }
        let ended = running.times();
        let steps = self.decodes(log.take());
        ensure!(
            steps.len() > 1,
            "there was no step in which all {} requests decoded: give longer answers",
            self.batch
        );
        Ok(Figures::new(self.batch, &difference(begun, ended), &steps))
    }

    /// The steps in which all requests decode.
    fn decodes(&self, steps: Vec<StepRecord>) -> Vec<StepRecord> {
        let all_decode =
            |step: &StepRecord| (step.num_entries, step.num_tokens) == (self.batch, self.batch);
        // A first step may have as many tokens as requests, too.
        let last_prefill = steps
            .iter()
            .rposition(|step| step.num_tokens > step.num_entries);
        let decodes = steps
            .into_iter()
            .skip(last_prefill.map_or(0, |idx| idx + 1));
        decodes.filter(all_decode).collect()
    }

    fn submit(
        &self,
        client: &RingClient,
        request: u32,
        features: Features,
    ) -> Result<RequestHandle> {
        let len = self.input - (request % 16).min(self.input - 1);
        let token =
            |i: u32| (u64::from(request) * 7919 + u64::from(i) * 104_729) % u64::from(self.vocab);
        let prompt: Vec<u32> = (0..len).map(|i| token(i) as u32).collect();
        Ok(client.submit(&Submission {
            sampling: features.sampling(request),
            ignore_eos: true,
            ..Submission::new(&prompt, self.output)
        })?)
    }
}

fn first_token(handle: &mut RequestHandle) -> Result<()> {
    let mut tokens = Vec::new();
    handle
        .wait(&mut tokens, TIMEOUT)
        .context("no token within two minutes")?;
    Ok(())
}

fn difference(a: StepTimes, b: StepTimes) -> StepTimes {
    StepTimes {
        num_steps: b.num_steps - a.num_steps,
        planning_ns: b.planning_ns - a.planning_ns,
        filling_ns: b.filling_ns - a.filling_ns,
        launching_ns: b.launching_ns - a.launching_ns,
        forward_ns: b.forward_ns - a.forward_ns,
        sampling_ns: b.sampling_ns - a.sampling_ns,
        publishing_ns: b.publishing_ns - a.publishing_ns,
        gap_ns: b.gap_ns - a.gap_ns,
    }
}
