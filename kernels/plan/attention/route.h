// SPDX-License-Identifier: Apache-2.0
// Every way in which a GPU computes attention.
#pragma once

#include <cstdint>
#include <string_view>

namespace stoch {

// Kernels are in kernels/cuda/attention. Bits: all SC routes give equal bits, and so do all fp32 routes, so the choice
// is invisible; routes of the fp16 baseline promise no bits.
enum class AttentionRoute : uint8_t {
  // Single rows by SC.
  kScFreshRows,   // row.cu, which rotates, quantizes and appends the rows itself
  kScRows,        // row.cu: a cluster of blocks per row and head, count rows in shared memory
  kScWindowRows,  // row.cu over codes that window.cu makes of whole windows (per_row, per_head)
  kScLookup,      // split/resident_lookup.cu: resident blocks, q k by look-ups
  kScResident,    // split/resident.cu: resident blocks, binary tensor cores
  kScSplit,       // split/scores.cu, softmax.cu, values.cu: contexts cut over the GPU
  kMixedFresh,    // row.cu with a stream length for every (row, head), which appends the one row itself
  kMixedRows,     // row.cu with a stream length for every (row, head)
  kPlainRows,     // plain/attention.cu: kPerToken with any setting, also over a window of a ring
  kPlainWindow,   // plain/window.cu: per_row and per_head with any setting
  kDealtSplit,    // split/dealt.cu with products of scores.cu and values.cu: positions dealt over devices
  kDealtRows,     // split/dealt.cu with products of its own
  // Long sequences by SC: tiles of 64 rows.
  kScTiles,    // tile*.cu: binary tensor cores (mma.sync)
  kScWide,     // hopper/wide.cu: four tiles at a time by binary wgmma
  kMixedWide,  // hopper/wide.cu with a stream length for every (row, head)
  // fp32, and the fp16 baseline over a cache of halves.
  kExactRows,   // exact.cu: a block per row and head
  kExactSplit,  // split/exact.cu: contexts cut over the GPU
  kHalfTiles,   // ../baseline/attention.cu: fp16 alone, tiles of 64 rows
};

// The name of a route as `stoch inspect` shows it.
std::string_view AttentionRouteName(AttentionRoute route);

// Whether the kernel of the route rotates and appends the rows of the pass itself.
constexpr bool AppendsItself(AttentionRoute route) {
  using enum AttentionRoute;
  return route == kScFreshRows || route == kMixedFresh;
}
// Whether the kernel of the route is in row.cu.
constexpr bool IsScRowKernel(AttentionRoute route) {
  using enum AttentionRoute;
  return route == kScFreshRows || route == kScRows || route == kScWindowRows || route == kMixedFresh ||
         route == kMixedRows;
}
// Whether the route cuts the contexts of single rows over the GPU.
constexpr bool CutsContexts(AttentionRoute route) {
  using enum AttentionRoute;
  return route == kScLookup || route == kScResident || route == kScSplit || route == kExactSplit;
}

}  // namespace stoch
