// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/sc/hopper/grouped.h"
#include "kernels/cuda/sc/hopper/grouped_kernels.h"

namespace stoch::cuda {

void LaunchScExpertGroups(DeviceContext& ctx, const ExpertPlan& plan, const ExpertShape& shape, const ScTraits& traits,
                          const ScTables& tables, const ScActivationView& a, const ExpertGroups& groups,
                          const ScExpertTask* tasks, int count) {
  STOCH_CHECK(plan.route == LinearRoute::kExpertGroups && count >= 1 && count <= kMaxScTasks);
  const int64_t tokens = plan.tiles_at_once * kPrefillTokens;
  const int64_t out_features[] = {shape.out_features};
  const LinearPlan kernel = PlanScPrefill(ctx.traits, traits, {tokens, shape.in_features, out_features});
  Scratch scratch(ctx.workspace);
  GroupedArgs args;
  static_cast<StreamShape&>(args.streams) = MakeStreamShape(a.dims, tokens, kPrefillTokens, tables.stoc_len);
  args.streams.data = scratch.Take<uint8_t>(args.streams.bytes());
  args.streams.scales = scratch.Take<float>(args.streams.scale_count());
  args.gain = tables.gain;
  if (!tables.direct_ranks) args.ranks = tables.ranks;
  args.masks = tables.masks;
  args.levels = tables.levels;
  args.experts = groups.experts;
  args.slots = groups.slots;
  GroupedSchedule& schedule = args.schedule;
  for (int i = 0; i < count; ++i) {
    const ScWeightView& w = tasks[i].first;
    args.views[i] = tasks[i].views;
    schedule.supers = AddTask({w, {tasks[i].out, tasks[i].out_stride, false}}, schedule.supers, &args);
  }
  schedule.chunks = args.streams.chunks;
  schedule.tiles = groups.tiles;
  schedule.tile_rows = groups.rows;
  for (int64_t first = 0; first < plan.max_tiles; first += plan.tiles_at_once) {
    schedule.first_tile = static_cast<int>(first);
    schedule.most_tiles = static_cast<int>(std::min(plan.tiles_at_once, plan.max_tiles - first));
    LaunchExpandSlots(ctx, tables, a, args.streams,
                      {groups.slots, groups.tiles, schedule.first_tile, static_cast<int>(shape.row_slots)});
    LaunchGroupedWgmma(ctx, kernel, args);
  }
}

}  // namespace stoch::cuda
