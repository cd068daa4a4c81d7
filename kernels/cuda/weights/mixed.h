// SPDX-License-Identifier: Apache-2.0
// Weights of products with mixed stream lengths, protected channels, smoothing, integers or multiplier tables.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/hardware.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/lengths.h"

namespace stoch::cuda {

class Uploader;

// Some input channels of a weight as a product of their own.
struct MixedPart {
  ScWeightView view;                     // over the part's channels; rows = 0: there is no such part
  Buffer memory;                         // what the view points to
  Buffer channel_list;                   // I32 [channels], empty where they are all channels in order
  std::vector<ScOperatorPtr> operators;  // by slot; null: length 0
  std::shared_ptr<const LengthTables> lengths;
  HardwareTablesPtr hardware;  // null: ideal
  int64_t first_chunk = 0;     // what its chunk 0 counts as where faults are drawn,
  int64_t first_output = 0;    // and its row 0

  bool empty() const { return view.rows == 0; }
  const int32_t* channels() const { return static_cast<const int32_t*>(channel_list.data()); }
  // The longest: all have its codes and scales.
  const ScOperator& op() const;
};

struct MixedWeight {
  int64_t cols = 0;  // of the input
  MixedPart rest;    // the channels that rows are dispatched by
  MixedPart own;     // protected
  Buffer smooth;     // F32 [cols], or empty

  int64_t rows() const { return rest.empty() ? own.view.rows : rest.view.rows; }
  int64_t bytes() const;
  const float* factors() const { return static_cast<const float*>(smooth.data()); }
};

// Shapes:   parts are stacked by rows, as MakeLinear's.
// Errors:   InvalidInput for extras that do not fit the channels, sums that overflow, NaN or infinity.
std::unique_ptr<MixedWeight> MakeMixedWeight(DeviceContext& ctx, Uploader& uploader,
                                             std::span<const WeightSource> parts, const LinearSpec& spec);
// A weight from F32 [rows, cols] in device memory, rows `stride` apart. NaN and infinity are left to `reporter`.
std::unique_ptr<MixedWeight> MakeMixedMatrix(DeviceContext& ctx, const float* data, int64_t stride, int64_t rows,
                                             int64_t cols, const LinearSpec& spec, const SiteReporter& reporter);
// Rows [first, first + count), with the scales that they have in the whole.
std::unique_ptr<MixedWeight> SliceMixed(DeviceContext& ctx, const MixedWeight& whole, const LinearSpec& spec,
                                        int64_t first, int64_t count);

}  // namespace stoch::cuda
