//! The foreign functions of a build without CUDA: same items as `ffi.rs`, each answers [`NOT_BUILT`].

#![allow(non_snake_case)] // the runtime's own names

use std::ffi::{c_char, c_void};

pub(crate) use crate::ffi_types::*;

pub(crate) unsafe fn cudaGetErrorName(_: i32) -> *const c_char {
    c"built without CUDA".as_ptr()
}

macro_rules! not_built {
    ($($name:ident($($argument:ty),*);)*) => {$(
        #[allow(clippy::too_many_arguments)]
        pub(crate) unsafe fn $name($(_: $argument),*) -> i32 {
            NOT_BUILT
        }
    )*};
}

not_built! {
    cudaGetDeviceCount(*mut i32);
    cudaSetDevice(i32);
    cudaDeviceGetAttribute(*mut i32, i32, i32);
    cudaMemGetInfo(*mut usize, *mut usize);
    cudaDeviceSynchronize();
    cudaMalloc(*mut *mut c_void, usize);
    cudaFree(*mut c_void);
    cudaHostAlloc(*mut *mut c_void, usize, u32);
    cudaFreeHost(*mut c_void);
    cudaHostRegister(*mut c_void, usize, u32);
    cudaHostUnregister(*mut c_void);
    cudaHostGetDevicePointer(*mut *mut c_void, *mut c_void, u32);
    cudaMemcpyAsync(*mut c_void, *const c_void, usize, i32, RawStream);
    cudaMemsetAsync(*mut c_void, i32, usize, RawStream);
    cudaStreamCreateWithFlags(*mut RawStream, u32);
    cudaDeviceGetStreamPriorityRange(*mut i32, *mut i32);
    cudaStreamCreateWithPriority(*mut RawStream, u32, i32);
    cudaStreamDestroy(RawStream);
    cudaStreamSynchronize(RawStream);
    cudaStreamQuery(RawStream);
    cudaStreamWaitEvent(RawStream, RawEvent, u32);
    cudaStreamBeginCapture(RawStream, i32);
    cudaStreamEndCapture(RawStream, *mut RawGraph);
    cudaEventCreateWithFlags(*mut RawEvent, u32);
    cudaEventDestroy(RawEvent);
    cudaEventRecord(RawEvent, RawStream);
    cudaEventSynchronize(RawEvent);
    cudaEventElapsedTime(*mut f32, RawEvent, RawEvent);
    cudaGraphInstantiate(*mut RawGraphExec, RawGraph, u64);
    cudaGraphUpload(RawGraphExec, RawStream);
    cudaGraphLaunch(RawGraphExec, RawStream);
    cudaGraphGetNodes(RawGraph, *mut c_void, *mut usize);
    cudaGraphDestroy(RawGraph);
    cudaGraphExecDestroy(RawGraphExec);
    izar_decode_projection(*const DecodeProjectionArgs, RawStream);
    izar_paged_decode_attention(*const PagedDecodeAttentionArgs, RawStream);
    izar_paged_prefill_attention(*const PagedPrefillAttentionArgs, RawStream);
    izar_reference_attention(*const ReferenceAttentionArgs, RawStream);
    izar_step_mark(*const crate::step_mark::Args, RawStream);
    izar_expand_plan(*const ExpandPlanArgs, RawStream);
    izar_rms_norm(*const RmsNormArgs, RawStream);
    izar_gather_rows(*const crate::gather_rows::Args, RawStream);
    izar_moe_route(*const crate::moe::RouteArgs, RawStream);
    izar_moe_select(*const crate::moe::SelectArgs, RawStream);
    izar_moe_gather(*const crate::moe::GatherArgs, RawStream);
    izar_moe_combine(*const crate::moe::CombineArgs, RawStream);
    izar_expert_projection(*const crate::moe::ExpertProjectionArgs, RawStream);
    izar_expert_gemm(*const crate::moe::ExpertGemmArgs, RawStream);
    izar_swiglu(*const crate::swiglu::Args, RawStream);
    izar_rope_and_kv_write(*const crate::rope_and_kv_write::Args, RawStream);
    izar_rope_table(*const c_void, *mut c_void, *mut c_void, u32, u32, f32, RawStream);
    izar_reference_projection(*const c_void, *const c_void, *mut c_void, u32, u32, u32, u32, u32, RawStream);
    izar_gate(*const c_void, *mut c_void, RawStream);
    izar_resident(*const crate::resident::Args, RawStream);
    izar_resident_make(*mut c_void, *const c_void, *mut c_void, RawStream);
    izar_bind_rows(*const c_void, u32, *const crate::sampler::RowsArgs, RawStream);
    izar_sample_clusters(u32, *mut u32);
    izar_sample(*const crate::sampler::SampleArgs, RawStream);
    izar_fetch_masks(*const crate::sampler::FetchMasksArgs, RawStream);
    izar_score_tokens(*const crate::score_tokens::Args, RawStream);
    izar_read_stream(*const c_void, u64, *mut c_void, RawStream);
    izar_fill_random(*mut c_void, u64, u32, f32, RawStream);
}
