// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/mixed/step.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/cuda/mixed/batch.h"
#include "kernels/cuda/mixed/observe.h"
#include "kernels/cuda/mixed/prepare.h"
#include "kernels/cuda/mixed/shared_slots.h"
#include "kernels/cuda/mixed/table.h"
#include "kernels/cuda/sc/decode/decode.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {
namespace {

bool HasPlainConfig(const GpuTraits& gpu, const ScConfig& config, const ScExtras* extras, const ScDims& dims) {
  if (config.granularity != ScGranularity::kPerRow || config.group_a != 1 || !PreparesRows(gpu, dims)) return false;
  if (extras == nullptr) return true;
  if (!extras->smooth.empty() || !extras->protected_channels.empty()) return false;
  const ScLengthRule* rule = extras->lengths.get();
  return rule == nullptr || (rule->normalise == ScNormalise::kFixed && rule->scope != ScLengthScope::kFractions);
}

// Whether blocks of the decode kernel had better find the slots of one row themselves: SiLU of a whole row is too much
// for every block.
bool PicksItself(const RowSource& source, std::span<const MixedTask> tasks) {
  return std::all_of(tasks.begin(), tasks.end(), [&](const MixedTask& task) {
    const LengthView& view = task.weight->rest.lengths->view();
    if (!view.has_rule) return true;
    return PicksSlots(view) && (view.scope == ScLengthScope::kChunk || source.prologue != Prologue::kSiluMul);
  });
}

bool HasBytes(const ScOperator& op) {
  return op.code == ScCode::kSignMagnitude && op.wide_counts.empty() && op.levels <= 128 && CountsFitBytes(op);
}

}  // namespace

bool HasPlainRows(const GpuTraits& gpu, const LinearSpec& spec, int64_t in_features) {
  const ScConfig& config = spec.sc->config;
  return HasPlainConfig(gpu, config, spec.extras.get(), MakeScDims(in_features, config.chunk_d));
}

bool DecodesMixed(const GpuTraits& gpu, const LinearSpec& spec, int64_t in_features) {
  if (!HasPlainRows(gpu, spec, in_features)) return false;
  if (spec.extras == nullptr || spec.extras->by_length.empty()) return HasBytes(*spec.sc);
  const std::vector<ScOperatorPtr>& operators = spec.extras->by_length;
  return operators.size() <= kMaxByteTables &&
         std::all_of(operators.begin(), operators.end(), [](const auto& op) { return op == nullptr || HasBytes(*op); });
}

bool DecodesMixed(const DeviceContext& ctx, const MixedTask& task) {
  const MixedPart& rest = task.weight->rest;
  return task.weight->own.empty() && !rest.empty() && rest.lengths->view().bytes != nullptr &&
         HasPlainRows(ctx.traits, *task.spec, rest.view.dims.dims);
}

bool SharesRows(const MixedTask& a, const MixedTask& b) {
  const LengthView& x = a.weight->rest.lengths->view();
  const LengthView& y = b.weight->rest.lengths->view();
  return x.q_max == y.q_max && x.levels == y.levels &&
         a.weight->rest.view.dims.chunk_d == b.weight->rest.view.dims.chunk_d;
}

namespace {

// Slots of all rows, where rules will put them.
std::array<ScTaskLengths, kMaxScTasks> TakeSlots(Scratch& scratch, int64_t rows, std::span<const MixedTask> tasks) {
  std::array<ScTaskLengths, kMaxScTasks> lengths;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const MixedPart& part = tasks[i].weight->rest;
    const LengthView& view = part.lengths->view();
    lengths[i].view = &view;
    if (!view.has_rule) continue;
    const bool by_chunk = view.scope == ScLengthScope::kChunk || view.bands != nullptr;
    lengths[i].slots.per_row = by_chunk ? part.view.dims.chunks : 1;
    lengths[i].slots.slots = scratch.Take<uint8_t>(rows * lengths[i].slots.per_row);
  }
  return lengths;
}

