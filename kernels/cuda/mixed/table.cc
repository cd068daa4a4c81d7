// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/mixed/table.h"

#include <algorithm>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/cuda/mixed/shared_slots.h"
#include "kernels/cuda/sc/table/table.h"
#include "kernels/plan/linear/sc.h"
#include "kernels/plan/sc_traits.h"

namespace stoch::cuda {
namespace {

// Whether a kernel has what it looks up for a length.
bool HasTables(ScKernel kernel, const ScTraits& traits) {
  if (kernel == ScKernel::kFew) return traits.has_quarters && traits.max_count <= 128;
  return kernel == ScKernel::kTable && traits.has_residuals;
}

bool HasTables(ScKernel kernel, const ScTables& tables) {
  if (kernel == ScKernel::kFew) return tables.quarters != nullptr && tables.max_count <= 128;
  return kernel == ScKernel::kTable && tables.residuals != nullptr;
}

const ScOperator* LongestOf(std::span<const ScOperatorPtr> by_slot) {
  const ScOperator* longest = nullptr;
  for (const ScOperatorPtr& one : by_slot) {
    if (one != nullptr && (longest == nullptr || one->config.stoc_len > longest->config.stoc_len)) longest = one.get();
  }
  STOCH_CHECK(longest != nullptr);
  return longest;
}

LookupLengths MakeLengths(DeviceContext& ctx, const MixedPart& part, const RowSlots& slots) {
  LookupLengths lengths;
  lengths.slots = slots;
  const ScTables& longest = ctx.tables.Get(*LongestOf(part.operators));
  for (size_t i = 0; i < part.operators.size(); ++i) {
    const ScOperatorPtr& one = part.operators[i];
    const ScTables& tables = one == nullptr ? longest : ctx.tables.Get(*one);
    lengths.tables[i] = {tables.quarters,
                         tables.factors,
                         tables.residuals,
                         one == nullptr ? 0.0f : tables.gain,
                         static_cast<uint16_t>(tables.masks - 1),
                         one == nullptr};
  }
  return lengths;
}

std::vector<ScOperatorPtr> OperatorsOf(const LinearSpec& spec) {
  if (spec.extras == nullptr || spec.extras->by_length.empty()) return {spec.sc};
  return spec.extras->by_length;
}

// Of the operator as it was made: one of one mask may have been repeated for its neighbours.
ScTraits TraitsOf(const ScOperator& op) { return MakeScTraits(*MakeScOperator(op.config)); }

ScPlan PlanOf(const GpuTraits& gpu, const ScTraits& longest, int64_t rows, int64_t in_features,
              std::span<const int64_t> out_features) {
  return PlanScLinear(gpu, longest, {rows, in_features, out_features});
}

}  // namespace

bool LooksUpMixed(DeviceContext& ctx, const MixedTask& task, int64_t rows) {
  const MixedPart& part = task.weight->rest;
  if (rows < 2 || rows > kMixedTableRows || part.operators.size() > kMaxLookupLengths) return false;
  const ScPlan plan = PlanOf(ctx.traits, ctx.tables.Traits(*LongestOf(part.operators)), rows, part.view.dims.dims,
                             {&part.view.rows, 1});
  return std::all_of(part.operators.begin(), part.operators.end(),
                     [&](const auto& one) { return one == nullptr || HasTables(plan.kernel, ctx.tables.Get(*one)); });
}

void LaunchMixedTables(DeviceContext& ctx, const PreparedRows& prepared, std::span<const MixedTask> tasks,
                       const SiteReporter& reporter) {
  ForSharedSlots(tasks, [&](const SlotGroup& group) {
    const MixedPart& part = tasks[group.first].weight->rest;
    const ScOperator& longest = *LongestOf(part.operators);
    const ScPlan plan =
        PlanOf(ctx.traits, ctx.tables.Traits(longest), prepared.a.tokens, part.view.dims.dims, group.out_features);
    const auto launch = plan.kernel == ScKernel::kFew ? &LaunchScBatchFewMixed : &LaunchScBatchTableMixed;
    launch(ctx, plan, ctx.tables.Get(longest), MakeLengths(ctx, part, prepared.lengths[group.first].slots), prepared.a,
           reporter, group.products.data(), static_cast<int>(group.products.size()));
  });
}

ScKernel MixedLookupKernel(const GpuTraits& gpu, const LinearSpec& spec, int64_t in_features, int64_t rows) {
  const std::vector<ScOperatorPtr> by_slot = OperatorsOf(spec);
  if (rows < 2 || rows > kMixedTableRows || by_slot.size() > kMaxLookupLengths) return ScKernel::kGeneric;
  const int64_t any = 1;  // the choice does not depend on the size of the weight
  const ScKernel kernel = PlanOf(gpu, TraitsOf(*LongestOf(by_slot)), rows, in_features, {&any, 1}).kernel;
  const bool has = std::all_of(by_slot.begin(), by_slot.end(),
                               [&](const auto& one) { return one == nullptr || HasTables(kernel, TraitsOf(*one)); });
  return has ? kernel : ScKernel::kGeneric;
}

int64_t MixedTableScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, std::span<const int64_t> out_features,
                               int64_t in_features, int64_t tokens) {
  constexpr int64_t kAlignment = 256;
  const ScTraits traits = TraitsOf(*LongestOf(OperatorsOf(spec)));
  const ScDims dims = MakeScDims(in_features, spec.sc->config.chunk_d);
  int64_t most = 0;
  for (int64_t rows = 2; rows <= std::min(tokens, kMixedTableRows); ++rows) {
    for (size_t first = 0; first < out_features.size(); first += kMaxScTasks) {
      const auto some = out_features.subspan(first, std::min<size_t>(kMaxScTasks, out_features.size() - first));
      const ScPlan plan = PlanOf(gpu, traits, rows, in_features, some);
      if (!HasTables(plan.kernel, traits)) continue;
      const int64_t gains = rows * dims.chunks * static_cast<int64_t>(sizeof(float)) + kAlignment;
      most = std::max(most, plan.launch_bytes + gains);
    }
  }
  return most;
}

}  // namespace stoch::cuda
