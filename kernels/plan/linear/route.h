// SPDX-License-Identifier: Apache-2.0
// Every way in which a GPU computes linears and linears of experts.
#pragma once

#include <cstdint>
#include <string_view>

namespace stoch {

// Kernels are in kernels/cuda. Bits: all SC routes give equal bits, and so do all fp32 routes, so the choice is
// invisible; routes of the fp16 baseline promise no bits.
enum class LinearRoute : uint8_t {
  // SC of one stream length.
  kScDecode,  // sc/decode/decode.cu: count rows in shared memory, 1 to 8 tokens at a time
  kScFew,    // sc/table/few.cu: 2 to 4 tokens, counts of all tokens in one look-up; up to 16 tokens in several launches
  kScTable,  // sc/table/table.cu, int8_table.cu: 5 to 16 tokens, one look-up of residuals; 128 in several launches
  kScBatch,  // sc/hopper/batch_wgmma.cu: up to 256 tokens on binary wgmma, split-K over blocks
  kScPrompt,      // sc/hopper/prefill_wgmma.cu: any number of tokens in tiles of 192
  kScTiles,       // sc/tiles/tiles.cu: any number of tokens in tiles of 64, on binary mma.sync
  kScTilesSplit,  // sc/tiles/tiles.cu: up to 256 tokens, split-K over blocks
  kScGeneric,     // plain/product.cu: any operator
  // SC with a stream length for every row or (row, chunk), protected channels, integers or multiplier tables.
  kMixedDecode,   // sc/decode/decode.cu, 1 to 8 rows at a time
  kMixedFew,      // sc/table/few.cu
  kMixedTable,    // sc/table/table.cu, 5 to 16 rows at a time
  kMixedBatch,    // sc/hopper/batch_wgmma.cu, 17 to 32 rows at a time
  kMixedPrompt,   // sc/hopper/row_groups.cu: all rows as one group of the longest streams
  kMixedGroups,   // sc/hopper/row_groups.cu: one product for each group of lengths
  kMixedSorted,   // mixed/linear.cc: rows sorted by length on the host, each length by its SC route
  kMixedGeneric,  // plain/product.cu: any setting
  // SC of experts.
  kExpertLookup,   // sc/experts/lookup.cu: every slot on its own, count rows in shared memory
  kExpertGroups,   // sc/hopper/grouped.cu: slots of an expert together, in tiles of 192, on binary wgmma
  kExpertGeneric,  // plain/product.cu: any operator, every slot on its own
  kExpertSorted,   // mixed/experts.cc: slots sorted by expert on the host, then plain/product.cu for each expert
  // fp32.
  kExactVector,  // linear/exact.cu: 1 to 4 rows at a time, x in shared memory
  kExactBatch,   // linear/exact_batch.cu: up to 64 rows
  kExactTiles,   // linear/exact.cu: tiles of 128 by 128
  kExactExpert,  // families/experts.cu
  // fp32 as products of integers (kernels/math/fixed_point.h).
  kFixedScreen,  // linear/fixed_screen.cu: one row, of whose outputs only the largest are wanted
  kFixedVector,  // linear/fixed.cu: up to 8 rows
  kFixedTiles,   // linear/fixed_tile.cu: tiles of 64 rows, on mma.sync
  kFixedWgmma,   // linear/hopper/fixed_wgmma.cu: the same tiles on wgmma
  // The fp16 baseline.
  kHalfGemm,    // cuBLAS
  kHalfExpert,  // baseline/experts.cu
};

// The name of a route as `stoch inspect` shows it.
std::string_view LinearRouteName(LinearRoute route);

// Whether the route is one of decode steps with mixed lengths: a launch takes some rows of a call, and the host never
// waits.
constexpr bool IsMixedStep(LinearRoute route) {
  using enum LinearRoute;
  return route == kMixedDecode || route == kMixedFew || route == kMixedTable || route == kMixedBatch;
}
// Whether the route is one of prompts with mixed lengths, whose streams nest in the longest.
constexpr bool IsMixedPrompt(LinearRoute route) {
  using enum LinearRoute;
  return route == kMixedPrompt || route == kMixedGroups;
}

}  // namespace stoch
