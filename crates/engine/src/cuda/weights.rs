//! A model's parameters on the device: bf16, fused as the step's kernels read them.
//!
//! Every fused matrix has a buffer of its own. Quantised tensors are decoded and everything is rounded to bf16 on the way, by
//! several threads through pinned memory (`staging`); made-up weights are filled on the device. Read-only afterwards.

mod staging;
mod to_bf16;

use std::sync::Arc;

use half::bf16;
use izar_kernels::{CudaError, DeviceBuffer, Matrix, Stream, fill_random};
use izar_model::{Checkpoint, LayerParam, LoadError, ModelConfig, MoeConfig, Param};
use thiserror::Error;

use staging::Piece;

/// A matrix in a buffer of its own.
pub struct Weight {
    buffer: Arc<DeviceBuffer<bf16>>,
    rows: u32,
    cols: u32,
}

/// A layer's parameters.
pub struct CudaLayer {
    attn_norm: Weight,
    wqkv: Weight,
    bqkv: Option<Weight>,
    head_norms: Option<(Weight, Weight)>,
    wo: Weight,
    ffn_norm: Weight,
    /// Its feed-forward part.
    pub ffn: Ffn,
}

/// A layer's feed-forward part.
pub enum Ffn {
    /// The same for every token.
    Dense {
        /// `[2 * intermediate, hidden]`, gates first.
        gate_up: Weight,
        /// `[hidden, intermediate]`.
        down: Weight,
    },
    /// A few experts of many for each token.
    Moe {
        /// `[experts, hidden]`.
        router: Weight,
        /// `[experts * 2 * moe_intermediate, hidden]`: by expert, gates first.
        gate_up: Weight,
        /// `[experts * hidden, moe_intermediate]`, by expert.
        down: Weight,
    },
}

/// See the module documentation.
pub struct CudaWeights {
    embedding: Weight,
    head: Option<Weight>,
    final_norm: Weight,
    /// Decoder layers, in order.
    pub layers: Vec<CudaLayer>,
    bytes: u64,
}

/// Parameters did not reach the device.
#[derive(Debug, Error)]
pub enum CudaLoadError {
    /// The checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] LoadError),
    /// A CUDA call.
    #[error("cannot put the weights on the device: {0}")]
    Cuda(#[from] CudaError),
}

impl Weight {
    /// All of it, dense.
    pub fn view(&self) -> Matrix<'_> {
        Matrix::dense(&self.buffer, self.rows, self.cols).expect("made to fit")
    }
}

impl CudaLayer {
    /// `[1, hidden]`: RMS norm before attention.
    pub fn attn_norm(&self) -> Matrix<'_> {
        self.attn_norm.view()
    }

    /// `[(heads + 2 * kv_heads) * head_dim, hidden]`: queries, keys, values.
    pub fn wqkv(&self) -> Matrix<'_> {
        self.wqkv.view()
    }

    /// `[1, (heads + 2 * kv_heads) * head_dim]`, for models that have it.
    pub fn bqkv(&self) -> Option<Matrix<'_>> {
        self.bqkv.as_ref().map(Weight::view)
    }

    /// `[1, head_dim]` each: RMS norms of query and key heads, for models that have them.
    pub fn head_norms(&self) -> Option<(Matrix<'_>, Matrix<'_>)> {
        self.head_norms.as_ref().map(|(q, k)| (q.view(), k.view()))
    }

    /// `[hidden, heads * head_dim]`.
    pub fn wo(&self) -> Matrix<'_> {
        self.wo.view()
    }

    /// `[1, hidden]`: RMS norm before the feed-forward part.
    pub fn ffn_norm(&self) -> Matrix<'_> {
        self.ffn_norm.view()
    }
}

impl CudaWeights {
    /// Loads the weights of `checkpoint`, or makes them up on the device if it has no files. `progress(done, total)` is told
    /// bytes on the device, and is called from this thread.
    ///
    /// # Errors
    /// [`CudaLoadError`]; out of device memory is one.
    pub fn load(
        stream: &Stream,
        checkpoint: &Checkpoint,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, CudaLoadError> {
        let config = checkpoint.config();
        let mut loader = Loader {
            stream,
            checkpoint,
            is_dummy: checkpoint.files().is_empty(),
            seed: 0,
            bytes: 0,
            pieces: Vec::new(),
        };
        let embedding = loader.matrix(&[Param::TokenEmbedding])?;
        let layers = (0..config.num_layers)
            .map(|layer| loader.layer(config, layer))
            .collect::<Result<_, _>>()?;
        let final_norm = loader.matrix(&[Param::FinalNorm])?;
        let head = match config.tie_word_embeddings {
            true => None,
            false => Some(loader.matrix(&[Param::LmHead])?),
        };
        let bytes = loader.finish(progress)?;
        Ok(Self {
            embedding,
            head,
            final_norm,
            layers,
            bytes,
        })
    }

    /// `[vocab, hidden]`.
    pub fn embedding(&self) -> Matrix<'_> {
        self.embedding.view()
    }

    /// `[vocab, hidden]`: the embedding where they are tied.
    pub fn head(&self) -> Matrix<'_> {
        self.head.as_ref().unwrap_or(&self.embedding).view()
    }

    /// `[1, hidden]`: RMS norm before the head.
    pub fn final_norm(&self) -> Matrix<'_> {
        self.final_norm.view()
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Allocates matrices and notes what goes into them; `finish` brings it there.
struct Loader<'a> {
    stream: &'a Stream,
    checkpoint: &'a Checkpoint,
    is_dummy: bool,
    /// Of the matrix made up last.
    seed: u32,
    bytes: u64,
    pieces: Vec<Piece<'a>>,
}