// Fills the slots of `rows` rows, of which `lengths` points to the first.
ScActivationView Prepare(DeviceContext& ctx, Scratch& scratch, const RowSource& source, int64_t rows,
                         std::span<const MixedTask> tasks, const std::array<ScTaskLengths, kMaxScTasks>& lengths,
                         const SiteReporter& reporter) {
  std::array<PrepareTask, kMaxScTasks> prepared;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const RowSlots& slots = lengths[i].slots;
    prepared[i] = {*lengths[i].view, const_cast<uint8_t*>(slots.slots), static_cast<int32_t>(slots.per_row)};
  }
  return LaunchPrepareRows(ctx, scratch, source, rows, tasks[0].weight->rest.view.dims, lengths[0].view->q_max,
                           prepared.data(), static_cast<int>(tasks.size()), reporter);
}

}  // namespace

PreparedRows PrepareMixedRows(DeviceContext& ctx, Scratch& scratch, const RowSource& source, int64_t rows,
                              std::span<const MixedTask> tasks, const SiteReporter& reporter) {
  PreparedRows prepared;
  prepared.lengths = TakeSlots(scratch, rows, tasks);
  prepared.a = Prepare(ctx, scratch, source, rows, tasks, prepared.lengths, reporter);
  return prepared;
}

void ShowLengths(DeviceContext& ctx, const OpSite& site, std::span<const MixedTask> tasks, const PreparedRows& prepared,
                 int64_t rows) {
  for (size_t i = 0; ctx.observer != nullptr && i < tasks.size(); ++i) {
    const ScExtras* extras = tasks[i].spec->extras.get();
    if (extras == nullptr || extras->lengths == nullptr) continue;
    ShowLengths(ctx, site, tasks[i].weight->rest, prepared.lengths[i].slots, rows, extras->op);
  }
}

namespace {

// Rows [first, first + some) of a call, whose slots `lengths` are.
struct Share {
  RowSource from;
  std::array<MixedTask, kMaxScTasks> tasks;
  std::array<ScTaskLengths, kMaxScTasks> lengths;
};
Share ShareOf(const RowSource& source, std::span<const MixedTask> tasks,
              const std::array<ScTaskLengths, kMaxScTasks>& all, int64_t first) {
  Share share;
  share.from = source;
  share.from.x += first * source.x_stride;
  if (share.from.x2 != nullptr) share.from.x2 += first * source.x2_stride;
  share.lengths = all;
  for (size_t i = 0; i < tasks.size(); ++i) {
    share.tasks[i] = tasks[i];
    share.tasks[i].out.data += first * tasks[i].out.stride;
    RowSlots& slots = share.lengths[i].slots;
    if (slots.slots != nullptr) slots.slots += first * slots.per_row;
  }
  return share;
}

// Some of the next `left` rows on tensor cores; how many, 0 where none.
int64_t BatchSome(DeviceContext& ctx, const Share& share, int64_t left, size_t count, const SiteReporter& reporter) {
  const std::span<const MixedTask> tasks(share.tasks.data(), count);
  const int64_t some = MixedBatchPass(left);
  if (some == 0 || !std::all_of(tasks.begin(), tasks.end(), [&](const auto& task) { return BatchesMixed(ctx, task); }))
    return 0;
  Scratch scratch(ctx.workspace);
  const ScActivationView a = Prepare(ctx, scratch, share.from, some, tasks, share.lengths, reporter);
  LaunchMixedBatch(ctx, {a, share.lengths}, tasks, reporter);
  return some;
}

// The same by look-ups that serve all of them.
int64_t LookUpSome(DeviceContext& ctx, const Share& share, int64_t left, size_t count, const SiteReporter& reporter) {
  const std::span<const MixedTask> tasks(share.tasks.data(), count);
  const int64_t some = MixedTablePass(left);
  if (!std::all_of(tasks.begin(), tasks.end(), [&](const auto& task) { return LooksUpMixed(ctx, task, some); }))
    return 0;
  Scratch scratch(ctx.workspace);
  const ScActivationView a = Prepare(ctx, scratch, share.from, some, tasks, share.lengths, reporter);
  LaunchMixedTables(ctx, {a, share.lengths}, tasks, reporter);
  return some;
}

// Up to kMaxDecodeTokens of the next `left` rows by the decode kernel; how many.
int64_t DecodeSome(DeviceContext& ctx, const Share& share, int64_t left, size_t count, bool fused,
                   const SiteReporter& reporter) {
  const std::span<const MixedTask> tasks(share.tasks.data(), count);
  const MixedPart& part = tasks[0].weight->rest;
  std::array<int64_t, kMaxScTasks> out_features{};
  std::array<ScLinearTask, kMaxScTasks> products;
  for (size_t i = 0; i < count; ++i) {
    out_features[i] = tasks[i].weight->rest.view.rows;
    products[i] = {tasks[i].weight->rest.view, tasks[i].out};
  }
  const ScPlan plan = PlanMixedDecode(ctx.traits, ctx.tables.Traits(part.op()),
                                      {std::min<int64_t>(left, kMaxDecodeTokens), part.view.dims.dims,
                                       std::span<const int64_t>(out_features).first(count)},
                                      fused);
  Scratch scratch(ctx.workspace);
  ScActivationView a;
  a.tokens = std::min<int64_t>(left, plan.tile_tokens);
  if (!fused) a = Prepare(ctx, scratch, share.from, a.tokens, tasks, share.lengths, reporter);
  const bool alike =

      std::all_of(tasks.begin(), tasks.end(), [&](const auto& task) { return SharesSlots(tasks[0], task); });
  LaunchScDecodeMixed(ctx, plan, a, share.from, reporter, products.data(), share.lengths.data(),
                      static_cast<int>(count), alike);
  return a.tokens;
}

}  // namespace

