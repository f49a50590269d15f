//! A model on the device: weights, KV cache, activations and everything else that a step reads or writes.
//!
//! All memory is allocated by [`CudaModel::load`] and [`CudaModel::allocate_cache`]; a step allocates nothing.

use half::bf16;
use izar_kernels::{
    AttentionWorkspace, CudaError, DecodeProjection, Device, DeviceBuffer, Epilogue, KvCache,
    Linear, LinearProjection, Matrix, ProjectionWorkspace, RopeTable, StepInputs, Stream,
    decode_projection, fill_random,
};
use izar_model::{Checkpoint, ModelConfig, Pairing};

use super::buffers::Activations;
use super::error::{CudaModelError, StepError};
use super::experts::Experts;
use super::half::StepLimits;
use super::memory::BLOCK_SIZE;
use super::sampler::{DeviceSampler, DeviceSamplerOptions};
use super::weights::CudaWeights;

/// See the module documentation.
pub(super) struct CudaModel {
    pub(super) config: ModelConfig,
    pub(super) weights: CudaWeights,
    pub(super) activations: Activations,
    pub(super) inputs: StepInputs,
    pub(super) rope: RopeTable,
    /// Whether rotating pairs are neighbours.
    pub(super) interleaved: bool,
    pub(super) sampler: DeviceSampler,
    sampler_bytes: u64,
    pub(super) attention: AttentionWorkspace,
    projections: ProjectionWorkspace,
    linear: Linear,
    experts: Option<Experts>,
    /// By layer: keys, values.
    cache: Vec<(DeviceBuffer<bf16>, DeviceBuffer<bf16>)>,
}

impl CudaModel {
    /// Loads the weights and allocates everything but the KV cache. `max_model_len` is the longest sequence.
    pub(super) fn load(
        stream: &Stream,
        checkpoint: &Checkpoint,
        limits: StepLimits,
        max_model_len: usize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, CudaModelError> {
        let config = checkpoint.config().clone();
        check_shape(&config)?;
        let device = *stream.device();
        let weights = CudaWeights::load(stream, checkpoint, progress)?;
        let frequencies = config.rope.frequencies(max_model_len);
        let [seqs, tokens, blocks] = [
            limits.max_num_seqs,
            limits.max_num_tokens,
            limits.max_blocks_per_seq,
        ]
        .map(|size| size as u32);
        let sampler = DeviceSamplerOptions {
            max_num_seqs: seqs,
            max_model_len: max_model_len as u32,
            vocab_size: config.vocab_size as u32,
            eos_ids: config.eos_token_ids.clone(),
        };
        let activations = Activations::new(&device, &config, limits)?;
        // Padding is computed on what is there.
        activations.fill_bytes(stream, 0)?;
        Ok(Self {
            activations,
            inputs: StepInputs::new(&device, tokens, seqs, blocks)?,
            rope: RopeTable::new(
                stream,
                &frequencies.inv_freq,
                frequencies.attention_factor,
                // An optimistic plan runs one step past the end, to be dropped.
                max_model_len + 1,
            )?,
            interleaved: config.rope.pairing == Pairing::Interleaved,
            sampler: DeviceSampler::new(&device, stream, &sampler)?,
            sampler_bytes: sampler.device_bytes() as u64,
            attention: AttentionWorkspace::new(
                &device,
                seqs,
                config.num_heads as u32,
                config.head_dim as u32,
            )?,
            projections: ProjectionWorkspace::new(&device, stream, device.num_multiprocessors()?)?,
            linear: load_library(&device, stream)?,
            experts: Experts::new(stream, &config, limits)?,
            cache: Vec::new(),
            weights,
            config,
        })
    }

    /// Allocates the KV cache.
    pub(super) fn allocate_cache(
        &mut self,
        stream: &Stream,
        num_blocks: u32,
    ) -> Result<(), CudaError> {
        let len = num_blocks as usize * BLOCK_SIZE as usize * self.config.kv_size();
        let buffer = || DeviceBuffer::<bf16>::new(stream.device(), len);
        self.cache = (0..self.config.num_layers)
            .map(|_| Ok((buffer()?, buffer()?)))
            .collect::<Result<_, CudaError>>()?;
        Ok(())
    }

    /// What each part takes on the device, for the log.
    pub(super) fn parts(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("weights", self.weights.bytes()),
            ("activations", self.activations.bytes()),
            ("logits", self.activations.logit_bytes()),
            ("sampler", self.sampler_bytes),
            ("experts", self.experts.as_ref().map_or(0, Experts::bytes)),
        ]
    }

