//! Finding and loading the library.

use std::env;
use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{CublasError, LibraryError, ok};

/// Names to ask the loader for, newest first.
const NAMES: [&str; 2] = ["libcublasLt.so.13", "libcublasLt.so.12"];

type Handle = *mut c_void;
type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;
type Create = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type Version = unsafe extern "C" fn() -> usize;
type CreateDesc = unsafe extern "C" fn(*mut *mut c_void, c_int, c_int) -> c_int;
type CreateLayout = unsafe extern "C" fn(*mut *mut c_void, c_int, u64, u64, i64) -> c_int;
type SetAttribute = unsafe extern "C" fn(*mut c_void, c_int, *const c_void, usize) -> c_int;
#[rustfmt::skip]
type FindAlgorithms = unsafe extern "C" fn(
    Handle, *mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void,
    c_int, *mut c_void, *mut c_int,
) -> c_int;
#[rustfmt::skip]
type Matmul = unsafe extern "C" fn(
    Handle, *mut c_void,
    *const c_void, *const c_void, *mut c_void, *const c_void, *mut c_void,
    *const c_void, *const c_void, *mut c_void, *mut c_void, *mut c_void,
    *const c_void, *mut c_void, usize, *mut c_void,
) -> c_int;

/// The loaded library with a handle of its own. Never unloaded: its kernels may still run.
pub(crate) struct CublasLt {
    path: PathBuf,
    version: usize,
    pub(super) handle: Handle,
    destroy: Destroy,
    pub(super) desc_create: CreateDesc,
    pub(super) desc_destroy: Destroy,
    pub(super) desc_set: SetAttribute,
    pub(super) layout_create: CreateLayout,
    pub(super) layout_destroy: Destroy,
    pub(super) pref_create: Create,
    pub(super) pref_destroy: Destroy,
    pub(super) pref_set: SetAttribute,
    pub(super) heuristic: FindAlgorithms,
    pub(super) matmul: Matmul,
}

// SAFETY: the handle is documented as usable from any thread, and by several at once.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

impl CublasLt {
    /// Loads the library and makes a handle for the device that is current on this thread.
    pub(crate) fn load() -> Result<Result<Self, CublasError>, LibraryError> {
        let (path, library) = open()?;
        // SAFETY: each pointer is the address of the function of that name, whose signature is that of cublasLt.h.
        let loaded = unsafe { Self::bind(path, library)? };
        Ok(loaded)
    }

    /// The file it was loaded from.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// `cublasLtGetVersion`: 130000 is 13.0.0.
    pub(crate) fn version(&self) -> usize {
        self.version
    }

    /// # Safety
    /// `library` is open and is cuBLASLt.
    unsafe fn bind(
        path: PathBuf,
        library: *mut c_void,
    ) -> Result<Result<Self, CublasError>, LibraryError> {
        macro_rules! function {
            ($name:literal as $signature:ty) => {{
                // SAFETY: the library is open; the name is NUL-terminated.
                let address = unsafe { libc::dlsym(library, concat!($name, "\0").as_ptr().cast()) };
                if address.is_null() {
                    return Err(LibraryError::MissingFunction { path, name: $name });
                }
                // SAFETY: a function of this name has the target's signature, by the caller's contract.
                unsafe { std::mem::transmute::<*mut c_void, $signature>(address) }
            }};
        }
        let create = function!("cublasLtCreate" as Create);
        let version = function!("cublasLtGetVersion" as Version);
        let mut bound = Self {
            version: 0,
            handle: std::ptr::null_mut(),
            destroy: function!("cublasLtDestroy" as Destroy),
            desc_create: function!("cublasLtMatmulDescCreate" as CreateDesc),
            desc_destroy: function!("cublasLtMatmulDescDestroy" as Destroy),
            desc_set: function!("cublasLtMatmulDescSetAttribute" as SetAttribute),
            layout_create: function!("cublasLtMatrixLayoutCreate" as CreateLayout),
            layout_destroy: function!("cublasLtMatrixLayoutDestroy" as Destroy),
            pref_create: function!("cublasLtMatmulPreferenceCreate" as Create),
            pref_destroy: function!("cublasLtMatmulPreferenceDestroy" as Destroy),
            pref_set: function!("cublasLtMatmulPreferenceSetAttribute" as SetAttribute),
            heuristic: function!("cublasLtMatmulAlgoGetHeuristic" as FindAlgorithms),
            matmul: function!("cublasLtMatmul" as Matmul),
            path,
        };
        // SAFETY: no arguments.
        bound.version = unsafe { version() };
        // SAFETY: writes one handle.
        let created = ok("cublasLtCreate", unsafe { create(&mut bound.handle) });
        Ok(created.map(|()| bound))
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: made by the library, destroyed once.
            unsafe { (self.destroy)(self.handle) };
        }
    }
}

