// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/cuda/sc/hopper/row_group_kernels.h"
#include "kernels/cuda/sc/hopper/row_groups.h"
#include "kernels/plan/linear/mixed.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;

struct OrderArgs {
  RowSlots slots;                       // slot (index of a length) of each row
  const uint8_t* group_of = nullptr;    // [slots] group of each slot; null: one group
  int rows = 0;                         // rows of the call
  int groups = 1;                       // groups of lengths
  int clusters[kMaxLengthGroups] = {};  // [groups] clusters of each group's kernel that run at once
  int supers = 0;                       // super tiles (kSuperRows weight rows) of all tasks
  int chunks = 0;                       // chunks of a row
  int32_t* order = nullptr;             // [rows] output: row numbers, sorted by group
  RowGroup* to = nullptr;               // [groups] output: rows and schedule of each group
};

// Sorts rows by group (a stable counting sort) and makes the schedule of each group; by one block.
__global__ void __launch_bounds__(kThreads) OrderRowsKernel(const __grid_constant__ OrderArgs args) {
  __shared__ int places[kWarps][kMaxLengthGroups];  // index in `order` of each warp's first row of each group
  __shared__ int next[kMaxLengthGroups];            // rows of each group, then index in `order` of its next row
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const unsigned before = (1u << (thread % kWarp)) - 1;
  const auto group_at = [&](int row) {
    const int slot = args.slots.slots == nullptr ? 0 : args.slots.slots[row * args.slots.per_row];
    return args.group_of == nullptr ? 0 : static_cast<int>(args.group_of[slot]);
  };
  if (thread < kMaxLengthGroups) next[thread] = 0;
  StartNext();
  WaitForPrevious();
  __syncthreads();
  for (int row = thread; row < args.rows; row += kThreads) atomicAdd(&next[group_at(row)], 1);
  __syncthreads();
  int begin = 0, end = 0;  // group number `thread` takes args.order[begin .. end - 1]; empty if there is no such group
  if (thread < args.groups) {
    for (int g = 0; g < thread; ++g) begin += next[g];
    end = begin + next[thread];
  }
  __syncthreads();
  if (thread < args.groups) next[thread] = begin;
  __syncthreads();
  for (int first = 0; first < args.rows; first += kThreads) {
    const int row = first + thread;
    const int group = row < args.rows ? group_at(row) : -1;
    int place = 0;
    for (int g = 0; g < args.groups; ++g) {
      const unsigned those = __ballot_sync(kAllLanes, group == g);
      if (group == g) place = __popc(those & before);
      if (thread % kWarp == 0) places[warp][g] = __popc(those);
    }
    __syncthreads();
    if (thread < args.groups) {
      int at = next[thread];
      for (int w = 0; w < kWarps; ++w) {
        const int some = places[w][thread];
        places[w][thread] = at;
        at += some;
      }
      next[thread] = at;
    }
    __syncthreads();
    if (group >= 0) args.order[places[warp][group] + place] = row;
    __syncthreads();
  }
  if (thread >= args.groups) return;
  RowGroup group;
  // A group takes the tiles whose last row it has, so a tile with rows of several groups goes to the group of longest
  // streams.
  group.first = begin / kPrefillTokens * kPrefillTokens;
  group.rows = (end == args.rows ? end : end / kPrefillTokens * kPrefillTokens) - group.first;
  if (begin == end) group.rows = 0;
  if (group.rows > 0) {
    group.schedule = MakePrefillSchedule(args.clusters[thread], args.supers, group.rows, args.chunks);
  } else {
    group.schedule.clusters = 0;
  }
  args.to[thread] = group;
}

static_assert(sizeof(RowGroup) == kRowGroupBytes);

// The launch of one group of lengths.
struct GroupLaunch {
  ScTables tables;  // tables of LengthGroup::order; unless args.mixed, with the streams of the group's one length
  const StreamTable* streams = nullptr;  // [slots] streams by slot, if args.mixed; else null
  LinearPlan plan;
  RowGroupArgs args;
  int clusters = 0;  // clusters that run at once
};