    /// For layers with experts.
    ///
    /// # Panics
    /// If the model has none.
    pub(super) fn experts(&self) -> &Experts {
        self.experts.as_ref().expect("a model with such a layer")
    }

    /// Waits for the stream and says how many experts the tokens of the last layer that ran chose together; 0 without any.
    pub(super) fn num_distinct_experts(&self, stream: &Stream) -> Result<u32, CudaError> {
        let distinct = |experts: &Experts| experts.num_distinct(stream);
        self.experts.as_ref().map_or(Ok(0), distinct)
    }

    /// Keys and values of a layer.
    pub(super) fn cache(&self, layer: usize) -> KvCache<'_> {
        let (k, v) = &self.cache[layer];
        KvCache {
            k,
            v,
            num_kv_heads: self.config.num_kv_heads as u32,
            head_dim: self.config.head_dim as u32,
        }
    }

    /// Fills the cache with random numbers of a usual magnitude.
    pub(super) fn fill_cache(&self, stream: &Stream) -> Result<(), CudaError> {
        for (idx, (k, v)) in self.cache.iter().enumerate() {
            fill_random(stream, k, 2 * idx as u32, 2.0)?;
            fill_random(stream, v, 2 * idx as u32 + 1, 2.0)?;
        }
        Ok(())
    }

    /// Sets every byte of cache and activations.
    pub(super) fn fill_bytes(&self, stream: &Stream, byte: u8) -> Result<(), CudaError> {
        for (k, v) in &self.cache {
            k.fill_bytes(stream, byte)?;
            v.fill_bytes(stream, byte)?;
        }
        self.activations.fill_bytes(stream, byte)
    }

    /// Positions that a token of this layer sees.
    pub(super) fn window(&self, layer: usize) -> Option<u32> {
        self.config.window(layer).map(|window| window as u32)
    }

    /// What attention scores are multiplied by.
    pub(super) fn attention_scale(&self) -> f32 {
        1.0 / (self.config.head_dim as f32).sqrt()
    }

    /// A projection by the library.
    pub(super) fn project_many(
        &self,
        stream: &Stream,
        projection: &LinearProjection<'_>,
    ) -> Result<(), StepError> {
        Ok(self.linear.project(stream, projection)?)
    }

    /// A projection of at most [`izar_kernels::MAX_DECODE_TOKENS`] tokens.
    pub(super) fn project_few(
        &self,
        stream: &Stream,
        projection: &LinearProjection<'_>,
    ) -> Result<(), StepError> {
        let LinearProjection {
            weight,
            x,
            y,
            bias,
            residual,
        } = *projection;
        let few = DecodeProjection {
            weight,
            x,
            y,
            epilogue: Epilogue::Add { bias, residual },
        };
        Ok(decode_projection(stream, &few, &self.projections)?)
    }

    /// Logits of `hidden`, normed rows, to the first rows of the logits; of many by the library.
    pub(super) fn project_head(
        &self,
        stream: &Stream,
        hidden: Matrix<'_>,
        by_library: bool,
    ) -> Result<(), StepError> {
        let projection = LinearProjection {
            weight: self.weights.head(),
            x: hidden,
            y: self.activations.logits(hidden.rows()).into(),
            bias: None,
            residual: None,
        };
        if by_library {
            self.project_many(stream, &projection)
        } else {
            self.project_few(stream, &projection)
        }
    }

    /// `y = silu(gate) * up` of at most [`izar_kernels::MAX_DECODE_TOKENS`] tokens; `weight` is `[gate; up]`.
    pub(super) fn project_swiglu(
        &self,
        stream: &Stream,
        weight: Matrix<'_>,
        x: Matrix<'_>,
        y: Matrix<'_>,
    ) -> Result<(), StepError> {
        let fused = DecodeProjection {
            weight,
            x,
            y: y.into(),
            epilogue: Epilogue::Swiglu,
        };
        Ok(decode_projection(stream, &fused, &self.projections)?)
    }
}

/// Refuses what the kernels have no code for.
fn check_shape(config: &ModelConfig) -> Result<(), CudaModelError> {
    if ![64, 96, 128].contains(&config.head_dim) {
        return Err(CudaModelError::HeadDim(config.head_dim));
    }
    Ok(())
}

fn load_library(device: &Device, stream: &Stream) -> Result<Linear, CudaModelError> {
    let linear = Linear::new(device, stream)?;
    match linear.library() {
        Ok((path, version)) => tracing::info!("cuBLASLt {version} from {}", path.display()),
        Err(reason) => tracing::warn!("prompts will be slow without cuBLASLt: {reason}"),
    }
    Ok(linear)
}
