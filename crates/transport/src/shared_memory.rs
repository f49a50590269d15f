//! [`SharedMemory`]: front end and engine are two processes of one host.
//!
//! The ring lies in a file of `/dev/shm` or in a memfd. The engine's process creates it and holds a lock on the file for as
//! long as it lives, so a file whose engine is gone can be told from one in use: it is replaced, or taken over together with
//! its front ends ([`SharedMemory::adopt`]). A named ring appears under its name only when it is complete.
//!
//! A front end attaches and believes nothing: magic, version, geometry, offsets and size are checked. Files are readable and
//! writable by their owner alone; a memfd is sealed against shrinking.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use izar_ring::{
    EngineRing, HEADER_BYTES, Header, HeaderError, RingLayout, RingOptions, slot_table,
};
use memmap2::MmapOptions;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::mapping::{Mapping, transport_over_mapping};
use crate::{EngineEnd, Transport};

/// Where named rings are.
const DIRECTORY: &str = "/dev/shm";

/// A ring in memory that several processes map.
pub struct SharedMemory {
    mapping: Mapping,
    /// Keeps the engine's lock.
    file: File,
    /// In the engine's process: the name to remove at the end.
    name: Option<PathBuf>,
}

/// Why a shared ring could not be created or taken over.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// A name is letters, digits, `-`, `_` and `.`.
    #[error("{0:?} cannot name a ring: use letters, digits, '-', '_' and '.'")]
    Name(String),
    /// Another engine lives on it.
    #[error("{0} is in use by another engine; stop it or choose another name")]
    InUse(PathBuf),
    /// The ring cannot be laid out, or is not one that can be taken over.
    #[error("cannot set the ring up: {0}")]
    Ring(#[from] izar_ring::AttachError),
    /// The file system refused.
    #[error("cannot create or map {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a shared ring could not be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// A name is letters, digits, `-`, `_` and `.`.
    #[error("{0:?} cannot name a ring: use letters, digits, '-', '_' and '.'")]
    Name(String),
    /// There is no such file, or it may not be opened.
    #[error("cannot open or map {path}: {source}; is the engine running, and as the same user?")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file does not hold a ring that this version understands.
    #[error("{path} cannot be used: {source}")]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: HeaderError,
    },
}

impl SharedMemory {
    /// Engine: creates the ring called `name` and holds it until dropped. What a dead engine left under the name is replaced;
    /// its front ends keep the old memory and see that nobody serves it.
    ///
    /// # Errors
    /// See [`CreateError`].
    pub fn create(
        name: &str,
        options: &RingOptions,
    ) -> Result<(Arc<SharedMemory>, EngineEnd), CreateError> {
        let path = path_of(name).ok_or_else(|| CreateError::Name(name.into()))?;
        let io = |source| CreateError::Io {
            path: path.clone(),
            source,
        };
        // Holding the lock of a dead engine's file keeps two successors from replacing each other.
        let predecessor = match open(&path) {
            Ok(file) => Some(locked(file, &path)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(io(error)),
        };
        let draft = Draft::new(&path).map_err(io)?;
        let file = locked(draft.file.try_clone().map_err(io)?, &path)?;
        let (mapping, ring) = create_in(&file, &path, options)?;
        let placed = if predecessor.is_some() {
            draft.replace(&path)
        } else {
            draft.place(&path)
        };
        placed.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => CreateError::InUse(path.clone()),
            _ => io(error),
        })?;
        Ok(share(
            SharedMemory {
                mapping,
                file,
                name: Some(path),
            },
            ring,
        ))
    }

    /// Engine: creates a ring without a name. Front ends attach with [`SharedMemory::attach_fd`] to a copy of
    /// [`SharedMemory::fd`] that they inherit or are sent.
    ///
    /// # Errors
    /// See [`CreateError`].
    pub fn create_unnamed(
        options: &RingOptions,
    ) -> Result<(Arc<SharedMemory>, EngineEnd), CreateError> {
        let path = Path::new("memfd:izar");
        let io = |errno: rustix::io::Errno| CreateError::Io {
            path: path.into(),
            source: errno.into(),
        };
        let fd =
            memfd_create("izar", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(io)?;
        let file = File::from(fd);
        let (mapping, ring) = create_in(&file, path, options)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(io)?;
        Ok(share(
            SharedMemory {
                mapping,
                file,
                name: None,
            },
            ring,
        ))
    }

    /// Engine: takes over the ring called `name` from an engine that is gone, with the front ends attached to it. What ran
    /// ends with an error; what was not yet claimed is served. `epoch` as in [`RingOptions::epoch`].
    ///
    /// # Errors
    /// See [`CreateError`]; if there is no usable ring, create one.
    pub fn adopt(name: &str, epoch: u64) -> Result<(Arc<SharedMemory>, EngineEnd), CreateError> {
        let path = path_of(name).ok_or_else(|| CreateError::Name(name.into()))?;
        let io = |source| CreateError::Io {
            path: path.clone(),
            source,
        };
        let file = locked(open(&path).map_err(io)?, &path)?;
        let mapping = map_whole(&file).map_err(io)?;
        let layout = layout_of(&mapping).map_err(izar_ring::AttachError::Header)?;
        let ring = EngineRing::adopt(
            mapping.memory().clone(),
            epoch,
            slot_table(layout.num_slots()),
        )?;
        Ok(share(
            SharedMemory {
                mapping,
                file,
                name: Some(path),
            },
            ring,
        ))
    }

    /// Front end: attaches to the ring called `name`.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn attach(name: &str) -> Result<Arc<SharedMemory>, AttachError> {
        SharedMemory::attach_path(&path_of(name).ok_or_else(|| AttachError::Name(name.into()))?)
    }

    /// Front end: attaches to the ring in the file at `path`, for example `/proc/PID/fd/N` of an engine's memfd.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn attach_path(path: &Path) -> Result<Arc<SharedMemory>, AttachError> {
        let file = open(path).map_err(|source| AttachError::Io {
            path: path.into(),
            source,
        })?;
        attach_file(file, path)
    }

    /// Front end: attaches to the ring in an open file.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn attach_fd(fd: OwnedFd) -> Result<Arc<SharedMemory>, AttachError> {
        attach_file(fd.into(), Path::new("inherited file"))
    }

    /// The file that holds the ring.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Transport for SharedMemory {
    transport_over_mapping!();
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let Some(path) = &self.name else { return };
        // Whoever replaced the file under the name keeps it.
        let identity = |m: std::fs::Metadata| (m.dev(), m.ino());
        let ours = self.file.metadata().map(identity);
        if std::fs::metadata(path)
            .map(identity)
            .is_ok_and(|found| ours.is_ok_and(|ours| ours == found))
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove the ring's file");
        }
    }
}