/// Opens the file that `IZAR_CUBLASLT` names, or the first that works: of the loader, then of the usual folders.
fn open() -> Result<(PathBuf, *mut c_void), LibraryError> {
    if let Some(path) = env::var_os("IZAR_CUBLASLT").map(PathBuf::from) {
        return match open_file(&path) {
            Ok(library) => Ok((path, library)),
            Err(reason) => Err(LibraryError::Unusable { path, reason }),
        };
    }
    let mut unusable = None;
    let by_loader = NAMES.iter().map(PathBuf::from);
    let in_folders = folders()
        .into_iter()
        .flat_map(|folder| NAMES.map(|name| folder.join(name)))
        .filter(|path| path.is_file());
    for path in by_loader.chain(in_folders) {
        match open_file(&path) {
            Ok(library) => return Ok((path, library)),
            Err(reason) if path.is_file() => {
                unusable = Some(LibraryError::Unusable { path, reason })
            }
            Err(_) => {}
        }
    }
    Err(unusable.unwrap_or(LibraryError::NotFound))
}

fn open_file(path: &Path) -> Result<*mut c_void, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: opens a library by name; its initialisers are the vendor's.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !library.is_null() {
        return Ok(library);
    }
    // SAFETY: returns null or a NUL-terminated string that lives until the next call of this thread.
    let reason = unsafe { libc::dlerror() };
    if reason.is_null() {
        return Err("cannot be loaded".into());
    }
    // SAFETY: as above; copied before the next call.
    let reason = unsafe { CStr::from_ptr(reason) };
    Err(reason.to_string_lossy().into_owned())
}

/// Where toolkits and Python packages put it.
fn folders() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let toolkits = ["CUDA_HOME", "CUDA_PATH"]
        .into_iter()
        .filter_map(env::var_os);
    let toolkits = toolkits
        .map(PathBuf::from)
        .chain(["/usr/local/cuda".into()]);
    for home in toolkits {
        found.extend(["lib64", "lib", "targets/x86_64-linux/lib"].map(|lib| home.join(lib)));
    }
    found.push("/usr/lib/x86_64-linux-gnu".into());
    for prefix in python_prefixes() {
        let versions = children(&prefix.join("lib"));
        let versions = versions
            .into_iter()
            .filter(|path| has_prefix(path, "python3"));
        for packages in
            versions.flat_map(|lib| ["site-packages", "dist-packages"].map(|p| lib.join(p)))
        {
            let parts = children(&packages.join("nvidia"));
            found.extend(parts.into_iter().map(|part| part.join("lib")));
        }
    }
    found
}

/// Environments whose packages may hold it: those named, those on the path, and those below `/opt`.
fn python_prefixes() -> Vec<PathBuf> {
    let named = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(env::var_os);
    let mut found: Vec<PathBuf> = named.map(PathBuf::from).collect();
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).filter(|folder| folder.join("python3").exists());
    found.extend(on_path.filter_map(|folder| folder.parent().map(Path::to_owned)));
    for folder in children(Path::new("/opt")) {
        found.extend([folder.join(".venv"), folder.join("venv"), folder]);
    }
    found
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut found: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}

fn has_prefix(path: &Path, prefix: &str) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_bytes().starts_with(prefix.as_bytes()))
}
