//! Parameters by role, and a view of one in a checkpoint.

use std::fmt;

use crate::{Dtype, ModelConfig};

/// A parameter of the model, by what it does rather than by any file's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Param {
    /// `[vocab_size, hidden_size]`: one row per token.
    TokenEmbedding,
    /// `[1, hidden_size]`: RMS norm before the head.
    FinalNorm,
    /// `[vocab_size, hidden_size]`: the output projection; the token embedding itself where tied.
    LmHead,
    /// A parameter of layer `0..num_layers`.
    Layer(usize, LayerParam),
}

/// A parameter of one layer. Matrices are `[out features, in features]` row-major, so `y = W x`; vectors
/// are one row. q = `num_heads * head_dim`, kv = `num_kv_heads * head_dim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerParam {
    /// `[1, hidden]`: RMS norm before attention.
    AttnNorm,
    /// `[q, hidden]`.
    Wq,
    /// `[kv, hidden]`.
    Wk,
    /// `[kv, hidden]`.
    Wv,
    /// `[hidden, q]`.
    Wo,
    /// `[1, q]`, where `qkv_bias`.
    Bq,
    /// `[1, kv]`, where `qkv_bias`.
    Bk,
    /// `[1, kv]`, where `qkv_bias`.
    Bv,
    /// `[1, head_dim]`, where `qk_norm`: RMS norm of each query head before rotation.
    QNorm,
    /// `[1, head_dim]`, where `qk_norm`: RMS norm of each key head before rotation.
    KNorm,
    /// `[1, hidden]`: RMS norm before the feed-forward part.
    FfnNorm,
    /// `[intermediate, hidden]`, dense layers: the side that goes through SiLU.
    WGate,
    /// `[intermediate, hidden]`, dense layers.
    WUp,
    /// `[hidden, intermediate]`, dense layers.
    WDown,
    /// `[num_experts, hidden]`, MoE layers.
    Router,
    /// `[moe_intermediate, hidden]` of one expert, MoE layers: the side that goes through SiLU.
    ExpertGate(usize),
    /// `[moe_intermediate, hidden]` of one expert, MoE layers.
    ExpertUp(usize),
    /// `[hidden, moe_intermediate]` of one expert, MoE layers.
    ExpertDown(usize),
}

impl Param {
    /// Every parameter a model of this shape has, in the order of computation. A tied head is left out.
    pub fn all(config: &ModelConfig) -> impl Iterator<Item = Param> {
        let layers = (0..config.num_layers)
            .flat_map(|layer| LayerParam::all(config, layer).map(move |p| Param::Layer(layer, p)));
        let head = (!config.tie_word_embeddings).then_some(Param::LmHead);
        std::iter::once(Param::TokenEmbedding)
            .chain(layers)
            .chain([Param::FinalNorm])
            .chain(head)
    }

    /// `[rows, cols]` of this parameter; `None` if a model of this shape does not have it.
    ///
    /// # Panics
    /// If the layer is not below `num_layers`.
    pub fn shape(self, config: &ModelConfig) -> Option<[usize; 2]> {
        match self {
            Param::TokenEmbedding | Param::LmHead => Some([config.vocab_size, config.hidden_size]),
            Param::FinalNorm => Some([1, config.hidden_size]),
            Param::Layer(layer, param) => param.shape(config, layer),
        }
    }
}

impl LayerParam {
    fn all(config: &ModelConfig, layer: usize) -> impl Iterator<Item = LayerParam> {
        use LayerParam::*;
        let experts = config.layer_moe(layer).map_or(0, |moe| moe.num_experts);
        [
            AttnNorm, Wq, Wk, Wv, Bq, Bk, Bv, QNorm, KNorm, Wo, FfnNorm, WGate, WUp, WDown, Router,
        ]
        .into_iter()
        .filter(move |p| p.shape(config, layer).is_some())
        .chain((0..experts).flat_map(|e| [ExpertGate(e), ExpertUp(e), ExpertDown(e)]))
    }

    fn shape(self, config: &ModelConfig, layer: usize) -> Option<[usize; 2]> {
        use LayerParam::*;
        let (hidden, q, kv) = (config.hidden_size, config.q_size(), config.kv_size());
        let moe = config.layer_moe(layer);
        let dense = moe.is_none().then_some(config.intermediate_size);
        let expert = |e: usize| {
            moe.filter(|m| e < m.num_experts)
                .map(|m| m.moe_intermediate_size)
        };
        match self {
            AttnNorm | FfnNorm => Some([1, hidden]),
            Wq => Some([q, hidden]),
            Wk | Wv => Some([kv, hidden]),
            Wo => Some([hidden, q]),
            Bq => config.qkv_bias.then_some([1, q]),
            Bk | Bv => config.qkv_bias.then_some([1, kv]),
            QNorm | KNorm => config.qk_norm.then_some([1, config.head_dim]),
            WGate | WUp => dense.map(|inner| [inner, hidden]),
            WDown => dense.map(|inner| [hidden, inner]),
            Router => moe.map(|m| [m.num_experts, hidden]),
            ExpertGate(e) | ExpertUp(e) => expert(e).map(|inner| [inner, hidden]),
            ExpertDown(e) => expert(e).map(|inner| [hidden, inner]),
        }
    }
}

/// A parameter's elements where they lie: `rows × cols` row-major, rows contiguous.
///
/// `data` is exactly `rows` rows and has no alignment guarantee beyond one byte (safetensors
/// permits odd offsets; GGUF and dummy parameters start at multiples of 32 unless sliced).
#[derive(Clone, Copy)]
pub struct TensorView<'a> {
    /// The tensor's name in its file; for a slice, the tensor it is cut from.
    pub name: &'a str,
    /// Element type.
    pub dtype: Dtype,
    /// Out features; 1 for a vector.
    pub rows: usize,
    /// In features, a multiple of `dtype.block_len()`.
    pub cols: usize,
    /// `rows * row_bytes()` bytes.
    pub data: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.data.len() / self.rows
    }

    /// The encoded bytes of a row.
    ///
    /// # Panics
    /// If `row >= rows`.
    pub fn row(&self, row: usize) -> &'a [u8] {
        let bytes = self.row_bytes();
        &self.data[row * bytes..(row + 1) * bytes]
    }

    /// Decodes a row into `out` (`cols` elements).
    ///
    /// # Panics
    /// If `row >= rows` or `out.len() != cols`.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        self.dtype.dequantize(self.row(row), out);
    }

    /// Decodes the whole tensor into `out` (`rows * cols` elements, row-major).
    ///
    /// # Panics
    /// If `out.len() != rows * cols`.
    pub fn dequantize(&self, out: &mut [f32]) {
        self.dtype.dequantize(self.data, out);
    }

    /// The whole tensor decoded, row-major.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows * self.cols];
        self.dequantize(&mut out);
        out
    }
}

impl fmt::Debug for TensorView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            dtype,
            rows,
            cols,
            ..
        } = self;
        write!(f, "{name:?} {dtype} [{rows}, {cols}]")
    }
}
