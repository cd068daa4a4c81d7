// SPDX-License-Identifier: Apache-2.0
// What a kernel of fixed.h gets. Private to this folder.
#pragma once

#include <cstdint>

#include "kernels/cuda/base/site_reporter.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/weights/weights.h"

namespace stoch::cuda::fixed {

inline constexpr int kDigits = 3;  // bytes of a number of x
inline constexpr int kStepCols = FixedWeightView::kStepCols;
inline constexpr int kBlockCols = FixedWeightView::kBlockCols;
inline constexpr int kBlockSteps = kBlockCols / kStepCols;  // that weights are loaded for at a time
// Loads of weights in a step of a group of 16 rows: two halves of 16 bytes a lane.
inline constexpr int kWeightStepBytes = FixedWeightView::kGroupRows * kStepCols * 2;
inline constexpr int kVectorRows = 8;   // rows of x of the kernel that reads weights straight into products
inline constexpr int kTileTokens = 64;  // rows of x of a tile
inline constexpr int kTileColumns = kDigits * kTileTokens;

// x as operand B: [tile][step][half][column][16 bytes], so that 8 columns of a half are one core matrix of wgmma and of
// ldmatrix. A column is one digit of one row of x. A step's half h has bytes 4 t .. 4 t + 3 of columns 8 t + 4 h on of x,
// for thread t of a quad: the eight numbers that it loads of a row of weights.
struct Operand {
  int8_t* bytes = nullptr;
  double* units = nullptr;  // [rows]: FixedUnit of each
  int columns = 0;          // of a tile
  int tile_rows = 0;        // rows of x of a tile
  bool by_digit = false;    // column digit * tile_rows + row, else row * kDigits + digit
  int64_t steps = 0;        // along a weight's padded columns
  // Bounds of a row that finds its largest output (fixed_screen.h), written: the norm of its integers, rounded up, and 0.
  double* norm = nullptr;
  uint32_t* best = nullptr;
};

struct FixedArgs {
  Operand x;
  int64_t rows = 0;  // of x
  FixedWeightView w;
  LinearOutput out;
  SiteReporter reporter;
};

// Tiles of 128 weight rows x kTileTokens rows of x. Requires: x in whole tiles of kTileTokens, by_digit.
void LaunchFixedTiles(DeviceContext& ctx, const FixedArgs& args);

}  // namespace stoch::cuda::fixed
