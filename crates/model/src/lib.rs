//! Model files: what a checkpoint says about itself and where its weights lie.
//!
//! A [`Checkpoint`] is a Hugging Face directory (`config.json` and safetensors) or one GGUF file,
//! memory mapped. It answers two questions: what is the model ([`ModelConfig`]) and where is a
//! parameter ([`Checkpoint::param`] gives a [`TensorView`] into the map, under one name whatever the
//! file calls it). Fused projections (Phi-3) and stacked experts (GGUF) are sliced here, so that a back end
//! never learns which format it was fed from.
//!
//! It does not compute, does not copy weights, and knows no device. Nothing changes after
//! `open`: a `Checkpoint` is `Send + Sync`, and any thread may read any view.
//!
//! Files are not trusted. Every count, size and offset is checked before it is used; a bad file
//! yields a [`LoadError`] whose message is one line naming the file, the tensor or key, what was expected and
//! what was found. No input makes this crate panic or allocate more than a small multiple
//! of the file's header.
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | [`ModelConfig`] and its parsers from `config.json` and GGUF metadata |
//! | [`gguf`] | the GGUF container |
//! | `safetensors` | the safetensors container, single or sharded |
//! | `names` | which tensor, and which rows of it, holds a [`Param`] |
//! | [`dtype`] | element types and dequantisation |
//! | `dummy` | parameters made up from a config alone |

mod checkpoint;
pub mod config;
mod dequant;
pub mod dtype;
mod dummy;
mod error;
pub mod gguf;
mod json;
mod names;
pub mod param;
mod safetensors;
mod table;

pub use checkpoint::{Checkpoint, LoadFormat};
pub use config::{
    Architecture, GenerationConfig, ModelConfig, MoeConfig, Pairing, RopeConfig, RopeFrequencies,
    RopeScaling,
};
pub use dtype::Dtype;
pub use error::LoadError;
pub use gguf::Gguf;
pub use param::{LayerParam, Param, TensorView};
