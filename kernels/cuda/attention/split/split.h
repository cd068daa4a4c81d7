// SPDX-License-Identifier: Apache-2.0
// Attention of single rows with the context split over the whole GPU: what its kernels share. Private to this folder.
//
// Three or four kernels, with the scores of a row in scratch between them: scores of parts of the context, sums of the
// exponentials by lanes of absolute position (kernels/math/reduce.h), the probabilities, p v over parts of the context.
// A part is read once for all query heads of a KV head. Every block finds its work from the lengths in device memory,
// so that a recorded graph cuts a batch of any lengths evenly and rows of one length never wait for those of another.
// Bits: as the row kernels. Maxima and integer sums have no order, and whole lanes are added by one thread.
#pragma once

#include "kernels/cuda/attention/kernels.h"

namespace stoch::cuda {

struct SplitArgs {
  AttentionArgs attention;
  ScTables qk, av;
  QueryCodes q;
  PostedHeads posted;  // of resident kernels; where it is there, `q` is not
  SplitScratch scratch;
  const int32_t* row_list = nullptr;  // null: rows row_offset, row_offset + 1, ...
  int32_t row_offset = 0;
  int32_t rows = 0;
  int32_t block_heads = 1;   // query heads of one KV head that a block takes
  int32_t head_blocks = 1;   // blocks that the heads of one KV head take
  int32_t score_blocks = 1;  // of the launches, which cut the work by them
  int32_t value_blocks = 1;
  int32_t resident_positions = 0;  // of a block of the resident kernel, whose scores fit its shared memory
  int32_t resident_masks = 0;      // whose streams of weights fit next to them,
  int32_t resident_bytes = 0;      // in so many bytes
  uint32_t* flags = nullptr;       // DeviceContext::flags
  bool is_one_block = false;       // a row's softmax is always one block's work
  PostPeers peers;                 // of posted.out
};

// scores.cu
void LaunchSplitScores(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args);
// softmax.cu; exact: weights are probabilities, without scales of values.
void LaunchSplitSoftmax(DeviceContext& ctx, const SplitArgs& args, bool exact);
// values.cu
void LaunchSplitValues(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args);
// resident.cu: all of it by blocks that are all on the GPU at once, kResident
void LaunchSplitResident(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args);
// resident_lookup.cu: the same with q k by look-ups, kLookup and kLookupWords
void LaunchSplitLookup(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args);
// exact.cu
void LaunchSplitExactScores(DeviceContext& ctx, const SplitArgs& args);
void LaunchSplitExactValues(DeviceContext& ctx, const SplitArgs& args);

}  // namespace stoch::cuda
