// SPDX-License-Identifier: Apache-2.0
// Attention of rows whose positions are dealt over devices in stripes (kernels/stripes.h): each device works on its own
// positions for the rows of all devices, step by step, and reads the results of the other devices after each step.
// Called by fabric/ring/, which orders the steps of the devices.
//
// The cache and the scores of a device are indexed by local position (0, 1, 2, ... of the stripe); lanes of float sums
// (kernels/math/reduce.h), masks of the count table and windows depend on the absolute position. Bits: equal to those
// of the row kernels.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/dilated.cuh"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/runtime/stripe_view.h"

namespace stoch::cuda {

inline constexpr int kMaxStripes = 8;

// One row of a pass, with the device (stripe) that owns its position.
struct alignas(16) DealtQuery {
  int32_t sequence = 0;
  int32_t position = 0;   // absolute position of the row
  int32_t owner = 0;      // index of the stripe that owns the position
  int32_t owner_row = 0;  // index of the row among the rows of the pass that the owner has
};

// Memory that one device writes and all devices read, for the rows of a launch. A reader uses the writer's memory
// itself, or a copy in pinned host memory.
struct QueryShare {
  uint32_t* words = nullptr;  // [own rows][num_heads][head_dim / 4]: codes of the queries that the device owns
  float* scales = nullptr;    // [own rows][num_heads]: scales of the queries that the device owns
  // [rows][num_heads]: the largest score over the device's positions as an OrderedWord (device/exchange.cuh); 0 if the
  // device has no position that the row sees.
  uint32_t* score_max = nullptr;
  // [rows][num_heads][kRowLanes / stripes]: the lanes of the softmax sum that the device owns.
  float* lanes = nullptr;
  // [rows][num_heads]: float bits of the largest weight (number to quantize) over the device's positions
  uint32_t* weight_max = nullptr;
  int32_t* sums = nullptr;  // [rows][num_heads][head_dim]: sums of the counts of p v over the device's positions
};

// The rows of a launch, as one device sees them: the positions that it owns, and the addresses of all devices' shares.
struct DealtRowsView {
  // Which positions the device owns, and how many devices the positions are dealt over.
  StripeView stripe;
  int32_t stripes = 1;
  int32_t index = 0;                    // index of the device's stripe
  int32_t page_shift = 0;               // log2 of the positions that the device has of each page of the pass
  const DealtQuery* queries = nullptr;  // [rows of the launch], in device memory
  int32_t first_own[kMaxStripes] = {};  // [stripes]: owner_row of the first row of the launch that a stripe owns
  // [stripes]: the memory of each device, at addresses that this device can read; it writes to shares[index]
  QueryShare shares[kMaxStripes] = {};
};

// Arguments of the steps below.
struct DealtAttention {
  // `pass` has the pages of the whole pass, `kv` the device's cache of its own positions, `out` the rows that the
  // device owns.
  AttentionArgs attention;
  DealtPlan plan;
  ScTables qk, av;
  float* scores = nullptr;  // [rows][num_heads][stride] of this device: scores, then exponentials, then weights
  int64_t stride = 0;       // a multiple of 4, at least the device's positions that any row sees
  int32_t rows = 0;
  DilatedPairs pairs;  // positions that dilated attention admits; no pairs: the whole window
  DealtRowsView dealt;
};

// Fills queries[0, rows) with the rows of `pass` in the order of the pass. Every device makes its own copy.
void LaunchListQueries(DeviceContext& ctx, const PassView& pass, int64_t rows, const StripeView& stripe,
                       DealtQuery* queries);

// ---- The steps, mode kPerToken. A step starts when all devices have ended the step before.
// Scores: reads codes and scales of all shares; writes the scores of the device's positions and score_max. Requires:
// score_max is zeroed by the caller.
void LaunchDealtScores(DeviceContext& ctx, const DealtAttention& args);
// Lanes: reads score_max of all shares; turns the scores into exponentials, each times the number of dilated pairs that
// admit the position, and writes the lanes of the softmax sum that the device owns.
void LaunchDealtLanes(DeviceContext& ctx, const DealtAttention& args);
// Weights: reads the lanes of all shares; turns the exponentials into weights p s_v and writes weight_max. Requires:
// weight_max is zeroed by the caller.
void LaunchDealtWeights(DeviceContext& ctx, const DealtAttention& args);
// Values: reads weight_max of all shares; quantizes the weights and adds the counts of p v over the device's positions
// to sums. Requires: sums is zeroed by the caller.
void LaunchDealtValues(DeviceContext& ctx, const DealtAttention& args);
// Output: reads sums and weight_max of all shares; writes attention.out of the rows that the device owns.
void LaunchDealtOutput(DeviceContext& ctx, const DealtAttention& args);

}  // namespace stoch::cuda
