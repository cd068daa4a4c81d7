// SPDX-License-Identifier: Apache-2.0
// Rows whose positions are dealt over devices (kernels/stripes.h): each device works on its own positions for the rows of
// all, and reads what the others found. Private to this folder and to ring/.
//
// A device's cache has local positions, and so have its scores and parts; lanes, masks and windows go by absolute
// position. Bits: as the row kernels.
#pragma once

#include "kernels/cuda/attention/split/split.h"
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

// What a device shares with the others about the rows of a launch. Others only read it: in the device's memory, or a
// copy in pinned memory of the host.
struct QueryShare {
  uint32_t* words = nullptr;       // [own rows][num_heads][head_dim / 4]: codes of the rows that the device owns
  float* scales = nullptr;         // [own rows][num_heads]
  uint32_t* score_max = nullptr;   // [rows][num_heads]: OrderedWord of the largest score, 0 where it has no position
  float* lanes = nullptr;          // [rows][num_heads][kRowLanes / stripes]: sums of exponentials
  uint32_t* weight_max = nullptr;  // [rows][num_heads]: bits of the largest of what is quantized
  int32_t* sums = nullptr;         // [rows][num_heads][head_dim]: counts of p v
};

// SplitArgs of a device's own positions. attention.pass.pages and max_pages are those of the whole pass; kv is the
// striped cache; of the scratch, scores and stride are used.
struct DealtArgs : SplitArgs {
  StripeView stripe;
  int32_t stripes = 1;
  int32_t index = 0;                    // of the device's stripe
  int32_t page_shift = 0;               // a page of the pass has 1 << page_shift of the device's positions
  const DealtQuery* queries = nullptr;  // of the launch's rows
  int32_t first_own[kMaxStripes] = {};  // owner_row of each stripe's first row in the launch
  QueryShare shares[kMaxStripes] = {};  // as this device reads them; its own is where it writes
};

// scores.cu: scores of the own positions, and score_max, which is 0 before.
void LaunchDealtScores(DeviceContext& ctx, const SplitPlan& plan, const DealtArgs& args);
// values.cu: counts of p v of the own positions are added to sums.
void LaunchDealtValues(DeviceContext& ctx, const SplitPlan& plan, const DealtArgs& args);

}  // namespace stoch::cuda
