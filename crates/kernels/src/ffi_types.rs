//! Types of the foreign functions, shared by the real ones and the stub.

use std::ffi::c_void;

/// What the stub's functions answer; no code of the CUDA runtime.
pub(crate) const NOT_BUILT: i32 = -1;

macro_rules! handles {
    ($($name:ident),*) => {$(
        /// An opaque handle of the CUDA runtime.
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) struct $name(pub(crate) *mut c_void);

        // SAFETY: a handle is a name that the runtime looks up; its functions are thread-safe.
        unsafe impl Send for $name {}
        // SAFETY: as above; nothing is read through the pointer.
        unsafe impl Sync for $name {}

        impl $name {
            pub(crate) const NULL: Self = Self(std::ptr::null_mut());
        }
    )*};
}

handles!(RawStream, RawEvent, RawGraph, RawGraphExec);

/// Mirrors `IzarDecodeProjectionArgs`.
#[repr(C)]
pub(crate) struct DecodeProjectionArgs {
    pub(crate) weight: *const c_void,
    pub(crate) x: *const c_void,
    pub(crate) bias: *const c_void,
    pub(crate) residual: *const c_void,
    pub(crate) y: *mut c_void,
    pub(crate) parts: *mut c_void,
    pub(crate) error: *mut c_void,
    pub(crate) num_rows: u32,
    pub(crate) depth: u32,
    pub(crate) num_tokens: u32,
    pub(crate) x_stride: u32,
    pub(crate) y_stride: u32,
    pub(crate) residual_stride: u32,
    pub(crate) num_blocks: u32,
    pub(crate) swiglu: u32,
    pub(crate) is_f32: u32,
    pub(crate) reserved: u32,
}

const _: () = assert!(size_of::<DecodeProjectionArgs>() == 96);

/// Mirrors `IzarRmsNormArgs`.
#[repr(C)]
pub(crate) struct RmsNormArgs {
    pub(crate) x: *const c_void,
    pub(crate) residual: *mut c_void,
    pub(crate) weight: *const c_void,
    pub(crate) y: *mut c_void,
    pub(crate) num_tokens: u32,
    pub(crate) hidden: u32,
    pub(crate) x_stride: u32,
    pub(crate) epsilon: f32,
}

const _: () = assert!(size_of::<RmsNormArgs>() == 48);

/// Mirrors `IzarPagedDecodeAttentionArgs`.
#[repr(C)]
pub(crate) struct PagedDecodeAttentionArgs {
    pub(crate) q: *const c_void,
    pub(crate) k_cache: *const c_void,
    pub(crate) v_cache: *const c_void,
    pub(crate) block_table: *const c_void,
    pub(crate) seq_lens: *const c_void,
    pub(crate) out: *mut c_void,
    pub(crate) partials: *mut c_void,
    pub(crate) finished: *mut c_void,
    pub(crate) error: *mut c_void,
    pub(crate) num_seqs: u32,
    pub(crate) num_heads: u32,
    pub(crate) num_kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) num_blocks: u32,
    pub(crate) max_blocks_per_seq: u32,
    pub(crate) q_stride: u32,
    pub(crate) out_stride: u32,
    pub(crate) window: u32,
    pub(crate) scale: f32,
    pub(crate) num_sms: u32,
    pub(crate) reads_early: u32,
}

const _: () = assert!(size_of::<PagedDecodeAttentionArgs>() == 120);

/// Mirrors `IzarPagedPrefillAttentionArgs`.
#[repr(C)]
pub(crate) struct PagedPrefillAttentionArgs {
    pub(crate) q: *const c_void,
    pub(crate) k_cache: *const c_void,
    pub(crate) v_cache: *const c_void,
    pub(crate) block_tables: *const c_void,
    pub(crate) query_starts: *const c_void,
    pub(crate) query_lens: *const c_void,
    pub(crate) seq_lens: *const c_void,
    pub(crate) first_entry: *const c_void,
    pub(crate) end_entry: *const c_void,
    pub(crate) out: *mut c_void,
    pub(crate) num_tokens: u32,
    pub(crate) max_entries: u32,
    pub(crate) num_heads: u32,
    pub(crate) num_kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) num_blocks: u32,
    pub(crate) max_blocks_per_seq: u32,
    pub(crate) q_stride: u32,
    pub(crate) out_stride: u32,
    pub(crate) window: u32,
    pub(crate) scale: f32,
    pub(crate) num_sms: u32,
}

const _: () = assert!(size_of::<PagedPrefillAttentionArgs>() == 128);

/// Mirrors `IzarReferenceAttentionArgs`.
#[repr(C)]
pub(crate) struct ReferenceAttentionArgs {
    pub(crate) q: *const c_void,
    pub(crate) k_cache: *const c_void,
    pub(crate) v_cache: *const c_void,
    pub(crate) block_table: *const c_void,
    pub(crate) seq_lens: *const c_void,
    pub(crate) out: *mut c_void,
    pub(crate) num_seqs: u32,
    pub(crate) num_heads: u32,
    pub(crate) num_kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) max_blocks_per_seq: u32,
    pub(crate) q_stride: u32,
    pub(crate) window: u32,
    pub(crate) scale: f32,
}

const _: () = assert!(size_of::<ReferenceAttentionArgs>() == 80);

/// Mirrors `IzarExpandPlanArgs`.
#[repr(C)]
pub(crate) struct ExpandPlanArgs {
    pub(crate) plan: *const c_void,
    pub(crate) last_tokens: *const c_void,
    pub(crate) meta: *mut c_void,
    pub(crate) token_ids: *mut c_void,
    pub(crate) positions: *mut c_void,
    pub(crate) kv_slots: *mut c_void,
    pub(crate) query_starts: *mut c_void,
    pub(crate) query_lens: *mut c_void,
    pub(crate) seq_lens: *mut c_void,
    pub(crate) decode_seq_lens: *mut c_void,
    pub(crate) block_tables: *mut c_void,
    pub(crate) sample_tokens: *mut c_void,
    pub(crate) sample_rows: *mut c_void,
    pub(crate) marks: *mut c_void,
    pub(crate) bucket_tokens: u32,
    pub(crate) bucket_seqs: u32,
    pub(crate) max_blocks_per_seq: u32,
    pub(crate) unused: u32,
}

const _: () = assert!(size_of::<ExpandPlanArgs>() == 128);
