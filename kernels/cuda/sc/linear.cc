// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sc/linear.h"

#include <algorithm>
#include <array>

#include "kernels/cuda/sc/batch/quantize.h"
#include "kernels/cuda/sc/decode/decode.h"
#include "kernels/cuda/sc/table/table.h"
#include "kernels/cuda/sc/tensor_core/batch_wgmma.h"
#include "kernels/cuda/sc/tensor_core/prefill.h"
#include "kernels/cuda/sc/tensor_core/streams.h"

namespace stoch::cuda {
namespace {

// The activations as the plan's kernel wants them; without codes where it quantizes them itself.
ScActivationView Quantize(DeviceContext& ctx, Scratch& scratch, ScQuantizer quantizer, const ScOperator& op,
                          const RowSource& source, int64_t tokens, int64_t in_features, const SiteReporter& reporter) {
  switch (quantizer) {
    case ScQuantizer::kByChunk: return LaunchBatchQuantize(ctx, scratch, source, tokens, in_features, op, reporter);
    case ScQuantizer::kByRow: return LaunchQuantize(ctx, scratch, source, tokens, in_features, op, reporter);
    case ScQuantizer::kKernel: break;
  }
  ScActivationView a;
  a.tokens = tokens;
  return a;
}

}  // namespace

void LaunchScLinear(DeviceContext& ctx, const ScOperator& op, const RowSource& source, int64_t tokens,
                    int64_t in_features, const SiteReporter& reporter, const ScLinearTask* tasks, int count) {
  const ScTables& tables = ctx.tables.Get(op);
  const ScTraits& traits = ctx.tables.Traits(op);
  const ScDims dims = MakeScDims(in_features, op.config.chunk_d);
  Scratch scratch(ctx.workspace);
  ScActivationView a;
  for (int first = 0; first < count; first += kMaxScTasks) {
    const int some = std::min(kMaxScTasks, count - first);
    const ScLinearTask* const from = tasks + first;
    std::array<int64_t, kMaxScTasks> out_features{};
    for (int i = 0; i < some; ++i) out_features[static_cast<size_t>(i)] = from[i].weight.rows;
    const ScPlan plan = PlanScLinear(ctx.traits, traits,
                                     {tokens, in_features, std::span(out_features).first(static_cast<size_t>(some))});
    if (plan.kernel != ScKernel::kDecode || plan.quantizer != ScQuantizer::kKernel) ctx.posted_rows().Settle();
    const bool is_prefill = plan.kernel == ScKernel::kPrefillWgmma || plan.kernel == ScKernel::kPrefillMma;
    const ScFloatRows rows{source, reporter};
    ScPrefillOptions prefill;
    if (is_prefill && CanStreamRows(ctx.traits, traits, dims, source, tokens)) {
      prefill.rows = &rows;
      a.dims = dims;
      a.tokens = tokens;
    } else if (first == 0) {  // the quantizer depends on the activations alone, so it is the same for all tasks
      a = Quantize(ctx, scratch, plan.quantizer, op, source, tokens, in_features, reporter);
    }
    switch (plan.kernel) {
      case ScKernel::kFew: LaunchScBatchFew(ctx, plan, tables, a, source, reporter, from, some); break;
      case ScKernel::kTable: LaunchScBatchTable(ctx, plan, tables, a, source, reporter, from, some); break;
      case ScKernel::kBatchWgmma: LaunchScBatchWgmma(ctx, plan, tables, a, reporter, from, some); break;
      case ScKernel::kDecode: LaunchScDecode(ctx, plan, tables, a, source, reporter, from, some); break;
      case ScKernel::kPrefillWgmma:
      case ScKernel::kPrefillMma: LaunchScPrefill(ctx, plan, tables, a, from, some, prefill); break;
      case ScKernel::kGeneric: LaunchScGeneric(ctx, tables, a, from, some); break;
    }
  }
}

}  // namespace stoch::cuda
