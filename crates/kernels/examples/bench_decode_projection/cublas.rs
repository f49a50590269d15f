//! cuBLAS, loaded at run time: the baseline.

use std::error::Error;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use half::bf16;
use izar_kernels::{DeviceBuffer, Stream};

type Handle = *mut c_void;
type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
type SetStream = unsafe extern "C" fn(Handle, *mut c_void) -> c_int;
type SetWorkspace = unsafe extern "C" fn(Handle, *mut c_void, usize) -> c_int;
#[rustfmt::skip]
type GemmEx = unsafe extern "C" fn(
    Handle, c_int, c_int, c_int, c_int, c_int,
    *const f32, *const c_void, c_int, c_int, *const c_void, c_int, c_int,
    *const f32, *mut c_void, c_int, c_int, c_int, c_int,
) -> c_int;

const TRANSPOSED: c_int = 1;
const AS_IS: c_int = 0;
const BF16: c_int = 14;
const COMPUTE_F32: c_int = 68;
const DEFAULT_ALGORITHM: c_int = -1;
const WORKSPACE_BYTES: usize = 64 << 20;

/// A handle on one stream, with a workspace of its own so that it can be captured.
pub struct Cublas {
    handle: Handle,
    gemm: GemmEx,
    _workspace: DeviceBuffer<u8>,
}

fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, Box<dyn Error>> {
    // SAFETY: the library is open; the name is NUL-terminated.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    if symbol.is_null() {
        Err(format!("no symbol {name:?}").into())
    } else {
        Ok(symbol)
    }
}

fn ok(call: &str, status: c_int) -> Result<(), Box<dyn Error>> {
    if status == 0 {
        Ok(())
    } else {
        Err(format!("{call}: cuBLAS status {status}").into())
    }
}

impl Cublas {
    pub fn load(stream: &Stream) -> Result<Self, Box<dyn Error>> {
        // SAFETY: opens a library by name; its initialisers are the vendor's.
        let library = unsafe { libc::dlopen(c"libcublas.so.13".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err("libcublas.so.13 not found: set LD_LIBRARY_PATH".into());
        }
        let create = symbol(library, c"cublasCreate_v2")?;
        let set_stream = symbol(library, c"cublasSetStream_v2")?;
        let set_workspace = symbol(library, c"cublasSetWorkspace_v2")?;
        let gemm = symbol(library, c"cublasGemmEx")?;
        let workspace = DeviceBuffer::new(stream.device(), WORKSPACE_BYTES)?;
        let mut handle = ptr::null_mut();
        // SAFETY: the signatures are cublas_v2.h's; the library stays open for the process.
        let gemm = unsafe {
            let create = std::mem::transmute::<*mut c_void, Create>(create);
            let set_stream = std::mem::transmute::<*mut c_void, SetStream>(set_stream);
            let set_workspace = std::mem::transmute::<*mut c_void, SetWorkspace>(set_workspace);
            ok("create", create(&mut handle))?;
            ok("set stream", set_stream(handle, stream.raw_handle()))?;
            ok(
                "set workspace",
                set_workspace(handle, workspace.address_of(0), WORKSPACE_BYTES),
            )?;
            std::mem::transmute::<*mut c_void, GemmEx>(gemm)
        };
        Ok(Self {
            handle,
            gemm,
            _workspace: workspace,
        })
    }

    /// `y[tokens, rows] = x[tokens, depth] * weight[rows, depth]ᵀ`, all dense.
    pub fn project(
        &self,
        weight: &DeviceBuffer<bf16>,
        x: &DeviceBuffer<bf16>,
        y: &DeviceBuffer<bf16>,
        rows: u32,
        depth: u32,
        tokens: u32,
    ) -> Result<(), Box<dyn Error>> {
        let [rows, depth, tokens] = [rows, depth, tokens].map(u32::cast_signed);
        let (w, x, y) = (weight.address_of(0), x.address_of(0), y.address_of(0));
        let (one, zero) = (1.0, 0.0);
        // SAFETY: the buffers hold the matrices; column-major y is the transpose of ours.
        #[rustfmt::skip]
        let status = unsafe {
            (self.gemm)(
                self.handle, TRANSPOSED, AS_IS, rows, tokens, depth,
                &one, w, BF16, depth, x, BF16, depth,
                &zero, y, BF16, rows, COMPUTE_F32, DEFAULT_ALGORITHM,
            )
        };
        ok("gemm", status)
    }
}
