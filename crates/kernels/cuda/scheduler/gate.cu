// gate: the first kernel of a step that the resident scheduler launches ahead.
//   plan     the step's plan (expand_plan.cu); its number is read when it is armed
//   control  see records.h
// One thread, which waits until the plan is final and the step before is complete. The next kernel is not started before
// that: kernels of a waiting step must not take room on the device from the step that runs. Bound: latency.
#include <cuda_runtime.h>

#include <cstdint>

#include "../ptx/grid.cuh"
#include "../ptx/memory.cuh"
#include "records.h"
#include "turn.h"

namespace {

namespace ptx = izar::ptx;
using izar::resident::Control;

constexpr uint64_t kTimeoutNs = 100'000'000'000;
constexpr uint32_t kStepLow = 4;  // words of the plan's header
constexpr uint32_t kStepHigh = 5;

__global__ void kernel(const uint32_t* plan, Control* control) {
  // The scheduler writes a half's plan when the step before the last is complete, and launches after it: what is read here
  // is this step's.
  const uint64_t step = ptx::ld_relaxed_gpu(plan + kStepLow) | uint64_t{ptx::ld_relaxed_gpu(plan + kStepHigh)} << 32;
  const uint64_t deadline_ns = ptx::global_timer_ns() + kTimeoutNs;
  uint32_t polls = 0;
  // SYNC step-armed, step-done: pair with the release stores in resident.cuh and step_mark.cu, device scope.
  while (!izar::resident::may_run(step, ptx::ld_acquire_gpu_u64(&control->armed), ptx::ld_acquire_gpu_u64(&control->done))) {
    if (++polls % 1024 == 0 && ptx::global_timer_ns() > deadline_ns) {
      ptx::st_release_gpu_u64(&control->late_gate, step);
      break;
    }
  }
  ptx::launch_dependents();
}

}  // namespace

extern "C" int32_t izar_gate(const uint32_t* plan, Control* control, cudaStream_t stream) {
  kernel<<<1, 1, 0, stream>>>(plan, control);
  return cudaGetLastError();
}