void LaunchMixedDecode(DeviceContext& ctx, const OpSite& site, const RowSource& source, int64_t rows,
                       std::span<const MixedTask> tasks, const SiteReporter& reporter) {
  STOCH_CHECK(!tasks.empty() && tasks.size() <= kMaxScTasks);
  const bool fused = rows == 1 && ctx.observer == nullptr && PicksItself(source, tasks);
  Scratch of_call(ctx.workspace);
  PreparedRows all;
  all.lengths = TakeSlots(of_call, rows, tasks);
  for (int64_t first = 0; first < rows;) {
    const Share share = ShareOf(source, tasks, all.lengths, first);
    int64_t some = BatchSome(ctx, share, rows - first, tasks.size(), reporter);
    if (some == 0) some = LookUpSome(ctx, share, rows - first, tasks.size(), reporter);
    if (some == 0) some = DecodeSome(ctx, share, rows - first, tasks.size(), fused, reporter);
    first += some;
  }
  ShowLengths(ctx, site, tasks, all, rows);
}

int64_t PreparedSlotBytes(const LinearSpec& spec, int64_t in_features, int64_t tokens) {
  constexpr int64_t kSlotAlignment = 256;
  return kMaxScTasks * (tokens * MakeScDims(in_features, spec.sc->config.chunk_d).chunks + kSlotAlignment);
}

int64_t MixedDecodeScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, std::span<const int64_t> out_features,
                                int64_t in_features, int64_t tokens) {
  if (!DecodesMixed(gpu, spec, in_features)) return 0;
  const ScTraits traits = MakeScTraits(*spec.sc);
  const int64_t rows = std::min<int64_t>(tokens, kMaxDecodeTokens);
  int64_t most = 0;
  for (size_t first = 0; first < out_features.size(); first += kMaxScTasks) {
    const auto some = out_features.subspan(first, std::min<size_t>(kMaxScTasks, out_features.size() - first));
    for (int64_t n = 1; n <= rows; ++n) {
      most = std::max(most, PlanMixedDecode(gpu, traits, {n, in_features, some}, false).scratch_bytes());
    }
  }
  const ScDims dims = MakeScDims(in_features, spec.sc->config.chunk_d);
  constexpr int64_t kAlignment = 256;
  const int64_t prepared =
      std::min(tokens, kMixedDecodeRows) * (dims.padded + dims.chunks * static_cast<int64_t>(sizeof(float))) +
      2 * kAlignment;
  most = std::max(most, prepared + MixedTableScratchBytes(gpu, spec, out_features, in_features, tokens));
  most = std::max(most, prepared + MixedBatchScratchBytes(gpu, spec, out_features, in_features, tokens));
  return most + PreparedSlotBytes(spec, in_features, std::min<int64_t>(tokens, kMixedLookupRows));
}

}  // namespace stoch::cuda
