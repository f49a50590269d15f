//! Mirrors of the arguments of the kernels that make up `moe_ffn`.

use std::ffi::c_void;

/// Mirrors `IzarMoeRouteArgs`.
#[repr(C)]
pub(crate) struct RouteArgs {
    pub(super) logits: *const c_void,
    pub(super) tokens_here: *const c_void,
    pub(super) shares: *mut c_void,
    pub(super) slots: *mut c_void,
    pub(super) sources: *mut c_void,
    pub(super) groups: *mut c_void,
    pub(super) counts: *mut c_void,
    pub(super) experts: *mut c_void,
    pub(super) places: *mut c_void,
    pub(super) num_tokens: u32,
    pub(super) num_experts: u32,
    pub(super) top_k: u32,
    pub(super) tile_tokens: u32,
    pub(super) normalise: u32,
    pub(super) reserved: u32,
}

const _: () = assert!(size_of::<RouteArgs>() == 96);

/// Mirrors `IzarMoeSelectArgs`.
#[repr(C)]
pub(crate) struct SelectArgs {
    pub(super) x: *const c_void,
    pub(super) norm: *const c_void,
    pub(super) router: *const c_void,
    pub(super) normed: *mut c_void,
    pub(super) tokens_here: *const c_void,
    pub(super) shares: *mut c_void,
    pub(super) slots: *mut c_void,
    pub(super) sources: *mut c_void,
    pub(super) groups: *mut c_void,
    pub(super) columns: *mut c_void,
    pub(super) counts: *mut c_void,
    pub(super) logits: *mut c_void,
    pub(super) choices: *mut c_void,
    pub(super) error: *mut c_void,
    pub(super) num_tokens: u32,
    pub(super) num_experts: u32,
    pub(super) top_k: u32,
    pub(super) tile_tokens: u32,
    pub(super) hidden: u32,
    pub(super) x_stride: u32,
    pub(super) normalise: u32,
    pub(super) epsilon: f32,
}

const _: () = assert!(size_of::<SelectArgs>() == 144);

/// Mirrors `IzarMoeGatherArgs`.
#[repr(C)]
pub(crate) struct GatherArgs {
    pub(super) x: *const c_void,
    pub(super) sorted: *mut c_void,
    pub(super) sources: *const c_void,
    pub(super) counts: *const c_void,
    pub(super) max_rows: u32,
    pub(super) width: u32,
    pub(super) x_stride: u32,
    pub(super) reserved: u32,
}

const _: () = assert!(size_of::<GatherArgs>() == 48);

/// Mirrors `IzarMoeCombineArgs`.
#[repr(C)]
pub(crate) struct CombineArgs {
    pub(super) outputs: *const c_void,
    pub(super) y: *mut c_void,
    pub(super) shares: *const c_void,
    pub(super) slots: *const c_void,
    pub(super) tokens_here: *const c_void,
    pub(super) norm: *const c_void,
    pub(super) normed: *mut c_void,
    pub(super) num_tokens: u32,
    pub(super) top_k: u32,
    pub(super) width: u32,
    pub(super) y_stride: u32,
    pub(super) epsilon: f32,
    pub(super) reserved: u32,
}

const _: () = assert!(size_of::<CombineArgs>() == 80);

/// Mirrors `IzarExpertProjectionArgs`.
#[repr(C)]
pub(crate) struct ExpertProjectionArgs {
    pub(super) weight: *const c_void,
    pub(super) x: *const c_void,
    pub(super) y: *mut c_void,
    pub(super) groups: *const c_void,
    pub(super) columns: *const c_void,
    pub(super) counts: *const c_void,
    pub(super) parts: *mut c_void,
    pub(super) error: *mut c_void,
    pub(super) num_experts: u32,
    pub(super) num_rows: u32,
    pub(super) depth: u32,
    pub(super) num_x_rows: u32,
    pub(super) tile_tokens: u32,
    pub(super) num_blocks: u32,
    pub(super) swiglu: u32,
    pub(super) waits_for_groups: u32,
}

const _: () = assert!(size_of::<ExpertProjectionArgs>() == 96);

/// Mirrors `IzarExpertGemmArgs`.
#[repr(C)]
pub(crate) struct ExpertGemmArgs {
    pub(super) weight: *const c_void,
    pub(super) x: *const c_void,
    pub(super) y: *mut c_void,
    pub(super) groups: *const c_void,
    pub(super) counts: *const c_void,
    pub(super) num_experts: u32,
    pub(super) num_rows: u32,
    pub(super) depth: u32,
    pub(super) num_x_rows: u32,
    pub(super) num_blocks: u32,
    pub(super) swiglu: u32,
}

const _: () = assert!(size_of::<ExpertGemmArgs>() == 64);
