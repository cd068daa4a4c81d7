// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/mixed/task.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/mixed/observe.h"
#include "kernels/cuda/mixed/prepare.h"

namespace stoch::cuda {

MixedTask MakeMixedTask(DeviceContext& ctx, const MixedWeight& weight, const LinearSpec& spec,
                        const LinearOutput& out) {
  MixedTask task{&weight, &spec, out, {}};
  MixedTraits& traits = task.traits;
  const MixedPart& part = weight.rest;
  SetRuleTraits(spec, &traits);
  if (part.empty()) return task;
  const LengthView& view = part.lengths->view();
  traits.dims = part.view.dims;
  traits.slots = static_cast<int64_t>(part.operators.size());
  traits.has_bytes = view.bytes != nullptr;
  traits.nests = view.streams != nullptr;
  if (!traits.has_bytes && !traits.nests) return task;
  traits.any = ctx.tables.Traits(part.op());
  traits.longest = ctx.tables.Traits(*LongestOperator(part.operators));
  traits.has_quarters = traits.has_residuals = true;
  for (const ScOperatorPtr& one : part.operators) {
    if (one == nullptr) continue;
    const ScTraits& sc = ctx.tables.Traits(*one);
    traits.has_quarters = traits.has_quarters && HasQuarters(sc);
    traits.has_residuals = traits.has_residuals && sc.has_residuals;
  }
  return task;
}

bool SharesRows(const MixedTask& a, const MixedTask& b) {
  const LengthView& x = a.weight->rest.lengths->view();
  const LengthView& y = b.weight->rest.lengths->view();
  return x.q_max == y.q_max && x.levels == y.levels && a.traits.dims.chunk_d == b.traits.dims.chunk_d;
}

std::array<ScTaskLengths, kMaxScTasks> TakeSlots(Scratch& scratch, int64_t rows, std::span<const MixedTask> tasks) {
  STOCH_CHECK(!tasks.empty() && tasks.size() <= kMaxScTasks);
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

ScActivationView PrepareRows(DeviceContext& ctx, Scratch& scratch, const RowSource& source, int64_t rows,
                             std::span<const MixedTask> tasks, const std::array<ScTaskLengths, kMaxScTasks>& lengths,
                             const SiteReporter& reporter) {
  std::array<PrepareTask, kMaxScTasks> prepared;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const RowSlots& slots = lengths[i].slots;
    prepared[i] = {*lengths[i].view, const_cast<uint8_t*>(slots.slots), static_cast<int32_t>(slots.per_row)};
  }
  return LaunchPrepareRows(ctx, scratch, source, rows, tasks[0].traits.dims, lengths[0].view->q_max, prepared.data(),
                           static_cast<int>(tasks.size()), reporter);
}

void ShowLengths(DeviceContext& ctx, const OpSite& site, std::span<const MixedTask> tasks,
                 const std::array<ScTaskLengths, kMaxScTasks>& lengths, int64_t rows) {
  for (size_t i = 0; ctx.observer != nullptr && i < tasks.size(); ++i) {
    const ScExtras* extras = tasks[i].spec->extras.get();
    if (extras == nullptr || extras->lengths == nullptr) continue;
    ShowLengths(ctx, site, tasks[i].weight->rest, lengths[i].slots, rows, extras->op);
  }
}

}  // namespace stoch::cuda
