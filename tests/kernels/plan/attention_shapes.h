// SPDX-License-Identifier: Apache-2.0
// Shapes of attention that the tests of its plans ask for.
#pragma once

#include "kernels/plan/attention_plan.h"
#include "kernels/sc/sc_config.h"

namespace stoch::test {

inline ScTraits Halved(int stoc_len = 0) {
  ScConfig config;
  config.halve = true;
  config.stoc_len = stoc_len;
  return MakeScTraits(*MakeScOperator(config));
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

}  // namespace stoch::test
