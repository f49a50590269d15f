//! One step, recorded into a stream for one bucket.
//!
//! ```text
//! expand plan │ embed │ per layer: norm │ qkv │ heads, KV │ attention │ output, + residual
//!             │                      norm │ gate and up, SwiGLU │ down, + residual
//!             │          (or experts: norm, router, choice │ gate and up, SwiGLU, down │ sum, + residual, next layer's norm)
//! rows that sample │ norm │ head │ masks │ sampler │ marks
//! ```
//!
//! Everything is a kernel node: no allocation, no host function. Grids come from the bucket, counts from the device.
//! Kernels overlap (programmatic dependent launch), and each waits for its predecessor, so what an earlier kernel
//! wrote is there for every later one.

use izar_kernels::{
    DeviceWord, ExpandPlan, HeadNorms, LinearProjection, MAX_DECODE_TOKENS, MAX_ROUTER_TOKENS,
    Mark, Matrix, MoeChoice, Norm, PagedDecodeAttention, PagedPrefillAttention, RmsNorm,
    RopeAndKvWrite, StepMeta, Stream, embed, expand_plan, gather_rows, paged_decode_attention,
    paged_prefill_attention, rms_norm, rope_and_kv_write, step_mark, swiglu,
};

use super::buffers::Rows;
use super::error::StepError;
use super::experts::ExpertLayer;
use super::grid::{Bucket, StepKind};
use super::half::Half;
use super::model::CudaModel;
use super::stages::{Stage, Variant};
use super::weights::{CudaLayer, Ffn};

/// Records the step of `bucket` whose plan comes in `half`.
pub(super) fn record(
    model: &CudaModel,
    stream: &Stream,
    bucket: Bucket,
    half: &Half,
    variant: Variant,
) -> Result<(), StepError> {
    let step = Recorder {
        model,
        stream,
        bucket,
        variant,
    };
    if variant.has(Stage::Inputs) {
        step.inputs(half)?;
    }
    for (idx, layer) in model.weights.layers.iter().enumerate() {
        step.attention(idx, layer)?;
        step.feed_forward(idx, layer)?;
    }
    if variant.has(Stage::Head) {
        step.head()?;
    }
    // Its flags and masks come while the head runs: the embeddings wait for the step's inputs before they let anything
    // after them start.
    let (sampler, rows) = (&model.sampler, bucket.num_seqs);
    sampler.record_masks(stream, &model.inputs, Some(&half.marks), rows, true)?;
    if variant.has(Stage::Sampling) {
        step.sample()?;
    }
    let counts = Some(&model.inputs.meta);
    step_mark(stream, &half.marks, Mark::Finished, counts)?;
    Ok(())
}

/// What every part of a recording needs.
struct Recorder<'a> {
    model: &'a CudaModel,
    stream: &'a Stream,
    bucket: Bucket,
    variant: Variant,
}

impl<'a> Recorder<'a> {
    fn inputs(&self, half: &Half) -> Result<(), StepError> {
        let model = self.model;
        let expansion = ExpandPlan {
            plan: &half.plan,
            last_tokens: model.sampler.last_tokens(),
            inputs: &model.inputs,
            marks: Some(&half.marks),
            bucket_tokens: self.bucket.num_tokens,
            bucket_seqs: self.bucket.num_seqs,
        };
        expand_plan(self.stream, &expansion)?;
        let (table, ids) = (model.weights.embedding(), &model.inputs.token_ids);
        let residual = self.rows(&model.activations.residual);
        Ok(embed(self.stream, table, ids, residual)?)
    }

