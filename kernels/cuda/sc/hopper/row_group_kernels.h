// SPDX-License-Identifier: Apache-2.0
// Arguments of the prefill kernel for rows sorted by the group of their stream length. Only the device knows how many
// rows a group has.
#pragma once

#include "kernels/cuda/sc/hopper/prefill_kernels.h"

namespace stoch::cuda {

// The tiles of one group of lengths, counted on the device. Rows are sorted by group, shortest streams first, and cut
// in tiles of kPrefillTokens rows. A tile with rows of several groups belongs to the longest of these groups, so only
// the very last tile may have padding rows.
struct RowGroup {
  PrefillSchedule schedule;  // split of the group's tiles; 0 clusters if it has no rows
  int32_t first = 0;         // index of the group's first row in the sorted order, a multiple of kPrefillTokens
  int32_t rows = 0;          // rows in the group's tiles
};

// Maps the tokens of a group to rows of the activations: token t is row order[group->first + t], t < group->rows.
struct GroupRows {
  const int32_t* order = nullptr;   // device memory: row numbers of the call, sorted by group
  const RowGroup* group = nullptr;  // device memory: the group whose tiles are multiplied
};
// Rows of a group that have several stream lengths.
struct MixedGroupRows : GroupRows {
  RowStreams lengths;  // streams of each length, and the slot of each row of the call
};

// As LaunchExpandStreams (streams.h), for the rows of a group: writes their streams and scales and, with
// MixedGroupRows, gains. The rest of `out`, past group->rows tokens, stays undefined.
void LaunchExpandGroup(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScStreams& out,
                       int* flags, int flag_count, const GroupRows& rows);
void LaunchExpandGroup(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScStreams& out,
                       int* flags, int flag_count, const MixedGroupRows& rows);

// Arguments of the prefill kernel for one group. The kernel reads rows.group->schedule, not PrefillArgs::schedule;
// streams.tokens is the largest number of rows that the group may have.
struct RowGroupArgs : PrefillArgs {
  GroupRows rows;
  bool mixed = false;  // true: rows have several lengths, and streams.gains has the gain of each
};

// Launches the prefill kernel over the rows of a group with `clusters` clusters.
// Requires: clusters <= MaxRowGroupClusters, because clusters wait for each other.
void LaunchRowGroupWgmma(DeviceContext& ctx, const LinearPlan& plan, const RowGroupArgs& args, int clusters);
// The number of clusters of the kernel that the GPU runs at once.
int64_t MaxRowGroupClusters(DeviceContext& ctx, const LinearPlan& plan, const RowGroupArgs& args);

}  // namespace stoch::cuda
