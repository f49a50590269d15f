//! A checkpoint: one config and the weights it describes, whatever the container.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::config::{self, GenerationConfig, ModelConfig};
use crate::dummy::DummyWeights;
use crate::error::LoadError;
use crate::gguf::{self, Gguf};
use crate::json::one_line;
use crate::names::Naming;
use crate::param::{Param, TensorView};
use crate::safetensors;
use crate::table::{MappedFile, TensorTable};

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
    gguf: Option<Gguf>,
}

enum Weights {
    Files { naming: Naming, table: TensorTable },
    Dummy(DummyWeights),
}

impl Checkpoint {
    /// Opens a directory with `config.json` and safetensors, or a GGUF file, and [validates](Self::validate) it.
    ///
    /// # Errors
    /// Anything wrong with the files; nothing is left to fail later.
    pub fn open(path: &Path) -> Result<Checkpoint, LoadError> {
        Self::open_with(path, LoadFormat::Auto)
    }

    /// Opens a checkpoint with its weights from the files or made up. For [`LoadFormat::Dummy`] a directory needs
    /// only its `config.json`; a GGUF file still must be whole, since tensors are part of its config.
    ///
    /// # Errors
    /// Anything wrong with the files that are read.
    pub fn open_with(path: &Path, format: LoadFormat) -> Result<Checkpoint, LoadError> {
        let mut checkpoint = match path.is_dir() {
            true => Self::open_dir(path, format)?,
            false => Self::open_gguf(path)?,
        };
        if format == LoadFormat::Dummy {
            checkpoint.weights = Weights::Dummy(DummyWeights::new(&checkpoint.config));
        }
        checkpoint.validate()?;
        Ok(checkpoint)
    }

    /// A checkpoint of made-up weights for a shape: deterministic, in `config.dtype` (f32 if that is quantised).
    pub fn dummy(config: ModelConfig) -> Checkpoint {
        let weights = Weights::Dummy(DummyWeights::new(&config));
        Checkpoint {
            generation_config: GenerationConfig::default(),
            weights,
            config,
            gguf: None,
        }
    }

    fn open_dir(dir: &Path, format: LoadFormat) -> Result<Checkpoint, LoadError> {
        if !dir.join("config.json").exists() {
            let found = "a directory without config.json".into();
            return Err(LoadError::NotACheckpoint {
                path: dir.into(),
                found,
            });
        }
        let (config, generation_config) = config::hf::read(dir)?;
        let table = match format {
            LoadFormat::Auto => safetensors::open_dir(dir)?,
            LoadFormat::Dummy => TensorTable::new(dir.into()),
        };
        let weights = Weights::Files {
            naming: Naming::HuggingFace,
            table,
        };
        Ok(Checkpoint {
            config,
            generation_config,
            weights,
            gguf: None,
        })
    }

    fn open_gguf(path: &Path) -> Result<Checkpoint, LoadError> {
        if !path.exists() {
            return Err(LoadError::NotACheckpoint {
                path: path.into(),
                found: "nothing".into(),
            });
        }
        let file = MappedFile::open(path)?;
        if !file.bytes().starts_with(b"GGUF") {
            let found = "a file that does not start with \"GGUF\"".into();
            return Err(LoadError::NotACheckpoint {
                path: path.into(),
                found,
            });
        }
        let (gguf, tensors) = gguf::parse(path, file.bytes())?;
        let mut table = TensorTable::new(path.into());
        table.add(file, tensors, |_| true)?;
        let (config, generation_config) = config::gguf::read(&gguf, &table)?;
        let weights = Weights::Files {
            naming: Naming::Gguf,
            table,
        };
        Ok(Checkpoint {
            config,
            generation_config,
            weights,
            gguf: Some(gguf),
        })
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Recommended sampling; all `None` if the checkpoint has no opinion.
    pub fn generation_config(&self) -> &GenerationConfig {
        &self.generation_config
    }

    /// The metadata, if this is a GGUF file: the tokenizer and chat template are in there.
    pub fn gguf(&self) -> Option<&Gguf> {
        self.gguf.as_ref()
    }

    /// The files weights are read from; none if they are made up.
    pub fn files(&self) -> Vec<PathBuf> {
        match &self.weights {
            Weights::Files { table, .. } => table.files().map(Path::to_owned).collect(),
            Weights::Dummy(_) => Vec::new(),
        }
    }

    /// Bytes of all parameters as [`param`](Self::param) yields them, a tied head counted once.
    pub fn total_bytes(&self) -> u64 {
        let bytes = |param| match self.param(param) {
            Ok(Some(view)) => view.data.len() as u64,
            _ => 0,
        };
        Param::all(&self.config).map(bytes).sum()
    }

    /// Where a parameter lies, its shape already checked against the config; `None` if a model of this shape
    /// does not have it (biases, QK norms, dense or expert matrices). A tied head is the token embedding.
    ///
    /// # Errors
    /// A tensor is missing or has the wrong shape or an unsupported type. Not after [`open`](Self::open), which
    /// has asked for every parameter once.
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
            Weights::Files { naming, table } => {
                let source = naming.source(&self.config, param);
                source.map(|source| table.view(&source)).transpose()
            }
        }
    }

    /// Says that `view` will not be read soon: its file's pages stop counting as this process's memory. It
    /// stays readable, from disk. A back end that copies parameters releases each, so that loading never holds two copies.
    pub fn release(&self, view: &TensorView<'_>) {
        if let Weights::Files { table, .. } = &self.weights {
            table.release(view.data);
        }
    }

    /// Checks that every parameter is there with the right shape and a supported type, and that no tensor is
    /// left over that the computation would silently ignore.
    ///
    /// # Errors
    /// The first tensor that fails.
    pub fn validate(&self) -> Result<(), LoadError> {
        for param in Param::all(&self.config) {
            self.param(param)?;
        }
        let Weights::Files { naming, table } = &self.weights else {
            return Ok(());
        };
        let used: HashSet<String> = Param::all(&self.config)
            .filter_map(|param| naming.source(&self.config, param))
            .map(|source| source.tensor)
            .collect();
        let left_over =
            |name: &str| !used.contains(name) && !naming.is_redundant(&self.config, name);
        match table
            .iter()
            .filter(|(_, info)| left_over(&info.name))
            .min_by_key(|(_, info)| &info.name)
        {
            None => Ok(()),
            Some((file, info)) => Err(LoadError::UnexpectedTensor {
                file: file.into(),
                tensor: one_line(&info.name),
                architecture: self.config.architecture.hf_class(),
                found: format!("{:?}", info.shape),
            }),
        }
    }
}
