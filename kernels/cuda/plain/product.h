// SPDX-License-Identifier: Apache-2.0
// One product kernel for any setting: every code, stream length, table, register, adder and fault, on every GPU.
//
// It is the oracle on the GPU, and runs research settings until a faster kernel takes them. Uses neither wgmma nor
// binary mma.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/hardware.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/lengths.h"

namespace stoch::cuda {

// Where outputs go: element (n, m) at order[n] * row_stride + m * col_stride is set, or with `add` increased.
struct PlainOutput {
  float* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 1;
  bool add = false;
  const int32_t* order = nullptr;  // [rows of out], in device memory; null: 0, 1, ...
};

// Products of one shape that a launch computes together: their matrices follow each other in memory.
struct PlainBatch {
  int64_t count = 1;               // at most 65535
  int64_t a_rows = 0, w_rows = 0;  // rows from one matrix to the next, padding included
  int64_t out_step = 0;            // floats of the output from one product to the next
};

// out[n][m] (+)= the sum over the chunks of row n of a times row m of w, plus addend[n][m] if there is one.
// With experts, output row n is slot n: row n / row_slots of a times the matrix chosen[n] of `experts`, and faults are
// drawn by the expert as the unit of the site.
// Bits: docs/sc_arithmetic.md#5-back-to-real-numbers, docs/research.md#mixed-lengths, docs/hardware.md, as on the CPU.
struct PlainProduct {
  // Code form, levels and, with mixed stream lengths, the count table of every length.
  LengthView lengths;
  LengthTable one;  // the count table of all rows; used if lengths.tables is null
  ScActivationView a;
  ScWeightView w;
  // Index of the stream length of each row of a, or of each (row, chunk).
  RowSlots slots;
  PlainOutput out;                // a.tokens * row_slots rows of w.rows outputs
  PlainBatch batch;               // a, w and out are those of the first product; faults number rows through all
  const float* addend = nullptr;  // [rows of out][w.rows]; null: none
  // Matrices of the experts, all of the shape of w, in device memory; null: w is the only matrix.
  const ScWeightView* experts = nullptr;
  // Expert of each slot [rows of out].
  const int32_t* chosen = nullptr;
  // Number of slots (chosen experts) per row of a.
  int64_t row_slots = 1;
  // Adder, register and faults of the product, and where in a model the product is, which faults are drawn by.
  HardwareView hardware;
  HardwareSite site;
};
void LaunchPlainProduct(DeviceContext& ctx, const PlainProduct& product);

// A product at one stream length, with the tables of `op`; the caller sets operands and output.
PlainProduct MakePlainProduct(DeviceContext& ctx, const ScOperator& op);

// Codes of quantized rows in device memory, for LaunchReadCodes to apply faults to.
struct StoredCodes {
  uint8_t* codes = nullptr;
  ScDims dims;
  int64_t rows = 0;
  // Layout of the codes: of a ScWeightView if true, else of a ScActivationView.
  bool is_weight = false;
  int32_t* sums = nullptr;            // kAsymmetric: sums of the codes of each row [rows], updated; null: none
  const int32_t* channels = nullptr;  // [dims] numbers that faults of each dimension are drawn by; null: 0, 1, ...
};
// Rate and place of the faults of stored codes.
struct CodeFaults {
  ScWordFaultView words;
  uint64_t seed = 0;
  FaultKind kind = FaultKind::kWeight;
  HardwareSite site;
  // Experts of rows that are activations of one slot each [rows]: faults of row r are drawn by the unit chosen[r].
  // Null: no experts.
  const int32_t* chosen = nullptr;
};
// Copies the fault rows of a LinearCall (the numbers that faults of its rows are drawn by) to scratch; null if the call
// has none. Calls DeviceContext::RequireEager if it has any.
const uint64_t* UploadFaultRows(DeviceContext& ctx, Scratch& scratch, std::span<const uint64_t> fault_rows);
// Applies the faults to the codes, in place, and updates stored.sums. Launches nothing if no bit ever flips.
void LaunchReadCodes(DeviceContext& ctx, const StoredCodes& stored, const CodeFaults& faults);

}  // namespace stoch::cuda
