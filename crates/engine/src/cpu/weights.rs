//! A model's weights, packed: one arena for the matrices, plain vectors for norms and biases.
//!
//! Built once by [`Weights::load`], by all ranks of the team together; read-only afterwards.

use izar_model::{Checkpoint, LayerParam, ModelConfig, Param, TensorView};

use super::error::LoadError;
use super::format::GROUP;
use super::memory::{Buffer, Shared};
use super::pack::{Matrix, pack_tile};
use super::team::Team;

/// Everything a forward pass reads that is not activations.
pub(super) struct Weights {
    arena: Buffer<u8>,
    pub(super) embedding: Matrix,
    pub(super) head: Matrix,
    /// Padded to whole groups with zeros, as all norms of the residual stream.
    pub(super) final_norm: Vec<f32>,
    pub(super) layers: Vec<Layer>,
}

/// One decoder layer.
pub(super) struct Layer {
    pub(super) attn_norm: Vec<f32>,
    pub(super) q: Projection,
    pub(super) k: Projection,
    pub(super) v: Projection,
    pub(super) q_norm: Option<Vec<f32>>,
    pub(super) k_norm: Option<Vec<f32>>,
    pub(super) output: Matrix,
    pub(super) ffn_norm: Vec<f32>,
    pub(super) ffn: Ffn,
}

/// A projection to heads: runs of tiles are heads.
pub(super) struct Projection {
    pub(super) matrix: Matrix,
    pub(super) bias: Option<Vec<f32>>,
}

/// The feed-forward half of a layer.
pub(super) enum Ffn {
    /// One SwiGLU block.
    Dense(GatedMlp),
    /// Many, of which a token visits a few.
    Moe {
        router: Matrix,
        experts: Vec<GatedMlp>,
    },
}

/// The matrices of a SwiGLU block.
#[derive(Clone, Copy)]
pub(super) struct GatedMlp {
    pub(super) gate: Matrix,
    pub(super) up: Matrix,
    pub(super) down: Matrix,
}

impl Weights {
    /// Packs every parameter. `progress(done, total)` is told packed bytes.
    pub(super) fn load(
        checkpoint: &Checkpoint,
        team: &mut Team,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let mut plan = Plan {
            checkpoint,
            offset: 0,
            parts: Vec::new(),
        };
        let config = checkpoint.config();
        let embedding = plan.matrix(Param::TokenEmbedding, config.vocab_size)?;
        let layers = (0..config.num_layers)
            .map(|layer| plan.layer(config, layer))
            .collect::<Result<_, _>>()?;
        let final_norm = plan.norm(Param::FinalNorm)?;
        let head = match config.tie_word_embeddings {
            true => embedding,
            false => plan.matrix(Param::LmHead, config.vocab_size)?,
        };
        let arena = plan.pack(team, progress)?;
        Ok(Self {
            arena,
            embedding,
            head,
            final_norm,
            layers,
        })
    }

    /// Bytes of the packed matrices.
    pub(super) fn bytes(&self) -> usize {
        self.arena.len()
    }

    pub(super) fn arena(&mut self) -> Shared<u8> {
        self.arena.shared()
    }
}

/// Matrices found so far and where they will lie.
struct Plan<'a> {
    checkpoint: &'a Checkpoint,
    offset: usize,
    parts: Vec<(Matrix, TensorView<'a>)>,
}

