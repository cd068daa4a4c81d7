// SPDX-License-Identifier: Apache-2.0
// One product for any setting: every code, length, table, register, adder and fault, on every GPU.
//
// The oracle on the GPU, and what research settings run until a faster kernel takes them. Neither wgmma nor binary mma.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/hardware.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/lengths.h"

namespace stoch::cuda {

struct PlainOutput {
  float* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 1;
  bool add = false;
};

// out[n][m] = or += (sum over the chunks of row n of a times row m of w) (+ addend[n][m]).
// With experts, output row n is slot n: row n / row_slots of a times the matrix chosen[n] of `experts`, views in device
// memory of one shape, and the unit of its site is the expert.
// Bits: docs/sc_arithmetic.md#5-back-to-real-numbers, docs/research.md#mixed-lengths, docs/hardware.md, as on the CPU.
struct PlainProduct {
  LengthView lengths;
  LengthTable one;  // where lengths.tables is null
  ScActivationView a;
  ScWeightView w;
  RowSlots slots;                 // of rows of a
  PlainOutput out;                // a.tokens * row_slots rows
  const float* addend = nullptr;  // [rows of out][rows of w]
  const ScWeightView* experts = nullptr;
  const int32_t* chosen = nullptr;
  int64_t row_slots = 1;
  HardwareView hardware;
  HardwareSite site;
};
void LaunchPlainProduct(DeviceContext& ctx, const PlainProduct& product);

// A product whose rows all run at one operator; operands and output are still to be set.
PlainProduct MakePlainProduct(DeviceContext& ctx, const ScOperator& op);

// Codes of quantized rows, which faults change as they are read.
struct StoredCodes {
  uint8_t* codes = nullptr;
  ScDims dims;
  int64_t rows = 0;
  bool is_weight = false;             // lie as of a ScWeightView, else as of a ScActivationView
  int32_t* sums = nullptr;            // kAsymmetric: of the codes of rows, which change too
  const int32_t* channels = nullptr;  // that dimensions are drawn by; null: in order
};
// Where faults of codes are drawn. Of activations of experts that are a slot's own, row r has the unit chosen[r].
struct CodeFaults {
  ScWordFaultView words;
  uint64_t seed = 0;
  FaultKind kind = FaultKind::kWeight;
  HardwareSite site;
  const int32_t* chosen = nullptr;
};
// Rows of a LinearCall in scratch; null where there are none. Requires eager calls (DeviceContext::RequireEager).
const uint64_t* UploadFaultRows(DeviceContext& ctx, Scratch& scratch, std::span<const uint64_t> fault_rows);
// Nothing where no word flips.
void LaunchReadCodes(DeviceContext& ctx, const StoredCodes& stored, const CodeFaults& faults);

}  // namespace stoch::cuda
