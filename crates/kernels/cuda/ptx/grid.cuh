// Programmatic dependent launch, one instruction per function.
#pragma once
#include <cstdint>

namespace izar::ptx {

// Lets the next kernel of the stream start as soon as every block of this one has got here.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Waits until the previous kernel has finished and its writes are visible.
__device__ __forceinline__ void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace izar::ptx
