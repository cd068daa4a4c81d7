// SPDX-License-Identifier: Apache-2.0
// Weights of products with extras: mixed stream lengths, protected channels, smoothing, integer arithmetic, multiplier
// tables.
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

// A subset of a weight's input channels, quantized and multiplied as a product of its own.
struct MixedPart {
  ScWeightView view;    // codes and scales of the part's channels; rows is 0 if the part does not exist
  Buffer memory;        // the device memory that `view` points into
  Buffer channel_list;  // I32 [channels], the part's channels, ascending; empty if it has all channels
  std::vector<ScOperatorPtr> operators;  // [slots], by index of a stream length; null: length 0, which adds nothing
  // Device tables of `operators`, and the rule that picks a slot for each row.
  std::shared_ptr<const LengthTables> lengths;
  HardwareTablesPtr hardware;  // models of non-ideal hardware; null: ideal
  int64_t first_chunk = 0;     // number of the part's chunk 0 when faults are drawn
  int64_t first_output = 0;    // number of the part's row 0 when faults are drawn

  bool empty() const { return view.rows == 0; }
  const int32_t* channels() const { return static_cast<const int32_t*>(channel_list.data()); }
  // The operator of the first slot that has one. All operators of a part share its codes and scales.
  const ScOperator& op() const;
};

// A weight as up to two parts, whose products are added.
struct MixedWeight {
  int64_t cols = 0;  // input channels of the whole weight
  MixedPart rest;    // channels that are not protected; a length rule picks their slots
  MixedPart own;     // protected channels
  Buffer smooth;     // smoothing factors, F32 [cols]; empty: none

  int64_t rows() const { return rest.empty() ? own.view.rows : rest.view.rows; }
  int64_t bytes() const;
  const float* factors() const { return static_cast<const float*>(smooth.data()); }
};

// Quantizes a weight from its sources. Shapes: the parts are stacked by rows, as in MakeLinear.
// Errors: InvalidInput if the extras do not fit the channels, sums would overflow, or an element is NaN or infinite.
std::unique_ptr<MixedWeight> MakeMixedWeight(DeviceContext& ctx, Uploader& uploader,
                                             std::span<const WeightSource> parts, const LinearSpec& spec);
// Quantizes a weight from F32 [rows, cols] in device memory. stride: floats from one row to the next. A NaN or an
// infinity is reported to `reporter`, not thrown.
std::unique_ptr<MixedWeight> MakeMixedMatrix(DeviceContext& ctx, const float* data, int64_t stride, int64_t rows,
                                             int64_t cols, const LinearSpec& spec, const SiteReporter& reporter);
// A copy of rows [first, first + count) of a weight, with the scales that these rows have in the whole.
std::unique_ptr<MixedWeight> SliceMixed(DeviceContext& ctx, const MixedWeight& whole, const LinearSpec& spec,
                                        int64_t first, int64_t count);

}  // namespace stoch::cuda