// Plans the launch of a group. shortest: the group is the first, of the shortest lengths.
GroupLaunch MakeLaunch(DeviceContext& ctx, const LengthGroup& group, bool shortest, const ScActivationView& a,
                       const ScLinearTask* tasks, int count) {
  GroupLaunch launch;
  launch.tables = ctx.tables.Get(*group.order);
  RowGroupArgs& args = launch.args;
  // Tiles of a group may have rows of shorter groups, except those of the shortest group.
  args.mixed = !shortest || group.one.streams == nullptr || !launch.tables.direct_ranks;
  if (args.mixed) launch.streams = group.streams;
  if (!args.mixed) launch.tables.streams = group.one.streams;
  args.gain = group.one.gain;
  int64_t out_features[kMaxScTasks] = {};
  int supers = 0;
  for (int i = 0; i < count; ++i) {
    out_features[i] = tasks[i].weight.rows;
    supers = AddTask(tasks[i], supers, &args);
  }
  args.schedule.supers = supers;
  launch.plan =
      PlanScPrefill(ctx.traits, ctx.tables.Traits(*group.order),
                    {a.tokens, a.dims.dims, std::span(out_features).first(static_cast<size_t>(count))}, args.mixed);
  static_cast<StreamShape&>(args.streams) = MakeStreamShape(a.dims, a.tokens, kPrefillTokens, launch.tables.stoc_len);
  if (!launch.tables.direct_ranks) args.ranks = launch.tables.ranks;
  args.masks = launch.tables.masks;
  args.levels = launch.tables.levels;
  return launch;
}

// An upper bound of PrefillSchedule::rest() for any number of rows in up to `token_tiles` tiles.
int64_t MostRest(int64_t clusters, int64_t supers, int64_t token_tiles) {
  return std::min(supers * token_tiles, clusters + supers);
}

// Makes the streams of a group's rows and launches the prefill kernel over them.
void Run(DeviceContext& ctx, GroupLaunch& launch, const ScActivationView& a, const RowSlots& slots) {
  RowGroupArgs& args = launch.args;
  Scratch scratch(ctx.workspace);
  args.streams.data = scratch.Take<uint8_t>(args.streams.bytes());
  args.streams.scales = scratch.Take<float>(args.streams.scale_count());
  if (args.mixed) args.streams.gains = scratch.Take<float>(args.streams.scale_count());
  const int64_t rest = MostRest(launch.clusters, args.schedule.supers, args.streams.token_tiles);
  const int flags = static_cast<int>(rest) * kPrefillFlags;
  args.partial = scratch.Take<float>(rest * kSuperRows * kPrefillTokens);
  args.flags = scratch.Take<int>(flags);
  if (args.mixed) {
    LaunchExpandGroup(ctx, launch.tables, a, args.streams, args.flags, flags,
                      MixedGroupRows{args.rows, {launch.streams, slots}});
  } else {
    LaunchExpandGroup(ctx, launch.tables, a, args.streams, args.flags, flags, args.rows);
  }
  LaunchRowGroupWgmma(ctx, launch.plan, args, launch.clusters);
}

}  // namespace

void LaunchScRowGroups(DeviceContext& ctx, const CallLengths& lengths, const ScActivationView& a,
                       const ScLinearTask* tasks, int count) {
  STOCH_CHECK(count >= 1 && count <= kMaxScTasks && a.tokens >= 1);
  STOCH_CHECK(!lengths.groups.empty() && lengths.groups.size() <= kMaxLengthGroups);
  STOCH_CHECK(lengths.groups.size() == 1 || (lengths.group_of != nullptr && lengths.slots.per_row == 1));
  Scratch scratch(ctx.workspace);
  const auto groups = static_cast<int>(lengths.groups.size());
  OrderArgs order;
  order.slots = lengths.slots;
  if (groups > 1) order.group_of = lengths.group_of;
  order.rows = static_cast<int>(a.tokens);
  order.groups = groups;
  std::vector<GroupLaunch> launches;
  for (int i = 0; i < groups; ++i) {
    GroupLaunch launch = MakeLaunch(ctx, lengths.groups[static_cast<size_t>(i)], i == 0, a, tasks, count);
    launch.clusters = static_cast<int>(MaxRowGroupClusters(ctx, launch.plan, launch.args));
    STOCH_CHECK(launch.clusters >= 1);
    order.clusters[i] = launch.clusters;
    launches.push_back(launch);
  }
  const StreamShape& shape = launches[0].args.streams;
  order.supers = launches[0].args.schedule.supers;
  order.chunks = shape.chunks;
  // One entry more than rows, because the prefill kernel reads pairs of entries.
  order.order = scratch.Take<int32_t>(a.tokens + 1);
  order.to = scratch.Take<RowGroup>(groups);
  LaunchOverlapped(ctx, OrderRowsKernel, dim3(1), dim3(kThreads), 0, order);
  for (int i = 0; i < groups; ++i) {
    launches[static_cast<size_t>(i)].args.rows = {order.order, order.to + i};
    Run(ctx, launches[static_cast<size_t>(i)], a, lengths.slots);
  }
}

}  // namespace stoch::cuda
