// SPDX-License-Identifier: Apache-2.0
// Kernels that turn slabs of plain numbers into weight layouts.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/weights/uploader.h"
#include "kernels/cuda/weights/weights.h"

namespace stoch::cuda {

// first_bad: device int64, lowered (atomicMin) to the first row of the stack that holds NaN or infinity.

// Channels of a slab whose rows are `stride` elements apart (0: its columns): `channels` (null: all in order), each times its entry of
// `smooth` (null: 1).
struct PackedChannels {
  int64_t stride = 0;
  const int32_t* channels = nullptr;
  const float* smooth = nullptr;
};

// Quantizes channels of the rows of a slab as side b of `op` into `to`, whose pointers are written through.
// Requires: `to` holds zeros; scopes of several rows (group > 1) lie within the slab.
void LaunchPackSc(DeviceContext& ctx, const WeightSlab& slab, const ScOperator& op, int64_t group,
                  const ScWeightView& to, int64_t* first_bad, const PackedChannels& of = {});

// Stores the rows of a slab in ExactWeightView order (to.dtype is the slab's type or F32).
void LaunchPackExact(DeviceContext& ctx, const WeightSlab& slab, const ExactWeightView& to, int64_t* first_bad);

// Stores the rows of a slab, and their scales, in FixedWeightView order. Requires: to.dtype is the slab's.
void LaunchPackFixed(DeviceContext& ctx, const WeightSlab& slab, const FixedWeightView& to, int64_t* first_bad);

// Fills the bytes and rests of to.screen from the numbers and scales of all rows. Requires: to.screen has its places.
void LaunchPackScreen(DeviceContext& ctx, const FixedWeightView& to);

// Rounds the rows of a slab to halves. Infinity after rounding counts as bad.
void LaunchPackHalf(DeviceContext& ctx, const WeightSlab& slab, const HalfWeightView& to, int64_t* first_bad);

// The rows of a slab in `dtype` (its own or F32), row-major with `cols` columns, from row slab.first_row of `to`
// on.
void LaunchPackPlain(DeviceContext& ctx, const WeightSlab& slab, DType dtype, void* to, int64_t* first_bad);

// Elements [first, first + count) of a random or constant source in source.type().
void LaunchGenerate(DeviceContext& ctx, const WeightSource& source, int64_t first, int64_t count, void* to);

// Rows [first, first + to.rows) of `from`, scales included. Requires: the same dims.
void LaunchCopyScRows(DeviceContext& ctx, const ScWeightView& from, int64_t first, const ScWeightView& to);

// The inverse: codes [rows, cols] and scales [rows, chunks], or values F32 [rows, cols].
void LaunchUnpackSc(DeviceContext& ctx, const ScWeightView& from, uint8_t* codes, float* scales);
void LaunchUnpackExact(DeviceContext& ctx, const ExactWeightView& from, float* values);
void LaunchUnpackFixed(DeviceContext& ctx, const FixedWeightView& from, float* values);
void LaunchUnpackHalf(DeviceContext& ctx, const HalfWeightView& from, float* values);

}  // namespace stoch::cuda
