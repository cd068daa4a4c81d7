// SPDX-License-Identifier: Apache-2.0
// Arguments and launchers shared by the kernels of this folder, which compute attention of single rows (one token of a
// sequence each) with every context split over the whole GPU. Private to this folder.
//
// LaunchSplitScores writes the scores q k to scratch, LaunchSplitSoftmax turns scores into weights (the numbers that p
// v quantizes), LaunchSplitValues multiplies weights by values. Each launch cuts the contexts into parts, and reads a
// part once for all query heads of a KV head. A resident kernel does all steps in one launch. The lane of the sum that
// an exponential is added to depends on the absolute position (kernels/math/reduce.h). Every block finds its work from
// the lengths in device memory, so that a recorded graph cuts a batch of any lengths evenly, and short rows never wait
// for long ones. Bits: equal to those of the kernels that give each row to one block (attention/row.cu). Maxima and
// integer sums have no order, and each lane of a float sum is added by one thread.
#pragma once

#include "kernels/cuda/attention/kernels.h"

namespace stoch::cuda {

struct SplitArgs {
  AttentionArgs attention;
  ScTables qk, av;
  QueryCodes q;
  // Queries, keys and values that the previous kernel posts word by word, for resident kernels of one row. If posted.q
  // is null, the queries are in `q`.
  PostedHeads posted;
  SplitScratch scratch;
  const int32_t* row_list = nullptr;  // [rows] indices of rows in the pass; null: row_offset, row_offset + 1, ...
  int32_t row_offset = 0;
  int32_t rows = 0;
  int32_t block_heads = 1;  // query heads of one KV head that one block computes
  int32_t head_blocks = 1;  // blocks that together compute all query heads of one KV head
  // Grid sizes of the score kernel and of the value kernel. Each kernel cuts the contexts into about as many parts as
  // it has blocks.
  int32_t score_blocks = 1;
  int32_t value_blocks = 1;
  int32_t resident_positions = 0;  // positions per block whose scores fit in shared memory (resident kernels)
  int32_t resident_masks = 0;      // scrambling masks whose streams of weights fit in shared memory next to the scores
  int32_t resident_bytes = 0;      // bytes of shared memory for the streams of weights under these masks
  // DeviceContext::flags: words through which resident blocks exchange numbers, 0 between kernels
  uint32_t* flags = nullptr;
  bool is_one_block = false;  // one block computes the softmax of a row and head, however long the row is
  PostPeers peers;            // other GPUs to which posted.out is posted
};

// scores.cu. Writes the scores q k of every row to scratch.scores, and their maximum over each part of the context to
// scratch.score_max.
void LaunchSplitScores(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args);
// softmax.cu. Turns scratch.scores from scores into weights. exact: weights are probabilities; otherwise a weight is a
// probability times the scale of its value, and scratch.weight_max gets the largest of each part.
void LaunchSplitSoftmax(DeviceContext& ctx, const SplitArgs& args, bool exact);
// values.cu. Quantizes the weights in scratch.scores, multiplies them by the values in the cache, and writes
// attention.out.
void LaunchSplitValues(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args);
// resident.cu. Computes q k, softmax and p v in one launch (SplitKernel::kResident), whose blocks are all on the GPU at
// once.
void LaunchSplitResident(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args);
// resident_lookup.cu. As LaunchSplitResident, with q k by table look-ups (SplitKernel::kLookup and kLookupWords).
void LaunchSplitLookup(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args);
// exact.cu. Both products without SC, in fp32 arithmetic: LaunchSplitExactScores writes scratch.scores and
// scratch.score_max, LaunchSplitExactValues writes p v to attention.out.
void LaunchSplitExactScores(DeviceContext& ctx, const SplitArgs& args);
void LaunchSplitExactValues(DeviceContext& ctx, const SplitArgs& args);

}  // namespace stoch::cuda
