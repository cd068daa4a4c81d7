// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sc/linear.h"

#include <algorithm>
#include <array>
#include <span>

#include "kernels/base/check.h"
#include "kernels/cuda/plain/product.h"
#include "kernels/cuda/sc/batch/quantize.h"
#include "kernels/cuda/sc/decode/decode.h"
#include "kernels/cuda/sc/hopper/batch_wgmma.h"
#include "kernels/cuda/sc/hopper/prefill.h"
#include "kernels/cuda/sc/table/table.h"
#include "kernels/cuda/sc/tensor_core/streams.h"
#include "kernels/cuda/sc/tiles/tiles.h"

namespace stoch::cuda {
namespace {

// Quantizes the activations as `quantizer` says. With kKernel and kStreams a later kernel quantizes them, so the result
// holds only sizes, no codes.
ScActivationView Quantize(DeviceContext& ctx, Scratch& scratch, ScQuantizer quantizer, const ScOperator& op,
                          const RowSource& source, int64_t tokens, int64_t in_features, const SiteReporter& reporter) {
  switch (quantizer) {
    case ScQuantizer::kByChunk: return LaunchBatchQuantize(ctx, scratch, source, tokens, in_features, op, reporter);
    case ScQuantizer::kByRow: return LaunchQuantize(ctx, scratch, source, tokens, in_features, op, reporter);
    case ScQuantizer::kKernel:
    case ScQuantizer::kStreams: break;
  }
  ScActivationView a;
  a.dims = MakeScDims(in_features, op.config.chunk_d);
  a.tokens = tokens;
  return a;
}

// Launches the plain product (kernels/cuda/plain), which takes any operator, once for each task.
void LaunchPlain(DeviceContext& ctx, const ScOperator& op, const ScActivationView& a,
                 std::span<const ScLinearTask> tasks) {
  for (const ScLinearTask& task : tasks) {
    PlainProduct product = MakePlainProduct(ctx, op);
    product.a = a;
    product.w = task.weight;
    product.out = {task.out.data, task.out.stride, 1, task.out.add};
    LaunchPlainProduct(ctx, product);
  }
}

}  // namespace

void LaunchScLinear(DeviceContext& ctx, const ScOperator& op, const RowSource& source, int64_t tokens,
                    int64_t in_features, const SiteReporter& reporter, const ScLinearTask* tasks, int count) {
  const ScTables& tables = ctx.tables.Get(op);
  const LinearPass pass{.prologue = source.prologue, .aligned = IsAligned(source)};
  Scratch scratch(ctx.workspace);
  ScActivationView a;
  for (int first = 0; first < count; first += kMaxScTasks) {
    const int some = std::min(kMaxScTasks, count - first);
    const ScLinearTask* const from = tasks + first;
    std::array<int64_t, kMaxScTasks> out_features{};
    for (int i = 0; i < some; ++i) out_features[static_cast<size_t>(i)] = from[i].weight.rows;
    const LinearShape shape{tokens, in_features, std::span(out_features).first(static_cast<size_t>(some))};
    const LinearPlan plan = PlanScLinear(ctx.traits, ctx.tables.Traits(op), shape, pass);
    if (plan.route != LinearRoute::kScDecode || plan.quantizer != ScQuantizer::kKernel) ctx.row_channel().Settle();
    // The plan's quantizer depends on the activations alone, so one quantization serves the launches of all tasks.
    if (first == 0) a = Quantize(ctx, scratch, plan.quantizer, op, source, tokens, in_features, reporter);
    const ScFloatRows rows{source, reporter};
    switch (plan.route) {
      case LinearRoute::kScFew: LaunchScBatchFew(ctx, plan, tables, a, source, reporter, from, some); break;
      case LinearRoute::kScTable: LaunchScBatchTable(ctx, plan, tables, a, source, reporter, from, some); break;
      case LinearRoute::kScBatch: LaunchScBatchWgmma(ctx, plan, tables, a, reporter, from, some); break;
      case LinearRoute::kScDecode: LaunchScDecode(ctx, plan, tables, a, source, reporter, from, some); break;
      case LinearRoute::kScTiles:
      case LinearRoute::kScTilesSplit:
        LaunchScTiles(ctx, plan, op, a, reporter, from, some,
                      plan.quantizer == ScQuantizer::kStreams ? &rows : nullptr);
        break;
      case LinearRoute::kScPrompt:
        LaunchScPrefill(ctx, plan, tables, a, from, some,
                        {.rows = plan.quantizer == ScQuantizer::kStreams ? &rows : nullptr});
        break;
      case LinearRoute::kScGeneric: LaunchPlain(ctx, op, a, {from, static_cast<size_t>(some)}); break;
      default: STOCH_CHECK(false);  // PlanScLinear returns no other route
    }
  }
}

}  // namespace stoch::cuda
