// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/mixed/decode.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/cuda/mixed/observe.h"
#include "kernels/cuda/mixed/prepare.h"
#include "kernels/cuda/sc/decode/decode.h"
#include "kernels/plan/sc_linear_plan.h"

namespace stoch::cuda {
namespace {

// All but the tables.
bool HasPlainRows(const GpuTraits& gpu, const ScConfig& config, const ScExtras* extras, const ScDims& dims) {
  if (config.granularity != ScGranularity::kPerRow || config.group_a != 1 || !PreparesRows(gpu, dims)) return false;
  if (extras == nullptr) return true;
  if (!extras->smooth.empty() || !extras->protected_channels.empty()) return false;
  const ScLengthRule* rule = extras->lengths.get();
  return rule == nullptr || (rule->normalise == ScNormalise::kFixed && rule->scope != ScLengthScope::kFractions);
}

bool HasBytes(const ScOperator& op) {
  return op.code == ScCode::kSignMagnitude && op.wide_counts.empty() && op.levels <= 128 && CountsFitBytes(op);
}

}  // namespace

bool DecodesMixed(const GpuTraits& gpu, const LinearSpec& spec, int64_t in_features) {
  if (!HasPlainRows(gpu, spec.sc->config, spec.extras.get(), MakeScDims(in_features, spec.sc->config.chunk_d))) {
    return false;
  }
  if (spec.extras == nullptr || spec.extras->by_length.empty()) return HasBytes(*spec.sc);
  const std::vector<ScOperatorPtr>& operators = spec.extras->by_length;
  return operators.size() <= kMaxByteTables &&
         std::all_of(operators.begin(), operators.end(), [](const auto& op) { return op == nullptr || HasBytes(*op); });
}

bool DecodesMixed(const DeviceContext& ctx, const MixedTask& task) {
  const MixedPart& rest = task.weight->rest;
  return task.weight->own.empty() && !rest.empty() && rest.lengths->view().bytes != nullptr &&
         HasPlainRows(ctx.traits, rest.op().config, task.spec->extras.get(), rest.view.dims);
}

bool SharesRows(const MixedTask& a, const MixedTask& b) {
  const LengthView& x = a.weight->rest.lengths->view();
  const LengthView& y = b.weight->rest.lengths->view();
  return x.q_max == y.q_max && x.levels == y.levels &&
         a.weight->rest.view.dims.chunk_d == b.weight->rest.view.dims.chunk_d;
}

void LaunchMixedDecode(DeviceContext& ctx, const OpSite& site, const RowSource& source, int64_t rows,
                       std::span<const MixedTask> tasks, const FiniteReporter& reporter) {
  STOCH_CHECK(!tasks.empty() && tasks.size() <= kMaxScTasks);
  const auto count = static_cast<int>(tasks.size());
  const MixedPart& first_part = tasks[0].weight->rest;
  const ScDims& dims = first_part.view.dims;
  const ScTraits& traits = ctx.tables.Traits(first_part.op());
  std::array<int64_t, kMaxScTasks> out_features{};
  for (size_t i = 0; i < tasks.size(); ++i) out_features[i] = tasks[i].weight->rest.view.rows;
  Scratch of_call(ctx.workspace);
  std::array<ScTaskLengths, kMaxScTasks> lengths;  // of all rows
  for (size_t i = 0; i < tasks.size(); ++i) {
    const LengthView& view = tasks[i].weight->rest.lengths->view();
    lengths[i].view = &view;
    if (!view.has_rule) continue;
    const bool by_chunk = view.scope == ScLengthScope::kChunk || view.bands != nullptr;
    lengths[i].slots.per_row = by_chunk ? dims.chunks : 1;
    lengths[i].slots.slots = of_call.Take<uint8_t>(rows * lengths[i].slots.per_row);
  }
  for (int64_t first = 0; first < rows;) {
    const int64_t left = std::min<int64_t>(rows - first, kMaxDecodeTokens);
    const ScPlan plan = PlanMixedDecode(
        ctx.traits, traits, {left, dims.dims, std::span<const int64_t>(out_features).first(tasks.size())});
    const int64_t some = std::min<int64_t>(left, plan.tile_tokens);
    Scratch scratch(ctx.workspace);
    std::array<PrepareTask, kMaxScTasks> prepared;
    std::array<ScTaskLengths, kMaxScTasks> of_part = lengths;
    std::array<ScLinearTask, kMaxScTasks> products;
    for (size_t i = 0; i < tasks.size(); ++i) {
      RowSlots& slots = of_part[i].slots;
      if (slots.slots != nullptr) slots.slots += first * slots.per_row;
      prepared[i] = {*lengths[i].view, const_cast<uint8_t*>(slots.slots), static_cast<int32_t>(slots.per_row)};
      products[i] = {tasks[i].weight->rest.view, tasks[i].out};
      products[i].out.data += first * tasks[i].out.stride;
    }
    RowSource from = source;
    from.x += first * source.x_stride;
    if (from.x2 != nullptr) from.x2 += first * source.x2_stride;
    const ScActivationView a = LaunchPrepareRows(ctx, scratch, from, some, dims, first_part.lengths->view().q_max,
                                                 prepared.data(), count, reporter);
    LaunchScDecodeMixed(ctx, plan, a, reporter, products.data(), of_part.data(), count);
    first += some;
  }
  for (size_t i = 0; ctx.observer != nullptr && i < tasks.size(); ++i) {
    const ScExtras* extras = tasks[i].spec->extras.get();
    if (extras == nullptr || extras->lengths == nullptr) continue;
    ShowLengths(ctx, site, tasks[i].weight->rest, lengths[i].slots, rows, extras->op);
  }
}

int64_t MixedDecodeScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, std::span<const int64_t> out_features,
                                int64_t in_features, int64_t tokens) {
  if (!DecodesMixed(gpu, spec, in_features)) return 0;
  constexpr int64_t kSlotAlignment = 256;
  const ScTraits traits = MakeScTraits(*spec.sc);
  const ScDims dims = MakeScDims(in_features, spec.sc->config.chunk_d);
  const int64_t rows = std::min<int64_t>(tokens, kMaxDecodeTokens);
  const int64_t slots = std::min<int64_t>(tokens, kMixedDecodeRows) * dims.chunks + kSlotAlignment;
  int64_t most = 0;
  for (size_t first = 0; first < out_features.size(); first += kMaxScTasks) {
    const auto some = out_features.subspan(first, std::min<size_t>(kMaxScTasks, out_features.size() - first));
    for (int64_t n = 1; n <= rows; ++n) {
      most = std::max(most, PlanMixedDecode(gpu, traits, {n, in_features, some}).scratch_bytes());
    }
  }
  return most + kMaxScTasks * slots;
}

}  // namespace stoch::cuda
