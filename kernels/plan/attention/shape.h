// SPDX-License-Identifier: Apache-2.0
// The operands of attention on one GPU, as plans see them.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/plan/sc_traits.h"

namespace stoch {

// Stream lengths of the products of a layer.
enum class AttentionLengths : uint8_t {
  kUniform,  // those of the operators
  kByRow,    // a length for every (row, head), which depends on that row alone
  kByTile,   // the same, with streams that nest in those of longest_qk and longest_av: tiles take them too
  kAny,      // lengths that depend on the whole call, integers, multiplier tables
};

// The attention of one device's heads.
struct AttentionShape {
  AttentionMode mode = AttentionMode::kExact;
  Precision precision = Precision::kFp32;  // kFp16: the half baseline, with mode kExact
  int num_heads = 1;
  int num_kv_heads = 1;
  int head_dim = 0;
  int page_tokens = 64;
  ScTraits qk, av;       // read where mode is not kExact
  bool swapped = false;  // HasSwappedStreams
  int stripes = 1;       // devices that positions are dealt over (kernels/stripes.h)
  int64_t longest = 0;   // positions of the longest sequence that scratch is planned for, where they are dealt
  AttentionLengths lengths = AttentionLengths::kUniform;
  ScTraits longest_qk, longest_av;  // read where lengths is kByTile

  // Query heads that read one KV head.
  int group() const { return num_heads / (num_kv_heads > 0 ? num_kv_heads : 1); }
};

// Whether a cache of this kind keeps the tables of SwapStreams, which wide tiles read: where the operators allow it and
// are those of every layer.
bool HasSwappedStreams(const KvCacheSpec& spec);
// The shape of a cache and the query heads that read it, with uniform lengths.
AttentionShape MakeAttentionShape(const KvCacheSpec& spec, int num_heads);
// The shape that wide tiles of rows with lengths of their own have: streams of the longest. Requires: lengths kByTile.
AttentionShape LongestShape(const AttentionShape& shape);

// Upper bounds of the passes that scratch is planned for.
struct AttentionLimits {
  int64_t max_rows = 0;
  int64_t max_sequences = 0;
  int64_t max_context = 0;
};

}  // namespace stoch
