// SPDX-License-Identifier: Apache-2.0
// Arguments and sizes of the kernels of fixed.h. Private to this folder and hopper/.
#pragma once

#include <cstdint>

#include "kernels/cuda/base/site_reporter.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/weights/weights.h"

namespace stoch::cuda::fixed {

inline constexpr int kDigits = 3;  // bytes of an integer of x
inline constexpr int kStepCols = FixedWeightView::kStepCols;
inline constexpr int kBlockCols = FixedWeightView::kBlockCols;
inline constexpr int kBlockSteps = kBlockCols / kStepCols;  // steps of 32 columns whose weights are loaded at a time
// Bytes of the weights of a group of 16 rows in one step: 512 of rows 0..7, then 512 of rows 8..15. A lane loads 16
// bytes of each half.
inline constexpr int kWeightStepBytes = FixedWeightView::kGroupRows * kStepCols * 2;
// Most rows of x for FixedVectorKernel, which reads weights straight into mma.sync operands.
inline constexpr int kVectorRows = 8;
inline constexpr int kTileTokens = 64;  // rows of x of a tile
inline constexpr int kTileColumns = kDigits * kTileTokens;

// x as operand B of the products: digits of integers, `bytes` as [tile][step][half][column][16 bytes]. A column is one
// digit of one row of x; 8 columns of a half are one core matrix for wgmma and ldmatrix. In a column, bytes 4 t .. 4 t
// + 3 of half h are features 32 * step + 8 t + 4 h and the next three: both halves together hold the features of the
// eight weights of a row that thread t of a quad loads.
struct Operand {
  int8_t* bytes = nullptr;
  double* units = nullptr;  // [rows]: value of one unit of each row's integers (FixedUnit)
  int columns = 0;          // columns of a tile, padding included
  int tile_rows = 0;        // rows of x of a tile
  bool by_digit = false;    // digit d of row r is column d * tile_rows + r if true, else r * kDigits + d
  int64_t steps = 0;        // steps of 32 columns in w.padded_cols
  // Outputs for fixed_screen.h, null if not needed: the norm of row 0's integers, rounded up, and the word `best`,
  // which is zeroed.
  double* norm = nullptr;
  uint32_t* best = nullptr;
};

struct FixedArgs {
  Operand x;
  int64_t rows = 0;  // rows of x
  FixedWeightView w;
  LinearOutput out;
  SiteReporter reporter;
};

// Computes linears of many rows of x, in tiles of 128 weight rows x kTileTokens rows of x. Requires: args.x has whole
// tiles of kTileTokens rows, by_digit.
void LaunchFixedTiles(DeviceContext& ctx, const FixedArgs& args);
// LaunchFixedTiles by wgmma (hopper/). Requires: GpuTraits::has_wgmma.
void LaunchFixedWgmma(DeviceContext& ctx, const FixedArgs& args);

}  // namespace stoch::cuda::fixed