    /// The bucket's rows of a buffer.
    fn rows(&self, rows: &'a Rows) -> Matrix<'a> {
        rows.first(self.bucket.num_tokens)
    }

    fn norm(&self, x: Matrix<'a>, weight: Matrix<'a>, y: Matrix<'a>) -> Result<(), StepError> {
        if !self.variant.has(Stage::Norms) {
            return Ok(());
        }
        let norm = RmsNorm {
            x,
            residual: None,
            weight,
            y,
            epsilon: self.model.config.rms_norm_eps,
        };
        Ok(rms_norm(self.stream, &norm)?)
    }

    /// `y = x * weightᵀ + bias + residual`, if the recording has `stage`.
    fn project(&self, stage: Stage, projection: LinearProjection<'a>) -> Result<(), StepError> {
        if !self.variant.has(stage) {
            return Ok(());
        }
        if self.uses_library(stage, self.bucket.num_tokens) {
            self.model.project_many(self.stream, &projection)
        } else {
            self.model.project_few(self.stream, &projection)
        }
    }

    /// Whether `num_tokens` rows are projected by the library: our own kernel takes few.
    fn uses_library(&self, stage: Stage, num_tokens: u32) -> bool {
        self.variant.by_library(stage) || num_tokens > MAX_DECODE_TOKENS
    }

    /// Attention of a layer, added to the residual stream.
    fn attention(&self, idx: usize, layer: &'a CudaLayer) -> Result<(), StepError> {
        let acts = &self.model.activations;
        let [residual, normed, qkv, attended] =
            [&acts.residual, &acts.normed, &acts.qkv, &acts.attended].map(|rows| self.rows(rows));
        if !self.is_normed_by_experts(idx) {
            self.norm(residual, layer.attn_norm(), normed)?;
        }
        let projection = LinearProjection {
            weight: layer.wqkv(),
            x: normed,
            y: qkv.into(),
            bias: layer.bqkv(),
            residual: None,
        };
        self.project(Stage::Qkv, projection)?;
        if self.variant.has(Stage::Heads) {
            self.heads(idx, layer, qkv)?;
        }
        if self.variant.has(Stage::DecodeAttention) {
            self.attend_decodes(idx)?;
        }
        if self.bucket.kind == StepKind::Mixed && self.variant.has(Stage::PrefillAttention) {
            self.attend_prefills(idx)?;
        }
        let projection = LinearProjection {
            weight: layer.wo(),
            x: attended,
            y: residual.into(),
            bias: None,
            residual: Some(residual),
        };
        self.project(Stage::Output, projection)
    }

    /// Head norms, rotation, and the cache written.
    fn heads(&self, idx: usize, layer: &'a CudaLayer, qkv: Matrix<'a>) -> Result<(), StepError> {
        let model = self.model;
        let norms = layer.head_norms().map(|(q, k)| HeadNorms {
            q,
            k,
            epsilon: model.config.rms_norm_eps,
        });
        let heads = RopeAndKvWrite {
            qkv,
            cache: model.cache(idx),
            norms,
            table: &model.rope,
            interleaved: model.interleaved,
            positions: &model.inputs.positions,
            kv_slots: &model.inputs.kv_slots,
        };
        Ok(rope_and_kv_write(self.stream, &heads)?)
    }

    fn attend_decodes(&self, idx: usize) -> Result<(), StepError> {
        let (model, seqs) = (self.model, self.bucket.num_seqs);
        let q_size = model.config.q_size() as u32;
        let attention = PagedDecodeAttention {
            q: model.activations.qkv.part(seqs, 0, q_size),
            cache: model.cache(idx),
            block_table: &model.inputs.block_tables,
            max_blocks_per_seq: model.inputs.max_blocks_per_seq(),
            seq_lens: &model.inputs.decode_seq_lens,
            out: model.activations.attended.first(seqs),
            window: model.window(idx),
            scale: model.attention_scale(),
            // The embeddings wait for the step's inputs before they let anything after them start, and what
            // the cache holds of a decode but its last position is earlier steps' work.
            reads_early: true,
        };
        Ok(paged_decode_attention(
            self.stream,
            &attention,
            &model.attention,
        )?)
    }

    fn attend_prefills(&self, idx: usize) -> Result<(), StepError> {
        let model = self.model;
        let q_size = model.config.q_size() as u32;
        let count = |offset| DeviceWord::new(&model.inputs.meta, offset);
        let attention = PagedPrefillAttention {
            q: model
                .activations
                .qkv
                .part(self.bucket.num_tokens, 0, q_size),
            cache: model.cache(idx),
            block_tables: &model.inputs.block_tables,
            max_blocks_per_seq: model.inputs.max_blocks_per_seq(),
            query_starts: &model.inputs.query_starts,
            query_lens: &model.inputs.query_lens,
            seq_lens: &model.inputs.seq_lens,
            first_entry: count(std::mem::offset_of!(StepMeta, num_decodes)),
            end_entry: count(std::mem::offset_of!(StepMeta, num_entries)),
            max_entries: self.bucket.num_seqs,
            out: self.rows(&model.activations.attended),
            window: model.window(idx),
            scale: model.attention_scale(),
        };
        Ok(paged_prefill_attention(self.stream, &attention)?)
    }

    /// The feed-forward part of a layer, added to the residual stream.
    fn feed_forward(&self, idx: usize, layer: &'a CudaLayer) -> Result<(), StepError> {
        let acts = &self.model.activations;
        let [residual, normed, inner] =
            [&acts.residual, &acts.normed, &acts.inner].map(|rows| self.rows(rows));
        let (gate_up, down) = match &layer.ffn {
            Ffn::Dense { gate_up, down } => (gate_up, down),
            Ffn::Moe {
                router,
                gate_up,
                down,
            } => {
                let choice = self.choice(layer, router.view())?;
                return self.experts(idx, choice, [gate_up.view(), down.view()]);
            }
        };
        self.norm(residual, layer.ffn_norm(), normed)?;
        self.gate_up(gate_up.view(), normed, inner)?;
        let projection = LinearProjection {
            weight: down.view(),
            x: inner,
            y: residual.into(),
            bias: None,
            residual: Some(residual),
        };
        self.project(Stage::Down, projection)
    }

    /// What decides on a layer's experts. For few tokens that is part of the experts' kernels, norm included.
    fn choice(&self, layer: &'a CudaLayer, router: Matrix<'a>) -> Result<MoeChoice<'a>, StepError> {
        let acts = &self.model.activations;
        let [residual, normed] = [&acts.residual, &acts.normed].map(|rows| self.rows(rows));
        let tokens = self.bucket.num_tokens;
        if tokens <= MAX_ROUTER_TOKENS {
            return Ok(MoeChoice::Router {
                residual,
                norm: self.norm_of(layer.ffn_norm()),
                weight: router,
            });
        }
        self.norm(residual, layer.ffn_norm(), normed)?;
        let logits = self.model.experts().router_logits(tokens);
        let projection = LinearProjection {
            weight: router,
            x: normed,
            y: logits.into(),
            bias: None,
            residual: None,
        };
        self.project(Stage::Experts, projection)?;
        Ok(MoeChoice::Logits(logits))
    }

