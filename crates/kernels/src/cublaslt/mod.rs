//! cuBLASLt, loaded at run time: nothing links it, and a machine without it says so.
//!
//! Only what `linear` needs: one matrix product a call, its algorithm chosen once. Signatures and numbers are those of
//! `cublasLt.h`, the same in versions 12 and 13.

mod library;

use std::ffi::{c_int, c_void};
use std::path::PathBuf;

use crate::ffi::RawStream;

pub(crate) use library::CublasLt;

/// Why there is no cuBLASLt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// None of the usual places has it.
    #[error(
        "libcublasLt.so.13 or .12 not found: install CUDA's cuBLAS, or set IZAR_CUBLASLT to the file"
    )]
    NotFound,
    /// A file that cannot be loaded.
    #[error("{}: {reason}: set IZAR_CUBLASLT to another file", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What the loader said.
        reason: String,
    },
    /// A file that is loaded but has no such function.
    #[error("{}: no function {name}: cuBLAS 12 or 13 is needed", path.display())]
    MissingFunction {
        /// The file.
        path: PathBuf,
        /// The function.
        name: &'static str,
    },
}

/// A call that cuBLASLt refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{call}: cuBLAS status {status}")]
pub struct CublasError {
    /// The function.
    pub call: &'static str,
    /// Its status (`cublasStatus_t`).
    pub status: i32,
}

fn ok(call: &'static str, status: c_int) -> Result<(), CublasError> {
    match status {
        0 => Ok(()),
        status => Err(CublasError { call, status }),
    }
}

/// `cudaDataType`.
const F32: c_int = 0;
const BF16: c_int = 14;
/// `CUBLAS_COMPUTE_32F`.
const COMPUTE_F32: c_int = 68;
/// `CUBLAS_OP_T`.
const TRANSPOSED: c_int = 1;
/// `cublasLtMatmulDescAttributes_t`.
const DESC_TRANSA: c_int = 3;
const DESC_EPILOGUE: c_int = 7;
const DESC_BIAS_POINTER: c_int = 8;
/// `cublasLtEpilogue_t`.
const EPILOGUE_BIAS: c_int = 4;
/// `cublasLtMatmulPreferenceAttributes_t`: the workspace, and the alignments of A, B, C and D.
const PREF_WORKSPACE: c_int = 1;
const PREF_ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];

/// Alignment of every matrix row that algorithms may count on, bytes.
pub(crate) const ALIGNMENT: usize = 16;

/// `cublasLtMatmulHeuristicResult_t`: an algorithm, and what it needs.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Heuristic {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

const _: () = assert!(size_of::<Heuristic>() == 96);

impl Heuristic {
    const NONE: Self = Self {
        algorithm: [0; 8],
        workspace_bytes: 0,
        state: 0,
        waves: 0.0,
        reserved: [0; 4],
    };
}

/// A product `y = x * weightᵀ`: sizes and strides in elements. Two of the same shape share algorithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) rows: u32,
    pub(crate) depth: u32,
    pub(crate) tokens: u32,
    pub(crate) x_stride: u32,
    pub(crate) y_stride: u32,
    pub(crate) residual_stride: Option<u32>,
    pub(crate) has_bias: bool,
    pub(crate) is_f32: bool,
}

/// Device addresses of one call.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub(crate) weight: *const c_void,
    pub(crate) x: *const c_void,
    pub(crate) bias: *const c_void,
    pub(crate) residual: *const c_void,
    pub(crate) y: *mut c_void,
    pub(crate) workspace: *mut c_void,
    pub(crate) workspace_bytes: usize,
}

/// Destroys a descriptor made by the library.
struct Descriptor {
    raw: *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: an opaque host structure that the library reads; only one thread at a time has it (`Product` is behind a lock).
unsafe impl Send for Descriptor {}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed once.
        unsafe { (self.destroy)(self.raw) };
    }
}

/// A described product with the algorithm it runs by.
pub(crate) struct Product {
    shape: Shape,
    operation: Descriptor,
    weight: Descriptor,
    x: Descriptor,
    residual: Descriptor,
    y: Descriptor,
    chosen: Heuristic,
}

impl CublasLt {
    /// Describes a product and takes the library's first choice of algorithm. `Ok(None)`: it has none.
    pub(crate) fn describe(
        &self,
        shape: Shape,
        workspace_bytes: usize,
    ) -> Result<Option<Product>, CublasError> {
        let out = if shape.is_f32 { F32 } else { BF16 };
        let (rows, depth, tokens) = (shape.rows.into(), shape.depth.into(), shape.tokens.into());
        // Their matrices are column-major: ours, transposed.
        let mut product = Product {
            shape,
            operation: self.operation(shape.has_bias)?,
            weight: self.layout(BF16, depth, rows, shape.depth)?,
            x: self.layout(BF16, depth, tokens, shape.x_stride)?,
            residual: self.layout(
                out,
                rows,
                tokens,
                shape.residual_stride.unwrap_or(shape.y_stride),
            )?,
            y: self.layout(out, rows, tokens, shape.y_stride)?,
            chosen: Heuristic::NONE,
        };
        let Some(first) = self
            .candidates(&product, workspace_bytes, 1)?
            .first()
            .copied()
        else {
            return Ok(None);
        };
        product.chosen = first;
        Ok(Some(product))
    }

