// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/mixed/batch.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/mixed/prompt.h"
#include "kernels/cuda/mixed/shared_slots.h"
#include "kernels/cuda/sc/tensor_core/batch_wgmma.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {
namespace {

bool TakesLongest(const GpuTraits& gpu, const ScTraits& longest, int64_t in_features) {
  if (!gpu.has_wgmma || longest.stoc_len != 128 || !longest.direct_ranks) return false;
  const int64_t any = 1;  // the choice does not depend on the size of the weight
  return PlanScLinear(gpu, longest, {kMaxMixedWgmmaTokens, in_features, {&any, 1}}).kernel == ScKernel::kBatchWgmma;
}

}  // namespace

int64_t MixedBatchPass(int64_t left) {
  if (left < kMinMixedWgmmaTokens) return 0;
  const int64_t passes = (left + kMaxMixedWgmmaTokens - 1) / kMaxMixedWgmmaTokens;
  return (left + passes - 1) / passes;
}

bool BatchesMixed(const GpuTraits& gpu, const LinearSpec& spec, int64_t in_features) {
  if (!PromptsMixed(gpu, spec, in_features)) return false;
  return TakesLongest(gpu, MakeScTraits(*NestingOperator(spec)), in_features);
}

bool BatchesMixed(DeviceContext& ctx, const MixedTask& task) {
  if (!PromptsMixed(ctx, task)) return false;
  const MixedPart& rest = task.weight->rest;
  return TakesLongest(ctx.traits, ctx.tables.Traits(*rest.lengths->longest()), rest.view.dims.dims);
}

void LaunchMixedBatch(DeviceContext& ctx, const PreparedRows& prepared, std::span<const MixedTask> tasks,
                      const SiteReporter& reporter) {
  STOCH_CHECK(MixedBatchPass(prepared.a.tokens) == prepared.a.tokens);
  ForSharedSlots(tasks, [&](const SlotGroup& group) {
    const MixedPart& part = tasks[group.first].weight->rest;
    const ScOperator& longest = *part.lengths->longest();
    const ScPlan plan = PlanScLinear(ctx.traits, ctx.tables.Traits(longest),
                                     {prepared.a.tokens, part.view.dims.dims, group.out_features});
    const RowStreams streams{part.lengths->view().streams, prepared.lengths[group.first].slots};
    LaunchScBatchWgmma(ctx, plan, ctx.tables.Get(longest), prepared.a, reporter, group.products.data(),
                       static_cast<int>(group.products.size()), &streams);
  });
}

int64_t MixedBatchScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, std::span<const int64_t> out_features,
                               int64_t in_features, int64_t tokens) {
  if (MixedBatchPass(tokens) == 0 || !BatchesMixed(gpu, spec, in_features)) return 0;
  const ScTraits traits = MakeScTraits(*NestingOperator(spec));
  const ScDims dims = MakeScDims(in_features, spec.sc->config.chunk_d);
  int64_t most = 0;
  for (int64_t rows = kMinMixedWgmmaTokens; rows <= std::min(tokens, kMaxMixedWgmmaTokens); ++rows) {
    for (size_t first = 0; first < out_features.size(); first += kMaxScTasks) {
      const auto some = out_features.subspan(first, std::min<size_t>(kMaxScTasks, out_features.size() - first));
      // Matrices may be launched one by one, each with fewer blocks than all: none takes more.
      most = std::max(most, PlanScLinear(gpu, traits, {rows, in_features, some}).launch_bytes);
      for (const int64_t out : some) {
        most = std::max(most, PlanScLinear(gpu, traits, {rows, in_features, {&out, 1}}).launch_bytes);
      }
    }
  }
  return most + MixedWgmmaGainBytes(dims.chunks);
}

}  // namespace stoch::cuda
