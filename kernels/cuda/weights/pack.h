// SPDX-License-Identifier: Apache-2.0
// Launchers of kernels that convert slabs of plain numbers to the layouts of weights.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/weights/uploader.h"
#include "kernels/cuda/weights/weights.h"

namespace stoch::cuda {

// In all functions first_bad is an int64 in device memory, which the kernels lower (atomicMin) to the number, in the
// whole weight, of the first row with a NaN or an infinity.

// Which columns of a slab are packed, and with which factors.
struct PackedChannels {
  // Elements from one row of the slab to the next; 0: slab.cols.
  int64_t stride = 0;
  // Columns to pack, ascending; null: all.
  const int32_t* channels = nullptr;
  // [slab columns], the factor of each column; null: 1.
  const float* smooth = nullptr;
};

// Quantizes columns of the rows of a slab as side b of `op`. Writes codes and scales to the memory that `to` points to.
// group: rows that share a scale.
// Requires: that memory is zeroed; rows that share a scale are in one slab.
void LaunchPackSc(DeviceContext& ctx, const WeightSlab& slab, const ScOperator& op, int64_t group,
                  const ScWeightView& to, int64_t* first_bad, const PackedChannels& of = {});

// Stores the rows of a slab in ExactWeightView order. to.dtype is the slab's type or F32.
void LaunchPackExact(DeviceContext& ctx, const WeightSlab& slab, const ExactWeightView& to, int64_t* first_bad);

// Stores the rows of a slab in FixedWeightView order, and the scale of each row. Requires: to.dtype is the slab's type.
void LaunchPackFixed(DeviceContext& ctx, const WeightSlab& slab, const FixedWeightView& to, int64_t* first_bad);

// Fills to.screen, the data for bounds of outputs, from the weights and scales of all rows: the high byte of each
// integer, and for each row an upper bound of the norm of what is left of its integers without their high bytes
// (`rests`). Requires: to.screen.bytes and to.screen.rests are set.
void LaunchPackScreen(DeviceContext& ctx, const FixedWeightView& to);

// Rounds the rows of a slab to halves. An infinity that results from rounding also counts as bad.
void LaunchPackHalf(DeviceContext& ctx, const WeightSlab& slab, const HalfWeightView& to, int64_t* first_bad);

// Stores the rows of a slab row-major in `dtype` (the slab's type or F32), [rows][slab.cols], beginning at row
// slab.first_row of `to`.
void LaunchPackPlain(DeviceContext& ctx, const WeightSlab& slab, DType dtype, void* to, int64_t* first_bad);

// Writes elements [first, first + count) of a random or constant source, in source.type().
void LaunchGenerate(DeviceContext& ctx, const WeightSource& source, int64_t first, int64_t count, void* to);

// Copies rows [first, first + to.rows) of `from` to `to`, with their scales. Requires: equal dims.
void LaunchCopyScRows(DeviceContext& ctx, const ScWeightView& from, int64_t first, const ScWeightView& to);

// Convert weights back to plain arrays in device memory: codes [rows, cols] and scales [rows, chunks], or values F32
// [rows, cols].
void LaunchUnpackSc(DeviceContext& ctx, const ScWeightView& from, uint8_t* codes, float* scales);
void LaunchUnpackExact(DeviceContext& ctx, const ExactWeightView& from, float* values);
void LaunchUnpackFixed(DeviceContext& ctx, const FixedWeightView& from, float* values);
void LaunchUnpackHalf(DeviceContext& ctx, const HalfWeightView& from, float* values);

}  // namespace stoch::cuda
