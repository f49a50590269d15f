//! The foreign functions: the CUDA runtime's, and one per operation in `cuda/ops/`.
//!
//! `ffi_stub.rs` has the same items for builds without CUDA.

#![allow(non_snake_case)] // the runtime's own names

use std::ffi::{c_char, c_void};

pub(crate) use crate::ffi_types::*;

unsafe extern "C" {
    pub(crate) fn cudaGetErrorName(code: i32) -> *const c_char;
    pub(crate) fn cudaGetDeviceCount(count: *mut i32) -> i32;
    pub(crate) fn cudaSetDevice(ordinal: i32) -> i32;
    pub(crate) fn cudaDeviceGetAttribute(value: *mut i32, attribute: i32, ordinal: i32) -> i32;
    pub(crate) fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> i32;
    pub(crate) fn cudaDeviceSynchronize() -> i32;
    pub(crate) fn cudaMalloc(address: *mut *mut c_void, bytes: usize) -> i32;
    pub(crate) fn cudaFree(address: *mut c_void) -> i32;
    pub(crate) fn cudaHostAlloc(address: *mut *mut c_void, bytes: usize, flags: u32) -> i32;
    pub(crate) fn cudaFreeHost(address: *mut c_void) -> i32;
    pub(crate) fn cudaHostRegister(host: *mut c_void, bytes: usize, flags: u32) -> i32;
    pub(crate) fn cudaHostUnregister(host: *mut c_void) -> i32;
    pub(crate) fn cudaHostGetDevicePointer(
        mapped: *mut *mut c_void,
        host: *mut c_void,
        flags: u32,
    ) -> i32;
    pub(crate) fn cudaMemcpyAsync(
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        kind: i32,
        stream: RawStream,
    ) -> i32;
    pub(crate) fn cudaMemsetAsync(
        to: *mut c_void,
        byte: i32,
        bytes: usize,
        stream: RawStream,
    ) -> i32;
    pub(crate) fn cudaStreamCreateWithFlags(stream: *mut RawStream, flags: u32) -> i32;
    pub(crate) fn cudaDeviceGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> i32;
    pub(crate) fn cudaStreamCreateWithPriority(
        stream: *mut RawStream,
        flags: u32,
        priority: i32,
    ) -> i32;
    pub(crate) fn cudaStreamDestroy(stream: RawStream) -> i32;
    pub(crate) fn cudaStreamSynchronize(stream: RawStream) -> i32;
    pub(crate) fn cudaStreamQuery(stream: RawStream) -> i32;
    pub(crate) fn cudaStreamWaitEvent(stream: RawStream, event: RawEvent, flags: u32) -> i32;
    pub(crate) fn cudaStreamBeginCapture(stream: RawStream, mode: i32) -> i32;
    pub(crate) fn cudaStreamEndCapture(stream: RawStream, graph: *mut RawGraph) -> i32;
    pub(crate) fn cudaEventCreateWithFlags(event: *mut RawEvent, flags: u32) -> i32;
    pub(crate) fn cudaEventDestroy(event: RawEvent) -> i32;
    pub(crate) fn cudaEventRecord(event: RawEvent, stream: RawStream) -> i32;
    pub(crate) fn cudaEventSynchronize(event: RawEvent) -> i32;
    pub(crate) fn cudaEventElapsedTime(ms: *mut f32, start: RawEvent, end: RawEvent) -> i32;
    pub(crate) fn cudaGraphInstantiate(exec: *mut RawGraphExec, graph: RawGraph, flags: u64)
    -> i32;
    pub(crate) fn cudaGraphUpload(exec: RawGraphExec, stream: RawStream) -> i32;
    pub(crate) fn cudaGraphLaunch(exec: RawGraphExec, stream: RawStream) -> i32;
    pub(crate) fn cudaGraphGetNodes(graph: RawGraph, nodes: *mut c_void, count: *mut usize) -> i32;
    pub(crate) fn cudaGraphDestroy(graph: RawGraph) -> i32;
    pub(crate) fn cudaGraphExecDestroy(exec: RawGraphExec) -> i32;

    pub(crate) fn izar_decode_projection(
        args: *const DecodeProjectionArgs,
        stream: RawStream,
    ) -> i32;
    pub(crate) fn izar_paged_decode_attention(
        args: *const PagedDecodeAttentionArgs,
        stream: RawStream,
    ) -> i32;
    pub(crate) fn izar_paged_prefill_attention(
        args: *const PagedPrefillAttentionArgs,
        stream: RawStream,
    ) -> i32;
    pub(crate) fn izar_reference_attention(
        args: *const ReferenceAttentionArgs,
        stream: RawStream,
    ) -> i32;
    pub(crate) fn izar_step_mark(args: *const crate::step_mark::Args, stream: RawStream) -> i32;
    pub(crate) fn izar_expand_plan(args: *const ExpandPlanArgs, stream: RawStream) -> i32;
    pub(crate) fn izar_rms_norm(args: *const RmsNormArgs, stream: RawStream) -> i32;
    pub(crate) fn izar_gather_rows(args: *const crate::gather_rows::Args, stream: RawStream)
    -> i32;
    pub(crate) fn izar_moe_route(args: *const crate::moe::RouteArgs, stream: RawStream) -> i32;
    pub(crate) fn izar_moe_select(args: *const crate::moe::SelectArgs, stream: RawStream) -> i32;
    pub(crate) fn izar_moe_gather(args: *const crate::moe::GatherArgs, stream: RawStream) -> i32;
    pub(crate) fn izar_moe_combine(args: *const crate::moe::CombineArgs, stream: RawStream) -> i32;
    pub(crate) fn izar_expert_projection(
        args: *const crate::moe::ExpertProjectionArgs,
        stream: RawStream,
    ) -> i32;
    pub(crate) fn izar_expert_gemm(
        args: *const crate::moe::ExpertGemmArgs,
        stream: RawStream,
    ) -> i32;
    pub(crate) fn izar_swiglu(args: *const crate::swiglu::Args, stream: RawStream) -> i32;
    pub(crate) fn izar_rope_and_kv_write(
        args: *const crate::rope_and_kv_write::Args,
        stream: RawStream,
    ) -> i32;
    pub(crate) fn izar_rope_table(
        inv_freq: *const c_void,
        cosines: *mut c_void,
        sines: *mut c_void,
        max_len: u32,
        half: u32,
        factor: f32,
        stream: RawStream,
    ) -> i32;
    pub(crate) fn izar_reference_projection(
        weight: *const c_void,
        x: *const c_void,
        y: *mut c_void,
        num_rows: u32,
        depth: u32,
        num_tokens: u32,
        x_stride: u32,
        swiglu: u32,
        stream: RawStream,
    ) -> i32;
    pub(crate) fn izar_gate(plan: *const c_void, control: *mut c_void, stream: RawStream) -> i32;
    pub(crate) fn izar_resident(args: *const crate::resident::Args, stream: RawStream) -> i32;
    pub(crate) fn izar_resident_make(
        core: *mut c_void,
        addresses: *const c_void,
        made: *mut c_void,
        stream: RawStream,
    ) -> i32;
    pub(crate) fn izar_bind_rows(
        arena: *const c_void,
        count: u32,
        rows: *const crate::sampler::RowsArgs,
        stream: RawStream,
    ) -> i32;
    pub(crate) fn izar_sample_clusters(slice_len: u32, count: *mut u32) -> i32;
    pub(crate) fn izar_sample(args: *const crate::sampler::SampleArgs, stream: RawStream) -> i32;
    pub(crate) fn izar_fetch_masks(
        args: *const crate::sampler::FetchMasksArgs,
        stream: RawStream,
    ) -> i32;
    pub(crate) fn izar_score_tokens(
        args: *const crate::score_tokens::Args,
        stream: RawStream,
    ) -> i32;
    pub(crate) fn izar_read_stream(
        input: *const c_void,
        bytes: u64,
        out: *mut c_void,
        stream: RawStream,
    ) -> i32;
    pub(crate) fn izar_fill_random(
        out: *mut c_void,
        count: u64,
        seed: u32,
        scale: f32,
        stream: RawStream,
    ) -> i32;
}
