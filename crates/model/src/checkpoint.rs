//! A checkpoint: one config and the weights it describes, whatever the container.

use crate::config::{GenerationConfig, ModelConfig};
use crate::dummy::DummyWeights;
use crate::error::LoadError;
use crate::param::{Param, TensorView};

/// Where weights come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadFormat {
    /// From the checkpoint's files.
    #[default]
    Auto,
    /// Made up: only the config is read.
    Dummy,
}

/// An opened checkpoint. Immutable; share it by reference or `Arc`.
pub struct Checkpoint {
    config: ModelConfig,
    generation_config: GenerationConfig,
    weights: Weights,
}

enum Weights {
    Dummy(DummyWeights),
}

impl Checkpoint {
    /// A checkpoint of made-up weights for a shape: deterministic, in `config.dtype`.
    pub fn dummy(config: ModelConfig) -> Checkpoint {
        let weights = Weights::Dummy(DummyWeights::new(&config));
        Checkpoint {
            generation_config: GenerationConfig::default(),
            weights,
            config,
        }
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Recommended sampling; all `None` if the checkpoint has no opinion.
    pub fn generation_config(&self) -> &GenerationConfig {
        &self.generation_config
    }

    /// Where a parameter lies, its shape already checked against the config; `None` if a model of this shape
    /// does not have it (biases, QK norms, dense or expert matrices). A tied head is the token embedding.
    ///
    /// # Errors
    /// A tensor is missing or has the wrong shape or an unsupported type.
    ///
    /// # Panics
    /// If the layer is not below `num_layers`.
    pub fn param(&self, param: Param) -> Result<Option<TensorView<'_>>, LoadError> {
        let param = match param {
            Param::LmHead if self.config.tie_word_embeddings => Param::TokenEmbedding,
            other => other,
        };
        match &self.weights {
            Weights::Dummy(dummy) => Ok(dummy.param(&self.config, param)),
        }
    }
}
