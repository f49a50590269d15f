// step_mark: when a step got where, and that it is complete, told to a host that polls.
//   marks [8] u64 in pinned host memory: 0..2 the device's clock in ns at mark 0, 1, 2; 3 the step number, last
//   meta: StepMeta, or null for a mark that ends nothing
//   done: u64 in device memory that gets the step number, too, or null
// One thread. The step number is stored with release at system scope, after the clock and after everything that earlier
// kernels of the stream wrote. Bound: latency.
#include <cuda_runtime.h>

#include <cstdint>

#include "../common/launch.h"
#include "../ptx/grid.cuh"
#include "../ptx/memory.cuh"

// Mirrored by ffi::StepMarkArgs.
struct IzarStepMarkArgs {
  uint64_t* marks;
  const uint64_t* meta;
  uint32_t index;
  uint32_t unused;
  uint64_t* done;
};
static_assert(sizeof(IzarStepMarkArgs) == 32);

namespace {

namespace ptx = izar::ptx;

constexpr uint32_t kStepWord = 3;
// Where StepMeta has the step, in words of 8 bytes.
constexpr uint32_t kMetaStepWord = 2;

__global__ void kernel(const IzarStepMarkArgs a) {
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
  ptx::st_relaxed_sys_u64(a.marks + a.index, ptx::global_timer_ns());
  if (a.meta != nullptr) {
    // SYNC step-complete: pairs with the acquire load in `StepMarks::completed_step`.
    // Makes marks and sample records in host memory visible before the step counts as complete.
    ptx::fence_acq_rel_sys();
    ptx::st_release_sys_u64(a.marks + kStepWord, a.meta[kMetaStepWord]);
    // SYNC step-done: pairs with the acquire loads in scheduler/gate.cu and scheduler/resident.cuh.
    if (a.done != nullptr) ptx::st_release_gpu_u64(a.done, a.meta[kMetaStepWord]);
  }
}

}  // namespace

extern "C" int32_t izar_step_mark(const IzarStepMarkArgs* args, cudaStream_t stream) {
  return izar::launch_overlapped(kernel, 1, 1, 0, stream, *args);
}
