// SPDX-License-Identifier: Apache-2.0
// Shapes of attention that the tests of its plans ask for.
#pragma once

#include <map>

#include "kernels/plan/attention/plan.h"
#include "kernels/sc/sc_config.h"

namespace stoch::test {

inline const ScTraits& Halved(int stoc_len = 0) {
  static std::map<int, ScTraits> traits;  // each takes milliseconds
  const auto found = traits.find(stoc_len);
  if (found != traits.end()) return found->second;
  ScConfig config;
  config.halve = true;
  config.stoc_len = stoc_len;
  return traits[stoc_len] = MakeScTraits(*MakeScOperator(config));
}

inline AttentionShape Shape(int heads, int kv_heads, int head_dim, const ScTraits& sc,
                            AttentionMode mode = AttentionMode::kPerToken) {
  AttentionShape shape;
  shape.mode = mode;
  shape.num_heads = heads;
  shape.num_kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.qk = shape.av = sc;
  return shape;
}

// The plan of a pass of an engine that takes 2048 rows, 64 sequences and 128k positions.
inline AttentionPlan Plan(const GpuTraits& gpu, const AttentionShape& shape, const AttentionPass& pass) {
  return PlanAttention(gpu, shape, {2048, 64, 131072}, pass);
}

}  // namespace stoch::test
