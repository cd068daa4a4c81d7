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
  kUniform,  // those of the operators
  kByRow,    // a length for every (row, head), which depends on that row alone
  kByTile,   // the same, with streams that nest in those of longest_qk and longest_av: tiles take them too
  kAny,  // lengths that depend on the whole call, integers, tables (of exp too), factors, hardware that is not ideal
};

// The attention of one device's heads.
struct AttentionShape {
  AttentionMode mode = AttentionMode::kExact;
  Precision precision = Precision::kFp32;  // kFp16: the half baseline, with mode kExact
  int num_heads = 1;
  int num_kv_heads = 1;
  int head_dim = 0;
  int page_tokens = 64;
  ScTraits qk, av;         // read where mode is not kExact
  bool swapped = false;    // HasSwappedStreams
  int64_t key_scales = 1;  // KvCacheSpec::key_scales
  int stripes = 1;         // devices that positions are dealt over (kernels/stripes.h)
  int64_t longest = 0;     // positions of the longest sequence that scratch is planned for, where they are dealt
  AttentionLengths lengths = AttentionLengths::kUniform;
  ScTraits longest_qk, longest_av;  // read where lengths is kByTile

  // Query heads that read one KV head.
  int group() const { return num_heads / (num_kv_heads > 0 ? num_kv_heads : 1); }
};

// Whether a cache of this kind keeps the tables of SwapStreams, which wide tiles read: where the operators allow it and
// are those of every layer.
bool HasSwappedStreams(const KvCacheSpec& spec);

// The products of every layer; one where all layers are alike. Requires: a mode that is not kExact.
std::vector<KvCacheSpec::Products> ProductsOf(const KvCacheSpec& spec);
// Whether kernels of uniform lengths run them: one length, signs outside of the table, ideal hardware.
bool AreUniform(const KvCacheSpec::Products& products);
// Lengths of kPerToken: which kernels take them. Takes milliseconds for those of kByTile.
AttentionLengths LengthsOf(const KvCacheSpec::Products& products);
// The operator whose streams keys or values have where wide tiles take every length of a product, of 64 or 128 cycles and
// maybe of no slot: the longest, or the next of 64 or 128. Null where streams of some length do not nest in its streams.
// Requires: an operator that is not null.
ScOperatorPtr WideOperator(std::span<const ScOperatorPtr> by_slot);

// The shapes that layers of a cache have, each once.
struct AttentionLayers {
  std::vector<AttentionShape> shapes;
  std::vector<size_t> of_layer;  // [num_layers], an index of shapes; of one element where all layers are alike

  const AttentionShape& at(int layer) const {
    return shapes[of_layer[of_layer.size() > 1 ? static_cast<size_t>(layer) : 0]];
  }
};
// Requires: a cache that backends take. num_heads: of the query heads that read it.
AttentionLayers MakeAttentionLayers(const KvCacheSpec& spec, int num_heads);

// The shape that wide tiles of rows with lengths of their own have: streams of the longest. Requires: lengths kByTile.
AttentionShape LongestShape(const AttentionShape& shape);

// Upper bounds of the passes that scratch is planned for.
struct AttentionLimits {
  int64_t max_rows = 0;
  int64_t max_sequences = 0;
  int64_t max_context = 0;
};
AttentionLimits MakeAttentionLimits(const KvCacheSpec& spec, const PassLimits& limits);

}  // namespace stoch
