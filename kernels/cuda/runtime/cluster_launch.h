// Launches of kernels whose blocks along x form clusters.
#pragma once

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {

#if defined(__CUDACC__)
// What:     launches `kernel` with clusters of grid.x blocks; it may start early (launch.h), so it calls
//           WaitForPrevious before it reads anything. Raises the kernel's limit of dynamic shared memory as needed.
// Requires: grid.x <= 8, and 1 where ctx.traits has no clusters.
template <typename Args>
void LaunchClusters(DeviceContext& ctx, void (*kernel)(Args), dim3 grid, int threads, size_t shared_bytes,
                    const Args& args) {
  AllowShared(ctx, kernel, shared_bytes);
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = grid.x;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = ctx.stream;
  config.attrs = attributes;
  config.numAttrs = ctx.traits.has_hopper_code ? (grid.x > 1 ? 2 : 1) : 0;
  STOCH_CUDA(cudaLaunchKernelEx(&config, kernel, args));
}
#endif

}  // namespace stoch::cuda