    fn operation(&self, has_bias: bool) -> Result<Descriptor, CublasError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        ok("cublasLtMatmulDescCreate", unsafe {
            (self.desc_create)(&mut raw, COMPUTE_F32, F32)
        })?;
        let operation = Descriptor {
            raw,
            destroy: self.desc_destroy,
        };
        self.set(&operation, DESC_TRANSA, &TRANSPOSED)?;
        if has_bias {
            self.set(&operation, DESC_EPILOGUE, &EPILOGUE_BIAS)?;
        }
        Ok(operation)
    }

    fn set<T>(
        &self,
        operation: &Descriptor,
        attribute: c_int,
        value: &T,
    ) -> Result<(), CublasError> {
        let value: *const T = value;
        // SAFETY: reads the value, whose size is given.
        ok("cublasLtMatmulDescSetAttribute", unsafe {
            (self.desc_set)(operation.raw, attribute, value.cast(), size_of::<T>())
        })
    }

    fn layout(
        &self,
        dtype: c_int,
        rows: u64,
        cols: u64,
        stride: u32,
    ) -> Result<Descriptor, CublasError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        ok("cublasLtMatrixLayoutCreate", unsafe {
            (self.layout_create)(&mut raw, dtype, rows, cols, stride.into())
        })?;
        Ok(Descriptor {
            raw,
            destroy: self.layout_destroy,
        })
    }

    /// Up to `count` algorithms for a product, the library's favourite first.
    pub(crate) fn candidates(
        &self,
        product: &Product,
        workspace_bytes: usize,
        count: usize,
    ) -> Result<Vec<Heuristic>, CublasError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        ok("cublasLtMatmulPreferenceCreate", unsafe {
            (self.pref_create)(&mut raw)
        })?;
        let preference = Descriptor {
            raw,
            destroy: self.pref_destroy,
        };
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: reads a value of that size.
            ok("cublasLtMatmulPreferenceSetAttribute", unsafe {
                (self.pref_set)(preference.raw, attribute, value, bytes)
            })
        };
        let workspace = workspace_bytes as u64;
        set(
            PREF_WORKSPACE,
            (&raw const workspace).cast(),
            size_of::<u64>(),
        )?;
        let alignment = ALIGNMENT as u32;
        for attribute in PREF_ALIGNMENTS {
            set(attribute, (&raw const alignment).cast(), size_of::<u32>())?;
        }
        let mut found = vec![Heuristic::NONE; count];
        let mut num_found = 0;
        // SAFETY: all descriptors are alive; at most `count` results are written.
        let status = unsafe {
            (self.heuristic)(
                self.handle,
                product.operation.raw,
                product.weight.raw,
                product.x.raw,
                product.residual.raw,
                product.y.raw,
                preference.raw,
                count as c_int,
                found.as_mut_ptr().cast(),
                &mut num_found,
            )
        };
        /// `CUBLAS_STATUS_NOT_SUPPORTED`: no algorithm.
        const NOT_SUPPORTED: c_int = 15;
        if status != NOT_SUPPORTED {
            ok("cublasLtMatmulAlgoGetHeuristic", status)?;
        }
        found.truncate(usize::try_from(num_found).unwrap_or(0));
        found.retain(|heuristic| heuristic.state == 0);
        Ok(found)
    }

    /// Makes the product run by `algorithm` from now on.
    pub(crate) fn choose(product: &mut Product, algorithm: Heuristic) {
        product.chosen = algorithm;
    }

    /// Puts one product into the stream.
    ///
    /// # Safety
    /// Every address is the device's and holds what the product's shape says, aligned to [`ALIGNMENT`], until the work is
    /// done; one launch at a time uses the workspace.
    pub(crate) unsafe fn run(
        &self,
        product: &mut Product,
        operands: &Operands,
        stream: RawStream,
    ) -> Result<(), CublasError> {
        if product.shape.has_bias {
            self.set(&product.operation, DESC_BIAS_POINTER, &operands.bias)?;
        }
        let one = 1.0f32;
        let has_residual = product.shape.residual_stride.is_some();
        let beta = if has_residual { 1.0f32 } else { 0.0 };
        let addend = if has_residual {
            operands.residual
        } else {
            operands.y.cast_const()
        };
        // SAFETY: the descriptors are alive; addresses by the caller's contract; the factors are read before the call returns.
        let status = unsafe {
            (self.matmul)(
                self.handle,
                product.operation.raw,
                (&raw const one).cast(),
                operands.weight,
                product.weight.raw,
                operands.x,
                product.x.raw,
                (&raw const beta).cast(),
                addend,
                product.residual.raw,
                operands.y,
                product.y.raw,
                product.chosen.algorithm.as_ptr().cast(),
                operands.workspace,
                operands.workspace_bytes,
                stream.0,
            )
        };
        ok("cublasLtMatmul", status)
    }
}
