// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/mixed/prompt.h"

#include <array>
#include <vector>

#include "kernels/cuda/mixed/shared_slots.h"
#include "kernels/cuda/sc/hopper/row_groups.h"
#include "kernels/plan/linear/mixed.h"

namespace stoch::cuda {

namespace {

// Products of all weights whose rows have the same slots, by the route that PlanMixedPrompt chooses. a: the quantized
// rows.
void LaunchProducts(DeviceContext& ctx, const LengthTables& tables, const RowSlots& slots, const ScActivationView& a,
                    const SlotGroup& group) {
  const CallLengths lengths{tables.groups(), tables.group_of(), slots};
  const auto count = static_cast<int>(group.products.size());
  std::vector<ScTraits> orders;
  for (const LengthGroup& one : lengths.groups) orders.push_back(ctx.tables.Traits(*one.order));
  if (PlanMixedPrompt(ctx.traits, orders, slots.per_row, a.tokens) == LinearRoute::kMixedGroups) {
    return LaunchScRowGroups(ctx, lengths, a, group.products.data(), count);
  }
  // kMixedPrompt: one product for all rows at the longest length.
  const LengthGroup all{tables.longest(), tables.view().streams, {}};
  LaunchScRowGroups(ctx, {{&all, 1}, nullptr, slots}, a, group.products.data(), count);
}

}  // namespace

void LaunchMixedPrompt(DeviceContext& ctx, const OpSite& site, const RowSource& source, int64_t rows,
                       std::span<const MixedTask> tasks, const SiteReporter& reporter) {
  Scratch scratch(ctx.workspace);
  const std::array<ScTaskLengths, kMaxScTasks> lengths = TakeSlots(scratch, rows, tasks);
  const ScActivationView a = PrepareRows(ctx, scratch, source, rows, tasks, lengths, reporter);
  ForSharedSlots(tasks, [&](const SlotGroup& group) {
    LaunchProducts(ctx, *tasks[group.first].weight->rest.lengths, lengths[group.first].slots, a, group);
  });
  ShowLengths(ctx, site, tasks, lengths, rows);
}

}  // namespace stoch::cuda
