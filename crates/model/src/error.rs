//! Why a checkpoint could not be opened.

use std::path::PathBuf;

/// Why a checkpoint was refused. Every message is one line that names the file, the tensor or key, what was
/// expected and what was found; text taken from files is escaped.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The operating system refused to open, map or read a file.
    #[error("{}: cannot read: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file the checkpoint needs is not there.
    #[error("{}: no such file; {needed_because}", file.display())]
    MissingFile {
        /// The file.
        file: PathBuf,
        /// Who needs it, and what to do.
        needed_because: String,
    },
    /// The path is neither a checkpoint directory nor a GGUF file.
    #[error("{}: expected a directory with config.json or a .gguf file, found {found}", path.display())]
    NotACheckpoint {
        /// The path given.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// The file ends before something it promises.
    #[error("{}: truncated: {what} needs {expected} bytes of file, found {found}", file.display())]
    Truncated {
        /// The file.
        file: PathBuf,
        /// Tensor or part of the header.
        what: String,
        /// Least file length that would do, bytes.
        expected: u64,
        /// Length of the file, bytes.
        found: u64,
    },
    /// The container's structure is broken.
    #[error("{}: malformed: {what}: expected {expected}, found {found}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// Tensor, metadata key or part of the header.
        what: String,
        /// The rule.
        expected: String,
        /// What breaks it.
        found: String,
    },
    /// A key of `config.json` or GGUF metadata is missing or has a value Izar cannot use.
    #[error("{}: {key}: expected {expected}, found {found}", file.display())]
    Config {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
        /// What would do.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The model is of a family Izar does not run.
    #[error("{}: unknown architecture: expected one of {expected}, found {found}", file.display())]
    UnknownArchitecture {
        /// The file.
        file: PathBuf,
        /// The families that would do.
        expected: String,
        /// The family named.
        found: String,
    },
    /// The rotary embedding is of a kind Izar does not compute.
    #[error("{}: unsupported rope type: expected one of {expected}, found {found}", file.display())]
    UnsupportedRope {
        /// The file.
        file: PathBuf,
        /// The kinds that would do.
        expected: String,
        /// The kind named.
        found: String,
    },
    /// The checkpoint as a whole is quantised in a way Izar does not read.
    #[error("{}: unsupported quantization: expected unquantized safetensors or GGUF, found {found}", file.display())]
    UnsupportedQuantization {
        /// The file.
        file: PathBuf,
        /// The method named.
        found: String,
    },
    /// A tensor is stored in a type Izar does not read.
    #[error("{}: tensor {tensor}: unsupported type: expected one of {expected}, found {found}", file.display())]
    UnsupportedDtype {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The types that would do.
        expected: String,
        /// The type stored.
        found: String,
    },
    /// The model needs a tensor the files do not have.
    #[error("{}: tensor {tensor}: expected shape {expected}, found no such tensor", file.display())]
    MissingTensor {
        /// The file (or index) that should list it.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape.
        expected: String,
    },
    /// A tensor's shape is not the one the config implies.
    #[error("{}: tensor {tensor}: expected shape {expected}, found {found}", file.display())]
    WrongShape {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Shape implied by the config, outermost dimension first.
        expected: String,
        /// Shape stored.
        found: String,
    },
    /// The files hold a tensor the architecture has no use for, so the result would be silently wrong.
    #[error("{}: tensor {tensor}: expected no such tensor in a {architecture} model, found shape {found}", file.display())]
    UnexpectedTensor {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The model's family.
        architecture: &'static str,
        /// Its shape.
        found: String,
    },
}
