// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/attention/shape.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/plan/linear/mixed_traits.h"
#include "kernels/sc/hardware/accumulator.h"
#include "kernels/sc/swap.h"

namespace stoch {
namespace {

using Products = KvCacheSpec::Products;

const ScLengthRule* RuleOf(const ScExtrasPtr& extras) { return extras == nullptr ? nullptr : extras->lengths.get(); }

bool HasLengthsOfRows(const ScExtrasPtr& extras) {
  const ScLengthRule* rule = RuleOf(extras);
  return rule == nullptr || IsOfRow(*rule);
}

bool AreAlike(const ScOperatorPtr& op, const ScExtrasPtr& extras, const ScOperatorPtr& other,
              const ScExtrasPtr& other_extras) {
  const auto same = [](const ScOperatorPtr& a, const ScOperatorPtr& b) {
    return a == b || (a != nullptr && b != nullptr && a->config == b->config);
  };
  const std::span<const ScOperatorPtr> slots = OperatorsBySlot(op, extras);
  const std::span<const ScOperatorPtr> others = OperatorsBySlot(other, other_extras);
  return same(op, other) && std::equal(slots.begin(), slots.end(), others.begin(), others.end(), same) &&
         (RuleOf(extras) == nullptr) == (RuleOf(other_extras) == nullptr) &&
         HasLengthsOfRows(extras) == HasLengthsOfRows(other_extras);
}

// Whether the products of two layers have the same shape.
bool AreAlike(const Products& a, const Products& b) {
  return AreAlike(a.qk, a.qk_extras, b.qk, b.qk_extras) && AreAlike(a.av, a.av_extras, b.av, b.av_extras);
}

AttentionShape ShapeOfCache(const KvCacheSpec& spec, int num_heads) {
  AttentionShape shape;
  shape.mode = spec.mode;
  shape.precision = spec.precision;
  shape.num_heads = num_heads;
  shape.num_kv_heads = spec.num_kv_heads;
  shape.head_dim = spec.head_dim;
  shape.page_tokens = spec.page_tokens;
  shape.stripes = spec.stripes;
  shape.key_scales = spec.key_scales;
  shape.dilated = spec.dilated;
  return shape;
}

// Sets what the products of a layer add to the shape of their cache.
void SetProducts(const KvCacheSpec& spec, const Products& products, AttentionShape& shape) {
  const bool is_plain = spec.smooths_qk || (spec.mode != AttentionMode::kPerToken && !AreUniform(products));
  if (is_plain) shape.lengths = AttentionLengths::kAny;
  if (!is_plain && spec.mode == AttentionMode::kPerToken) shape.lengths = LengthsOf(products);
  if (shape.lengths == AttentionLengths::kAny) return;
  shape.qk = MakeScTraits(*products.qk);
  shape.av = products.av == products.qk ? shape.qk : MakeScTraits(*products.av);
  if (shape.lengths == AttentionLengths::kUniform) shape.swapped = HasSwappedStreams(spec);
  if (shape.lengths != AttentionLengths::kByTile) return;
  shape.longest_qk = MakeScTraits(*WideOperator(OperatorsBySlot(products.qk, products.qk_extras)));
  shape.longest_av = MakeScTraits(*WideOperator(OperatorsBySlot(products.av, products.av_extras)));
}

}  // namespace

bool HasSwappedStreams(const KvCacheSpec& spec) {
  if (spec.mode != AttentionMode::kPerToken || !spec.layers.empty()) return false;
  if (spec.smooths_qk || !AreUniform({spec.qk, spec.av})) return false;
  return CanSwap(*spec.qk) && (spec.av == spec.qk || CanSwap(*spec.av));
}

std::vector<Products> ProductsOf(const KvCacheSpec& spec) {
  if (!spec.layers.empty()) return spec.layers;
  return {{spec.qk, spec.av}};
}

bool AreUniform(const Products& products) {
  const auto is_ideal = [](const ScOperatorPtr& op) {
    return op->code == ScCode::kSignMagnitude && HasSource(op->config.gate) && !HasHardware(op->config);
  };
  return is_ideal(products.qk) && is_ideal(products.av) && RuleOf(products.qk_extras) == nullptr &&
         RuleOf(products.av_extras) == nullptr;
}

AttentionLengths LengthsOf(const Products& products) {
  if (AreUniform(products)) return AttentionLengths::kUniform;
  const std::span<const ScOperatorPtr> qk = OperatorsBySlot(products.qk, products.qk_extras);
  const std::span<const ScOperatorPtr> av = OperatorsBySlot(products.av, products.av_extras);
  const bool has_int_values = IntBits(products.av->config.arith) > 0;  // a scale for every 128 positions of p v
  if (HasHardware(products.qk->config) || HasHardware(products.av->config) || !HaveBytes(qk) || !HaveBytes(av) ||
      !HasLengthsOfRows(products.qk_extras) || !HasLengthsOfRows(products.av_extras) || has_int_values) {
    return AttentionLengths::kAny;
  }
  return WideOperator(qk) != nullptr && WideOperator(av) != nullptr ? AttentionLengths::kByTile
                                                                    : AttentionLengths::kByRow;
}

ScOperatorPtr WideOperator(std::span<const ScOperatorPtr> by_slot) {
  constexpr int kCycles = 128;
  constexpr int kLevels = 128;
  constexpr int kMasks = 64;
  const ScOperatorPtr longest = LongestOperator(by_slot);
  STOCH_CHECK(longest != nullptr);
  if (longest->code != ScCode::kSignMagnitude || longest->levels != kLevels || !longest->has_streams ||
      longest->config.stoc_len > kCycles) {
    return nullptr;
  }
  ScConfig config = longest->config;
  config.stoc_len = config.stoc_len > kCycles / 2 ? kCycles : kCycles / 2;
  ScOperatorPtr wide = MakeScOperator(config);
  if (!CanSwap(*wide) || wide->masks > kMasks) return nullptr;
  const bool nest = std::all_of(by_slot.begin(), by_slot.end(), [&](const ScOperatorPtr& one) {
    if (one == nullptr) return true;
    return one->config.stoc_len == kCycles ? one->config == wide->config : CanSwapWithin(*one, *wide);
  });
  return nest ? wide : nullptr;
}

AttentionLayers MakeAttentionLayers(const KvCacheSpec& spec, int num_heads) {
  AttentionLayers layers;
  const AttentionShape cache = ShapeOfCache(spec, num_heads);
  if (spec.mode == AttentionMode::kExact) {
    AttentionShape exact = cache;
    if (spec.smooths_qk) exact.lengths = AttentionLengths::kAny;
    return {{exact}, {0}};
  }
  const std::vector<Products> products = ProductsOf(spec);
  std::vector<const Products*> first;  // products of the first layer of every shape
  for (const Products& layer : products) {
    const auto found =
        std::find_if(first.begin(), first.end(), [&](const Products* other) { return AreAlike(layer, *other); });
    layers.of_layer.push_back(static_cast<size_t>(found - first.begin()));
    if (found != first.end()) continue;
    first.push_back(&layer);
    SetProducts(spec, layer, layers.shapes.emplace_back(cache));
  }
  return layers;
}

AttentionShape LongestShape(const AttentionShape& shape) {
  AttentionShape longest = shape;
  longest.swapped = true;
  longest.qk = shape.longest_qk;
  longest.av = shape.longest_av;
  return longest;
}

AttentionLimits MakeAttentionLimits(const KvCacheSpec& spec, const PassLimits& limits) {
  return {limits.max_rows, limits.max_sequences, limits.max_pages_per_sequence * spec.page_tokens};
}

}  // namespace stoch