impl<'a> Plan<'a> {
    fn view(&self, param: Param) -> Result<TensorView<'a>, LoadError> {
        // The checkpoint promised every parameter of its config; `None` means that the config has no such parameter.
        Ok(self
            .checkpoint
            .param(param)?
            .unwrap_or_else(|| panic!("{param:?} is not part of this model")))
    }

    fn matrix(&mut self, param: Param, run_rows: usize) -> Result<Matrix, LoadError> {
        let view = self.view(param)?;
        let matrix = Matrix::new(&view, run_rows, self.offset);
        self.offset += matrix.bytes().next_multiple_of(64);
        self.parts.push((matrix, view));
        Ok(matrix)
    }

    fn vector(&self, param: Param) -> Result<Option<Vec<f32>>, LoadError> {
        Ok(self.checkpoint.param(param)?.map(|view| view.to_f32()))
    }

    fn norm(&self, param: Param) -> Result<Vec<f32>, LoadError> {
        let mut weight = self.view(param)?.to_f32();
        weight.resize(weight.len().next_multiple_of(GROUP), 0.0);
        Ok(weight)
    }

    fn layer(&mut self, config: &ModelConfig, layer: usize) -> Result<Layer, LoadError> {
        let at = |param| Param::Layer(layer, param);
        let dim = config.head_dim;
        Ok(Layer {
            attn_norm: self.norm(at(LayerParam::AttnNorm))?,
            q: self.projection(at(LayerParam::Wq), at(LayerParam::Bq), dim)?,
            k: self.projection(at(LayerParam::Wk), at(LayerParam::Bk), dim)?,
            v: self.projection(at(LayerParam::Wv), at(LayerParam::Bv), dim)?,
            q_norm: self.vector(at(LayerParam::QNorm))?,
            k_norm: self.vector(at(LayerParam::KNorm))?,
            output: self.matrix(at(LayerParam::Wo), config.hidden_size)?,
            ffn_norm: self.norm(at(LayerParam::FfnNorm))?,
            ffn: self.ffn(config, layer)?,
        })
    }

    fn projection(
        &mut self,
        weight: Param,
        bias: Param,
        head_dim: usize,
    ) -> Result<Projection, LoadError> {
        Ok(Projection {
            matrix: self.matrix(weight, head_dim)?,
            bias: self.vector(bias)?,
        })
    }

    fn ffn(&mut self, config: &ModelConfig, layer: usize) -> Result<Ffn, LoadError> {
        let at = |param| Param::Layer(layer, param);
        let hidden = config.hidden_size;
        let Some(moe) = config.layer_moe(layer) else {
            let inner = config.intermediate_size;
            return Ok(Ffn::Dense(GatedMlp {
                gate: self.matrix(at(LayerParam::WGate), inner)?,
                up: self.matrix(at(LayerParam::WUp), inner)?,
                down: self.matrix(at(LayerParam::WDown), hidden)?,
            }));
        };
        let router = self.matrix(at(LayerParam::Router), moe.num_experts)?;
        let experts = (0..moe.num_experts)
            .map(|expert| {
                let inner = moe.moe_intermediate_size;
                Ok(GatedMlp {
                    gate: self.matrix(at(LayerParam::ExpertGate(expert)), inner)?,
                    up: self.matrix(at(LayerParam::ExpertUp(expert)), inner)?,
                    down: self.matrix(at(LayerParam::ExpertDown(expert)), hidden)?,
                })
            })
            .collect::<Result<_, LoadError>>()?;
        Ok(Ffn::Moe { router, experts })
    }

    fn pack(
        self,
        team: &mut Team,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Buffer<u8>, LoadError> {
        let mut arena = Buffer::zeroed(self.offset).map_err(LoadError::Memory)?;
        let shared = arena.shared();
        let total = self.offset as u64;
        progress(0, total);
        for (matrix, view) in &self.parts {
            let tile_bytes = matrix.tile_bytes();
            team.run(|rank| {
                rank.for_each(matrix.num_tiles(), |tile| {
                    // SAFETY: a tile is packed by one rank, and matrices do not overlap.
                    let out =
                        unsafe { shared.slice_mut(matrix.offset + tile * tile_bytes, tile_bytes) };
                    pack_tile(matrix, view, tile, out);
                });
            });
            self.checkpoint.release(view);
            progress((matrix.offset + matrix.bytes()) as u64, total);
        }
        progress(total, total);
        Ok(arena)
    }
}
