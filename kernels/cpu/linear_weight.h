// SPDX-License-Identifier: Apache-2.0
// A matrix prepared for multiplication on the CPU: SC blocks, or exact rows left where they are.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/fixed_product.h"
#include "kernels/cpu/float_screen.h"
#include "kernels/cpu/mixed_linear.h"

namespace stoch::cpu {

class CpuLinear final : public LinearWeight {
 public:
  // Rows of one part of an exact weight. Mapped memory is used in place, and decoded in every visit where it holds
  // another form: that is faster than reading the numbers. Random ones are stored as F16, which holds them exactly.
  struct ExactPart {
    ExactRows rows;
    WeightSource decoded;  // where its decoder is set, instead of rows.data
    int64_t num_rows = 0;
    const float* scales = nullptr;  // [num_rows] of CpuLinear::scales, where the weight multiplies as integers
    FixedScreen screen;             // empty but of a weight of one part that multiplies as integers
    FloatScreen float_screen;       // empty but of an LM head of one part that does not
    Array<uint16_t> halves;
    Array<float> floats;

    // Row `row` [cols] as floats: in `scratch`.
    const float* Row(const Simd& simd, int64_t cols, int64_t row, float* scratch) const;
  };

  CpuLinear(Device device, LinearSpec spec, int64_t rows, int64_t cols)
      : device_(device), spec_(std::move(spec)), rows_(rows), cols_(cols) {}

  Device device() const override { return device_; }
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  const LinearSpec& spec() const override { return spec_; }
  int64_t bytes() const override;
  int64_t stream_bytes() const override;

  // kSc
  ScLookupPtr lookup;
  ScBlocks blocks;    // without extras
  MixedWeight mixed;  // with them
  // kFp32
  std::vector<ExactPart> parts;
  // [rows] FixedScale of every row where IsFixedPoint (math/fixed_point.h). Not in bytes(): the plan of memory asks
  // what the numbers take (Backend::ExactBytes), next to which 4 bytes a row are nothing.
  Array<float> scales;

 private:
  Device device_;
  LinearSpec spec_;
  int64_t rows_;
  int64_t cols_;
};

// Quantizes and packs, or checks and maps, on every thread of the pool.
// Errors: InvalidInput for NaN or infinity naming tensor and place, cols * max count >= 2^31, parts that do not stack,
//         a precision or granularity the CPU does not take.
std::unique_ptr<CpuLinear> MakeCpuLinear(Context& context, Device device, std::span<const WeightSource> parts,
                                         const LinearSpec& spec);

// Rows of one source with the scales of the whole (Backend::MakeLinearRows).
std::unique_ptr<CpuLinear> MakeCpuLinearRows(Context& context, Device device, const WeightSource& source,
                                             const LinearSpec& spec, int64_t first, int64_t count);

Backend::PlainLinear UnpackCpuLinear(Context& context, const CpuLinear& weight);

// InvalidInput naming tensor and place if a row of the stacked parts holds NaN or infinity.
// Where `scales` is given, leaves FixedScale of every row there, but of rows of random numbers, which it does not make.
void CheckFiniteWeights(Context& context, std::span<const WeightSource> parts, float* scales = nullptr);

}  // namespace stoch::cpu
