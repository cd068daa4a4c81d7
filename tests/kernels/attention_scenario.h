// SPDX-License-Identifier: Apache-2.0
// Attention runs over several passes, the same on every backend: inputs are functions of sequence and position.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"

namespace stoch::test {

struct AttentionShape {
  AttentionMode mode = AttentionMode::kPerToken;
  Precision precision = Precision::kFp32;
  ScConfig qk, av;                             // granularity is set from `mode`
  ScExtrasPtr qk_extras = {}, av_extras = {};  // lengths of rows
  int num_heads = 2;
  int num_kv_heads = 1;
  int head_dim = 16;
  int page_tokens = 64;
  int64_t max_context = 256;
  int window = 0;
  bool smooths_qk = false;                    // AttentionCall::qk_smooth, of factors from 0.5 to 2
  const NonlinearTable* exp_table = nullptr;  // AttentionCall::exp_table
  float score_cap = 0;                        // AttentionCall::score_cap
  int first_head = 0;
  float qk_gain = 1;  // of q and k: 0 makes all scores equal, much makes a few of them all of a row
  int period = 0;     // positions that far apart have equal inputs; 0: none do
  float v_drift = 0;  // v grows by that much of itself from a position to the next, of five
  float v_spike = 1;  // how much larger v is at every 701st position
};

// Rows of one sequence in one pass; they continue where the sequence's last pass ended.
struct Share {
  int sequence = 0;
  int rows = 0;
};
using Passes = std::vector<std::vector<Share>>;

// Output rows by sequence and position: [num_heads * head_dim].
using AttentionRows = std::map<std::pair<int, int>, std::vector<float>>;

// Runs `passes` through layer 1 of a two-layer cache. graph_key, when not empty, wraps each pass in RunGraph (passes of
// equal row counts and ContextBuckets share a key). Pages are handed out to sequences in turn, from the last page down.
AttentionRows RunAttention(Backend& backend, const AttentionShape& shape, const Passes& passes,
                           const std::string& graph_key = "");

// How many rows differ in any bit, and the first that does; "" where none.
std::string Differences(const AttentionRows& a, const AttentionRows& b);

}  // namespace stoch::test
