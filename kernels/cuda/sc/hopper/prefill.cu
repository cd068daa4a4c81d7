// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/sc/hopper/prefill.h"
#include "kernels/cuda/sc/hopper/prefill_kernels.h"

namespace stoch::cuda {

void LaunchScPrefill(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& a,
                     const ScLinearTask* tasks, int count, const ScPrefillOptions& options) {
  STOCH_CHECK(count >= 1 && count <= kMaxScTasks && a.tokens >= 1);
  Scratch scratch(ctx.workspace);
  PrefillArgs args;
  static_cast<StreamShape&>(args.streams) = MakeStreamShape(a.dims, a.tokens, plan.tile_tokens, tables.stoc_len);
  args.streams.data = scratch.Take<uint8_t>(args.streams.bytes());
  args.streams.scales = scratch.Take<float>(args.streams.scale_count());
  args.gain = tables.gain;
  if (!tables.direct_ranks) args.ranks = tables.ranks;
  args.masks = tables.masks;
  args.levels = tables.levels;

  int supers = 0;
  for (int i = 0; i < count; ++i) supers = AddTask(tasks[i], supers, &args);
  int clusters = static_cast<int>(MaxPrefillClusters(ctx, plan, args));
  STOCH_CHECK(clusters >= 1);
  if (options.clusters > 0) clusters = std::min(clusters, options.clusters);
  args.schedule = MakePrefillSchedule(clusters, supers, args.streams.tokens, args.streams.chunks);
  SortPlaces(&args.schedule);
  const int flags = args.schedule.rest() * kPrefillFlags;
  args.partial = scratch.Take<float>(static_cast<int64_t>(args.schedule.rest()) * kSuperRows * kPrefillTokens);
  args.flags = scratch.Take<int>(flags);
  if (options.rows != nullptr) {
    LaunchStreamRows(ctx, scratch, tables, a.dims, options.rows->source, args.streams, args.flags, flags,
                     options.rows->reporter);
  } else {
    LaunchExpandStreams(ctx, tables, a, args.streams, args.flags, flags);
  }
  LaunchPrefillWgmma(ctx, plan, args);
}

}  // namespace stoch::cuda