/// The file of a named ring.
fn path_of(name: &str) -> Option<PathBuf> {
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let fine = !name.is_empty() && name.len() < 200 && name.chars().all(legal);
    fine.then(|| Path::new(DIRECTORY).join(format!("izar-{name}")))
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Takes the engine's lock; the kernel drops it when the process ends, however it ends.
fn locked(file: File, path: &Path) -> Result<File, CreateError> {
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(CreateError::InUse(path.into())),
        Err(TryLockError::Error(source)) => Err(CreateError::Io {
            path: path.into(),
            source,
        }),
    }
}

fn map_whole(file: &File) -> io::Result<Mapping> {
    let len = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    Ok(Mapping::from_map(
        MmapOptions::new().len(len).map_raw(file)?,
    ))
}

/// Sizes and maps `file` and creates a ring in it.
fn create_in(
    file: &File,
    path: &Path,
    options: &RingOptions,
) -> Result<(Mapping, EngineRing), CreateError> {
    let io = |source| CreateError::Io {
        path: path.into(),
        source,
    };
    let layout = RingLayout::new(options.geometry).map_err(izar_ring::AttachError::Geometry)?;
    file.set_len(layout.total_bytes()).map_err(io)?;
    let mapping = map_whole(file).map_err(io)?;
    let ring = EngineRing::create(
        mapping.memory().clone(),
        options,
        slot_table(layout.num_slots()),
    )?;
    Ok((mapping, ring))
}

fn share(transport: SharedMemory, ring: EngineRing) -> (Arc<SharedMemory>, EngineEnd) {
    let transport = Arc::new(transport);
    (transport.clone(), EngineEnd::new(ring, transport))
}

fn attach_file(file: File, path: &Path) -> Result<Arc<SharedMemory>, AttachError> {
    let header = |source| AttachError::Header {
        path: path.into(),
        source,
    };
    let io = |source| AttachError::Io {
        path: path.into(),
        source,
    };
    let len = file.metadata().map_err(io)?.len();
    if len < HEADER_BYTES {
        return Err(header(HeaderError::TooSmall(HEADER_BYTES, len)));
    }
    let mapping = map_whole(&file).map_err(io)?;
    layout_of(&mapping).map_err(header)?;
    Ok(Arc::new(SharedMemory {
        mapping,
        file,
        name: None,
    }))
}

/// Reads and checks the header of a mapped ring.
fn layout_of(mapping: &Mapping) -> Result<RingLayout, HeaderError> {
    let mut bytes = [0; HEADER_BYTES as usize];
    match mapping.memory().read(0, &mut bytes) {
        Ok(()) => Header::decode(&bytes).layout(mapping.memory().len()),
        Err(_) => Err(HeaderError::TooSmall(HEADER_BYTES, mapping.memory().len())),
    }
}

/// A file that is not under its final name yet; the draft's name is removed in any case.
struct Draft {
    file: File,
    path: PathBuf,
}

impl Draft {
    fn new(target: &Path) -> io::Result<Draft> {
        let mut path = target.as_os_str().to_owned();
        path.push(format!(".new-{}", std::process::id()));
        let path = PathBuf::from(path);
        // Left by a process that had our number and died: nobody else uses it.
        let _ = std::fs::remove_file(&path);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        Ok(Draft { file, path })
    }

    /// Gives the file its name; fails if the name is taken.
    fn place(self, target: &Path) -> io::Result<()> {
        std::fs::hard_link(&self.path, target)
    }

    /// Gives the file its name in place of what has it.
    fn replace(self, target: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, target)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Fails after `replace`, which has moved it.
        let _ = std::fs::remove_file(&self.path);
    }
}
