// SPDX-License-Identifier: Apache-2.0
// The operands of attention on one GPU, as plans see them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/plan/sc_traits.h"

namespace stoch {

// Stream lengths of the products of a layer.
enum class AttentionLengths : uint8_t {
  kUniform,  // one length, that of the operator
  kByRow,    // a length for every (row, head), which depends on that row alone
  kByTile,   // as kByRow, and streams nest in those of longest_qk and longest_av, so wide tiles take them too
  // Any setting: lengths that depend on the whole call, integers, tables of multipliers or of exp, smoothing factors,
  // non-ideal hardware.
  kAny,
};

// The attention of one device's heads.
struct AttentionShape {
  AttentionMode mode = AttentionMode::kExact;
  Precision precision = Precision::kFp32;  // kFp16: the half baseline, with mode kExact
  int num_heads = 1;
  int num_kv_heads = 1;
  int head_dim = 0;
  int page_tokens = 64;
  ScTraits qk, av;         // valid if mode is not kExact
  bool swapped = false;    // HasSwappedStreams
  int64_t key_scales = 1;  // KvCacheSpec::key_scales
  int stripes = 1;         // devices that positions are dealt over (kernels/stripes.h)
  int64_t longest = 0;     // if positions are dealt: length of the longest sequence that scratch is planned for
  bool dilated = false;    // KvCacheSpec::dilated
  AttentionLengths lengths = AttentionLengths::kUniform;
  ScTraits longest_qk, longest_av;  // valid if lengths is kByTile

  // Query heads that read one KV head.
  int group() const { return num_heads / (num_kv_heads > 0 ? num_kv_heads : 1); }
};

// Whether a cache with this spec keeps the tables of SwapStreams, which wide tiles read: if the operators allow it and
// every layer has them.
bool HasSwappedStreams(const KvCacheSpec& spec);

// The products of every layer; a single element if all layers have the same. Requires: the mode is not kExact.
std::vector<KvCacheSpec::Products> ProductsOf(const KvCacheSpec& spec);
// Whether kernels for kUniform can run the products: one length, signs outside the table (kSignMagnitude), a gate with
// sources, ideal hardware.
bool AreUniform(const KvCacheSpec::Products& products);
// The kind of lengths of a layer's products in mode kPerToken. Takes milliseconds if that is kByTile.
AttentionLengths LengthsOf(const KvCacheSpec::Products& products);
// The operator whose streams the keys or values have if wide tiles take all lengths of a product: the longest operator
// of by_slot, its length rounded up to 64 or 128 cycles, so it may be the operator of no slot. Null if the streams of
// some length do not nest in its streams. Requires: by_slot has an operator that is not null.
ScOperatorPtr WideOperator(std::span<const ScOperatorPtr> by_slot);

// The different shapes that the layers of a cache have.
struct AttentionLayers {
  std::vector<AttentionShape> shapes;
  std::vector<size_t> of_layer;  // [num_layers] index in `shapes`; a single element if all layers are alike

  const AttentionShape& at(int layer) const {
    return shapes[of_layer[of_layer.size() > 1 ? static_cast<size_t>(layer) : 0]];
  }
};
// num_heads: query heads that read the cache. Requires: a spec that backends take.
AttentionLayers MakeAttentionLayers(const KvCacheSpec& spec, int num_heads);

// The shape of wide tiles whose rows have their own lengths: all streams are as long as the longest. Requires: lengths
// is kByTile.
AttentionShape LongestShape(const AttentionShape& shape);

// Upper bounds of the passes that scratch is planned for.
struct AttentionLimits {
  int64_t max_rows = 0;
  int64_t max_sequences = 0;
  int64_t max_context = 0;
};
AttentionLimits MakeAttentionLimits(const KvCacheSpec& spec, const PassLimits& limits);

}  // namespace stoch
