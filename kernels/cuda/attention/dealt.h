// SPDX-License-Identifier: Apache-2.0
// Rows whose positions are dealt over devices (kernels/stripes.h): each device works on its own positions for the rows of
// all, in steps, and reads what the others found. For fabric/ring/, which orders the steps of the devices.
//
// A device's cache has local positions, and so have its scores; lanes, masks and windows go by absolute position.
// Bits: as the row kernels.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/runtime/stripe_view.h"

namespace stoch::cuda {

inline constexpr int kMaxStripes = 8;

// A row of a pass, whoever owns it.
struct alignas(16) DealtQuery {
  int32_t sequence = 0;
  int32_t position = 0;   // absolute
  int32_t owner = 0;      // stripe
  int32_t owner_row = 0;  // among the rows that the owner has of the pass
};

// Memory that a device shares with the others, about the rows of a launch. Others only read it: in the device's memory, or a
// copy in pinned memory of the host.
struct QueryShare {
  uint32_t* words = nullptr;       // [own rows][num_heads][head_dim / 4]: codes of the rows that the device owns
  float* scales = nullptr;         // [own rows][num_heads]
  uint32_t* score_max = nullptr;   // [rows][num_heads]: OrderedWord of the largest score, 0 where it has no position
  float* lanes = nullptr;          // [rows][num_heads][kRowLanes / stripes]: sums of exponentials
  uint32_t* weight_max = nullptr;  // [rows][num_heads]: bits of the largest of what is quantized
  int32_t* sums = nullptr;         // [rows][num_heads][head_dim]: counts of p v
};

// The rows of a launch as a device sees them.
struct DealtRowsView {
  StripeView stripe;
  int32_t stripes = 1;
  int32_t index = 0;                    // of the device's stripe
  int32_t page_shift = 0;               // a page of the pass has 1 << page_shift of the device's positions
  const DealtQuery* queries = nullptr;  // of the launch's rows
  int32_t first_own[kMaxStripes] = {};  // owner_row of each stripe's first row in the launch
  QueryShare shares[kMaxStripes] = {};  // as this device reads them; its own is where it writes
};

struct DealtAttention {
  AttentionArgs attention;  // pages and max_pages of the whole pass; kv: the striped cache; out: of the device's rows
  DealtPlan plan;
  ScTables qk, av;
  float* scores = nullptr;  // [rows][num_heads][stride], of this device: scores, then exponentials, then weights
  int64_t stride = 0;       // a multiple of 4, and no less than the local positions that a row sees
  int32_t rows = 0;
  DilatedPairs pairs;  // where there are some, what of its window a row sees
  DealtRowsView dealt;
};

// Fills queries[0, rows) with the rows of `pass`, in its order. Every device makes its own copy.
void LaunchListQueries(DeviceContext& ctx, const PassView& pass, int64_t rows, const StripeView& stripe,
                       DealtQuery* queries);

// ---- The steps; each starts when all devices have ended the one before. kPerToken.
// From codes and scales: scores of the own positions, and score_max, which is 0 before.
void LaunchDealtScores(DeviceContext& ctx, const DealtAttention& args);
// From score_max: exponentials, as often as they count, and the sums of the own lanes.
void LaunchDealtLanes(DeviceContext& ctx, const DealtAttention& args);
// From lanes: what is quantized, and weight_max, which is 0 before.
void LaunchDealtWeights(DeviceContext& ctx, const DealtAttention& args);
// From weight_max: counts of p v of the own positions, added to sums.
void LaunchDealtValues(DeviceContext& ctx, const DealtAttention& args);
// From sums and weight_max: attention.out of the rows that the device owns.
void LaunchDealtOutput(DeviceContext& ctx, const DealtAttention& args);

}  // namespace stoch::cuda
