// SPDX-License-Identifier: Apache-2.0
// Launches kernels whose blocks are grouped in clusters along x.
#pragma once

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {

#if defined(__CUDACC__)
// Launches `kernel` in clusters of `cluster` blocks; 0 means clusters of grid.x blocks. The kernel may start before the
// earlier kernels of the stream have finished (PDL, launch.h), so it must call WaitForPrevious before it reads what
// they write. Raises the kernel's limit of dynamic shared memory to shared_bytes.
// Requires: the cluster size divides grid.x and is at most 8, or 16 if the device supports that; it is 1 if ctx.traits
//           has no clusters.
template <typename Args>
void LaunchClusters(DeviceContext& ctx, void (*kernel)(Args), dim3 grid, int threads, size_t shared_bytes,
                    const Args& args, int cluster = 0) {
  const unsigned size = cluster > 0 ? static_cast<unsigned>(cluster) : grid.x;
  AllowShared(ctx, kernel, shared_bytes);
  if (size > 8) STOCH_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = size;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = ctx.stream;
  config.attrs = attributes;
  config.numAttrs = ctx.traits.has_hopper_code ? (size > 1 ? 2 : 1) : 0;
  STOCH_CUDA(cudaLaunchKernelEx(&config, kernel, args));
}
#endif

}  // namespace stoch::cuda
