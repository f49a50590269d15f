// How every kernel is launched: with programmatic serialisation, so that it starts before the kernel before it in the
// stream has finished. The kernel waits for that one itself.
#pragma once
#include <cuda_runtime.h>

#include <utility>

namespace izar {

template <class... Parameters, class... Arguments>
cudaError_t launch_overlapped(void (*kernel)(Parameters...), dim3 grid, uint32_t threads, uint32_t shared_bytes,
                              cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchAttribute serialisation;
  serialisation.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  serialisation.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &serialisation;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace izar
