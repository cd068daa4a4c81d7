// SPDX-License-Identifier: Apache-2.0
// The instance and launch of the prefill kernel (prefill_wgmma.cuh) over tiles whose streams have a number of words of
// their own in each chunk (chunk_words.h).
#include "kernels/cuda/sc/hopper/chunk_words_kernels.h"
#include "kernels/cuda/sc/hopper/prefill_wgmma.cuh"

namespace stoch::cuda {
namespace {

const void* KernelOf(DeviceContext& ctx, const LinearPlan& plan) {
  const auto* const kernel =
      reinterpret_cast<const void*>(prefill::PrefillWgmmaKernel<4, 1, false, true, ChunkWordsArgs>);
  prefill::AllowLaunch(ctx, kernel, plan, kChunkStageBytes);
  return kernel;
}

}  // namespace

int64_t MaxChunkWordsClusters(DeviceContext& ctx, const LinearPlan& plan) {
  return prefill::MaxClusters(KernelOf(ctx, plan), plan);
}

void LaunchChunkWordsWgmma(DeviceContext& ctx, const LinearPlan& plan, const ChunkWordsArgs& args) {
  prefill::Launch(ctx, KernelOf(ctx, plan), plan, args, args.schedule.clusters);
}

}  // namespace stoch::cuda
