// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/attention/shape.h"

#include "kernels/sc/swap.h"

namespace stoch {

bool HasSwappedStreams(const KvCacheSpec& spec) {
  if (spec.mode != AttentionMode::kPerToken || !spec.layers.empty()) return false;
  return CanSwap(*spec.qk) && (spec.av == spec.qk || CanSwap(*spec.av));
}

AttentionShape MakeAttentionShape(const KvCacheSpec& spec, int num_heads) {
  AttentionShape shape;
  shape.mode = spec.mode;
  shape.precision = spec.precision;
  shape.num_heads = num_heads;
  shape.num_kv_heads = spec.num_kv_heads;
  shape.head_dim = spec.head_dim;
  shape.page_tokens = spec.page_tokens;
  if (spec.qk != nullptr) shape.qk = MakeScTraits(*spec.qk);
  if (spec.av != nullptr) shape.av = spec.av == spec.qk ? shape.qk : MakeScTraits(*spec.av);
  shape.swapped = HasSwappedStreams(spec);
  shape.stripes = spec.stripes;
  return shape;
}

AttentionShape LongestShape(const AttentionShape& shape) {
  AttentionShape longest = shape;
  longest.swapped = true;
  longest.qk = shape.longest_qk;
  longest.av = shape.longest_av;
  return longest;
}

}  // namespace stoch