    /// The feed-forward part of a layer with experts, added to the residual stream.
    fn experts(
        &self,
        idx: usize,
        choice: MoeChoice<'a>,
        [gate_up, down]: [Matrix<'a>; 2],
    ) -> Result<(), StepError> {
        if !self.variant.has(Stage::Experts) {
            return Ok(());
        }
        let model = self.model;
        let normed = self.rows(&model.activations.normed);
        let next = model.weights.layers.get(idx + 1);
        let next = next.filter(|_| self.variant.has(Stage::Norms));
        let layer = ExpertLayer {
            choice,
            gate_up,
            down,
            x: normed,
            residual: self.rows(&model.activations.residual),
            normed: next.map(|next| (self.norm_of(next.attn_norm()), normed)),
            meta: &model.inputs.meta,
        };
        Ok(model.experts().record(self.stream, &layer)?)
    }

    /// Whether the experts of the layer before have left the residual stream normalised.
    fn is_normed_by_experts(&self, idx: usize) -> bool {
        let before = idx
            .checked_sub(1)
            .map(|before| &self.model.weights.layers[before]);
        self.variant.has(Stage::Experts)
            && before.is_some_and(|layer| matches!(layer.ffn, Ffn::Moe { .. }))
    }

    fn norm_of(&self, weight: Matrix<'a>) -> Norm<'a> {
        Norm {
            weight,
            epsilon: self.model.config.rms_norm_eps,
        }
    }

    /// `inner = silu(gate) * up`.
    fn gate_up(
        &self,
        weight: Matrix<'a>,
        x: Matrix<'a>,
        inner: Matrix<'a>,
    ) -> Result<(), StepError> {
        if !self.variant.has(Stage::GateUp) {
            return Ok(());
        }
        if !self.uses_library(Stage::GateUp, self.bucket.num_tokens) {
            return self.model.project_swiglu(self.stream, weight, x, inner);
        }
        let both = self.rows(&self.model.activations.gate_up);
        let projection = LinearProjection {
            weight,
            x,
            y: both.into(),
            bias: None,
            residual: None,
        };
        self.project(Stage::GateUp, projection)?;
        Ok(swiglu(self.stream, both, inner)?)
    }

    /// Logits of the tokens that sample.
    fn head(&self) -> Result<(), StepError> {
        let (model, rows) = (self.model, self.bucket.num_seqs);
        let acts = &model.activations;
        let sampled = acts.sampled.first(rows);
        gather_rows(
            self.stream,
            self.rows(&acts.residual),
            &model.inputs.sample_tokens,
            sampled,
        )?;
        self.norm(sampled, model.weights.final_norm(), sampled)?;
        // By the number of rows that sample, not of tokens.
        let by_library = self.uses_library(Stage::Head, rows);
        model.project_head(self.stream, sampled, by_library)
    }

    fn sample(&self) -> Result<(), StepError> {
        let acts = &self.model.activations;
        let (stride, inputs) = (acts.logits_stride(), &self.model.inputs);
        let sampler = &self.model.sampler;
        Ok(sampler.record(
            self.stream,
            &acts.logits,
            stride,
            inputs,
            self.bucket.num_seqs,
        )?)
    }
}
