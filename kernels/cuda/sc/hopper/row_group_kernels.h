// SPDX-License-Identifier: Apache-2.0
// Arguments of the prefill kernel for rows in order of the group of their stream length, whose numbers the
// device knows.
#pragma once

#include "kernels/cuda/sc/hopper/prefill_kernels.h"

namespace stoch::cuda {

// The rows that run as one group, as the device has counted them, and the split of their tiles. Rows lie in order of
// their groups, shortest first; a tile is one of the longest group that has rows in it, so that only the last tile of all is
// not full. Without rows: no clusters.
struct RowGroup {
  PrefillSchedule schedule;
  int32_t first = 0;  // in the order, a multiple of kPrefillTokens
  int32_t rows = 0;
};

// Which rows of the activations the tokens of a group are: token t is row order[group->first + t], up to group->rows.
struct GroupRows {
  const int32_t* order = nullptr;
  const RowGroup* group = nullptr;
};
// Rows of several lengths: the streams of the group, and the slots of the rows.
struct MixedGroupRows : GroupRows {
  RowStreams lengths;
};

// Writes streams and scales of the rows of a group; with MixedGroupRows, gains too. What no row takes stays undefined.
// As LaunchExpandStreams otherwise.
void LaunchExpandGroup(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScStreams& out,
                       int* flags, int flag_count, const GroupRows& rows);
void LaunchExpandGroup(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScStreams& out,
                       int* flags, int flag_count, const MixedGroupRows& rows);

// `schedule` is not used, rows.group has the one that counts; streams.tokens is the most that the group may have.
struct RowGroupArgs : PrefillArgs {
  GroupRows rows;
  bool mixed = false;  // rows of several lengths: streams.gains has theirs
};

// The kernel of LaunchPrefillWgmma over the rows of a group, by `clusters` clusters at most, all resident.
void LaunchRowGroupWgmma(DeviceContext& ctx, const LinearPlan& plan, const RowGroupArgs& args, int clusters);
int64_t MaxRowGroupClusters(DeviceContext& ctx, const LinearPlan& plan, const RowGroupArgs& args);

}  // namespace stoch::cuda