impl Loader<'_> {
    fn layer(&mut self, config: &ModelConfig, layer: usize) -> Result<CudaLayer, CudaLoadError> {
        use LayerParam::*;
        let at = |param| Param::Layer(layer, param);
        let optional = |exists: bool, params: &[LayerParam]| -> Vec<Param> {
            let params = params.iter().map(|&param| at(param));
            params.filter(|_| exists).collect()
        };
        let bias = optional(config.qkv_bias, &[Bq, Bk, Bv]);
        let norms = optional(config.qk_norm, &[QNorm, KNorm]);
        Ok(CudaLayer {
            attn_norm: self.matrix(&[at(AttnNorm)])?,
            wqkv: self.matrix(&[at(Wq), at(Wk), at(Wv)])?,
            bqkv: match bias.is_empty() {
                true => None,
                false => Some(self.vector(&bias)?),
            },
            head_norms: match norms.as_slice() {
                [q, k] => Some((self.matrix(&[*q])?, self.matrix(&[*k])?)),
                _ => None,
            },
            wo: self.matrix(&[at(Wo)])?,
            ffn_norm: self.matrix(&[at(FfnNorm)])?,
            ffn: match config.layer_moe(layer) {
                None => Ffn::Dense {
                    gate_up: self.matrix(&[at(WGate), at(WUp)])?,
                    down: self.matrix(&[at(WDown)])?,
                },
                Some(moe) => self.experts(moe, layer)?,
            },
        })
    }

    fn experts(&mut self, moe: &MoeConfig, layer: usize) -> Result<Ffn, CudaLoadError> {
        use LayerParam::*;
        let at = |param| Param::Layer(layer, param);
        let experts = 0..moe.num_experts;
        let gate_up = experts
            .clone()
            .flat_map(|e| [at(ExpertGate(e)), at(ExpertUp(e))]);
        let down = experts.map(|e| at(ExpertDown(e)));
        Ok(Ffn::Moe {
            router: self.matrix(&[at(Router)])?,
            gate_up: self.matrix(&gate_up.collect::<Vec<_>>())?,
            down: self.matrix(&down.collect::<Vec<_>>())?,
        })
    }

    /// Vectors, one after the other, as one row.
    fn vector(&mut self, params: &[Param]) -> Result<Weight, CudaLoadError> {
        let stacked = self.matrix(params)?;
        Ok(Weight {
            rows: 1,
            cols: stacked.buffer.len() as u32,
            ..stacked
        })
    }

    /// Matrices of one width, one below the other.
    fn matrix(&mut self, params: &[Param]) -> Result<Weight, CudaLoadError> {
        let config = self.checkpoint.config();
        let shape = |param: &Param| param.shape(config).expect("a parameter of this model");
        let cols = shape(&params[0])[1];
        let len: usize = params
            .iter()
            .map(shape)
            .map(|[rows, cols]| rows * cols)
            .sum();
        let buffer = Arc::new(DeviceBuffer::new(self.stream.device(), len)?);
        self.bytes += (len * size_of::<bf16>()) as u64;
        if self.is_dummy {
            self.make_up(params[0], &buffer, cols)?;
        } else {
            let mut index = 0;
            for &param in params {
                let view = self.checkpoint.param(param)?;
                let view = view.expect("a parameter of this model");
                self.pieces.extend(Piece::cut(view, &buffer, index));
                index += view.rows * view.cols;
            }
        }
        Ok(Weight {
            buffer,
            rows: (len / cols) as u32,
            cols: cols as u32,
        })
    }

    /// Norms are ones; matrices keep the variance of what they multiply, so that activations stay finite.
    fn make_up(
        &mut self,
        param: Param,
        buffer: &DeviceBuffer<bf16>,
        cols: usize,
    ) -> Result<(), CudaError> {
        use LayerParam::{AttnNorm, Bk, Bq, Bv, FfnNorm, KNorm, QNorm};
        match param {
            Param::FinalNorm | Param::Layer(_, AttnNorm | FfnNorm | QNorm | KNorm) => {
                return buffer.write(self.stream, &vec![bf16::ONE; buffer.len()]);
            }
            _ => self.seed += 1,
        }
        let deviation = match param {
            Param::Layer(_, Bq | Bk | Bv) => 0.02,
            _ => 1.0 / (cols as f32).sqrt(),
        };
        // Of a uniform distribution: width over the square root of 12.
        fill_random(self.stream, buffer, self.seed, deviation * 12f32.sqrt())
    }

    /// Brings everything to the device; returns its bytes.
    fn finish(self, progress: &mut dyn FnMut(u64, u64)) -> Result<u64, CudaLoadError> {
        let mut done = 0;
        progress(done, self.bytes);
        staging::bring(self.stream.device(), &self.pieces, &mut |piece| {
            self.checkpoint.release(&piece.view);
            done += (piece.view.rows * piece.view.cols * size_of::<bf16>()) as u64;
            progress(done, self.bytes);
        })?;
        self.stream.synchronize()?;
        progress(self.bytes, self.bytes);
        Ok(self.bytes)
    }
}
