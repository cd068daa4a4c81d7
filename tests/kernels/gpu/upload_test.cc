// SPDX-License-Identifier: Apache-2.0
// What Upload brings to a device is there for streams that do not wait for the default one.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/runtime/context.h"
#include "tests/kernels/gpu/cuda_or_skip.h"

namespace stoch::cuda {
namespace {

// Copies of other streams keep the engine busy, so that a copy that has been accepted is far from done.
TEST(CudaUpload, IsThereForEveryStream) {
  STOCH_CUDA_OR_SKIP();
  constexpr int kRounds = 20;
  constexpr int kCopies = 4;
  constexpr size_t kOthers = size_t{32} << 20;
  DeviceContext ctx(0);
  cudaStream_t others = nullptr;
  STOCH_CUDA(cudaStreamCreateWithFlags(&others, cudaStreamNonBlocking));
  const Buffer from = AllocatePinned(kOthers);
  const Buffer to = AllocateDevice(ctx.device, kOthers);
  const Buffer seen = AllocatePinned(64);
  for (const size_t bytes : {size_t{64}, size_t{4096}, size_t{60000}, size_t{1} << 20}) {
    const Buffer uploaded = AllocateDevice(ctx.device, bytes);
    std::vector<uint8_t> values(bytes);
    for (int round = 0; round < kRounds; ++round) {
      std::memset(values.data(), round + 1, bytes);
      for (int i = 0; i < kCopies; ++i) {
        STOCH_CUDA(cudaMemcpyAsync(to.data(), from.data(), kOthers, cudaMemcpyHostToDevice, others));
      }
      Upload(ctx.device, uploaded.data(), values.data(), bytes);
      const char* last = static_cast<const char*>(uploaded.data()) + bytes - 64;
      STOCH_CUDA(cudaMemcpyAsync(seen.data(), last, 64, cudaMemcpyDeviceToHost, ctx.stream));
      STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
      ASSERT_EQ(std::memcmp(seen.data(), values.data(), 64), 0) << bytes << " bytes, round " << round;
      STOCH_CUDA(cudaStreamSynchronize(others));
    }
  }
  STOCH_CUDA(cudaStreamDestroy(others));
}

}  // namespace
}  // namespace stoch::cuda
