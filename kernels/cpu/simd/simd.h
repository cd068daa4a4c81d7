// SPDX-License-Identifier: Apache-2.0
// The inner loops that exist once per instruction set, behind one table of functions.
//
// Bits: every variant of a function gives the bits of the scalar one, which is the definition (scalar.cc).
//       Everything outside this table is compiled once, for the baseline instruction set.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/cpu/simd/sc_table.h"
#include "kernels/math/divergence.h"
#include "kernels/sc/hardware/gate_steps.h"

namespace stoch::cpu {

// A weight is stored in blocks of this many output rows: one vector register of codes per dimension.
inline constexpr int kBlockRows = 64;

// Exchanges the bytes +1 and -1 by xor.
inline constexpr uint8_t kFlip = 0xfe;

// One row of the left operand over the dimensions of one ScBlock call.
struct ScLeft {
  const uint8_t* codes = nullptr;     // [dims]
  const uint32_t* offsets = nullptr;  // [dims]: byte offset of the table row of (mask, code) in ScTable::bytes
  const uint8_t* flips = nullptr;     // [dims]: kFlip where the code is negative, else 0
  const uint32_t* wide = nullptr;     // [num_wide]: dimensions whose table row holds a count of 256
  int64_t num_wide = 0;
  const int32_t* positions = nullptr;  // [dims]: what masks go by, as offsets do; null: first_dim + i
};

// One row of a panel. Rows need not share a table, only its levels.
struct ScPanelLeft {
  const uint8_t* bytes = nullptr;     // rows of 128 as ScTable::bytes; null: all counts are 0
  const uint32_t* offsets = nullptr;  // [dims], as ScLeft
  const uint8_t* flips = nullptr;     // [dims], as ScLeft
};

struct ExactRows {  // rows of a matrix of numbers, as stored
  const void* data = nullptr;
  int64_t stride = 0;  // elements
  DType dtype = DType::kF32;
};

// SC products of many left rows at once.
struct PanelLoops {
  static constexpr int64_t kRows = 64;             // left rows of a call, at most
  static constexpr int64_t kDims = 128;            // dimensions of a call, at most: sums have 16 bits
  static constexpr int64_t kTableBytes = 1 << 18;  // scratch of `add`

  // Leaves the sums of signed counts of num_left <= kRows left rows and of num_blocks blocks of 64 right rows, whose codes
  // blocks[i] has as [dims][64], over dims <= kDims dimensions in `sums`, uint16_t [num_blocks * 64][kRows] in an order of
  // its own.
  // Requires: every row's table has `levels` levels, and counts of at most 127, but 128 at the largest; `table`, kTableBytes of scratch, and `sums` aligned to 64 bytes.
  void (*add)(const ScPanelLeft* left, int64_t num_left, int64_t dims, int levels, const uint8_t* const* blocks,
              int64_t num_blocks, uint8_t* table, uint16_t* sums);
  // acc[t * 64 + r] of one block from what `add` left, set or added to.
  void (*sums)(const uint16_t* sums, int64_t block, int64_t num_left, int64_t dims, bool add, int32_t* acc);
  int64_t min_rows;  // left rows from which on this takes less time than Simd::sc_block
  int max_parts;     // so often, where counts are cut into addends
};

// Rows of x as integers (math/fixed_point.h) in two digits, high * FixedLoops::kDigit + low.
struct FixedRows {
  const int16_t* low = nullptr;   // [rows][stride], |low| <= kDigit / 2
  const int16_t* high = nullptr;  // [rows][stride], |high| <= 2^kFixedInputBits / kDigit
  int64_t stride = 0;             // elements
};

// Products of rows of x with rows of 16-bit floats as integers (math/fixed_point.h): sums that have no order.
struct FixedLoops {
  static constexpr int32_t kDigit = 4096;
  static constexpr int64_t kPad = 64;  // rows of integers end with zeros up to a multiple of this

  // q[i] = FixedInteger(row[i], scale) for i < n, then zeros up to a multiple of kPad.
  // Requires: dtype is kF16 or kBF16 and the row finite; here and in `stored`, rows may be unaligned.
  void (*convert)(const void* row, DType dtype, int64_t n, float scale, int16_t* q);
  // sums[t * sums_stride + r] = sum over i < cols of x row t and q row r.
  // `next`: null, or num_w rows of `cols` numbers of 16 bits that the caller reads next, which it brings into L2.
  // Requires: cols is a multiple of kPad, and kMaxFixedColumns at most.
  void (*dots)(const FixedRows& x, int64_t num_x, const int16_t* q, int64_t q_stride, int64_t num_w, int64_t cols,
               const void* next, int64_t* sums, int64_t sums_stride);
  // As above, of rows as they are stored, converted by the scale of each, which are read once if they come from memory.
  // Requires: x ends with zeros up to a multiple of kPad. Rows of kI8 are integers already; they have a multiple of kPad
  // columns and meet one row of x.
  void (*stored)(const FixedRows& x, int64_t num_x, const ExactRows& w, const float* scales, int64_t num_w,
                 int64_t cols, int64_t* sums, int64_t sums_stride);
  int64_t max_stored;  // rows of x up to which `stored` takes less time than `convert` and `dots`
};

// Sums by an adder of gates: acc[(t * num_blocks + b) * 64 + r] of the codes left[t] and the right codes
// blocks[b * block_stride + i * 64 + r] over i < dims. Groups begin at the first of these dimensions, masks go by
// first_dim + i.
struct GateCall {
  static constexpr int kMostCycles = 256;
  static constexpr int kMostWords = 8;       // words of a variant's planes
  static constexpr int kCounterPlanes = 32;  // bits of a count
  static constexpr int64_t kMostLeft = 64;

  // Dimensions that are prepared at a time: whole groups.
  static constexpr int64_t Slice(int group) { return group >= 32 ? group : 32 / group * group; }
  static constexpr int64_t ScratchBytes(int levels, int group) {
    return 8 * kMostWords * (2 * kMostCycles + kMostLeft * kCounterPlanes + Slice(group) * (levels + 1));
  }

  const ScGateTables* tables = nullptr;
  const uint8_t* const* left = nullptr;
  int64_t num_left = 0;  // up to kMostLeft
  int64_t first_dim = 0;
  int64_t dims = 0;
  const uint8_t* blocks = nullptr;
  int64_t block_stride = 0;
  int64_t num_blocks = 0;
  int32_t* acc = nullptr;
  uint64_t* scratch = nullptr;  // ScratchBytes, aligned to 64
};

struct Simd {
  std::string_view name;

  // acc[(t * num_blocks + b) * 64 + r] = sum over i < dims of the signed count of mask (first_dim + i) or positions[i], left code
  // left[t].codes[i] and right code blocks[b * block_stride + i * 64 + r].
  void (*sc_block)(const ScTable& table, const ScLeft* left, int64_t num_left, int64_t first_dim, int64_t dims,
                   const uint8_t* blocks, int64_t block_stride, int64_t num_blocks, int32_t* acc);
  void (*gate_sums)(const GateCall& call);
  // y[r] = y[r] + (float(acc[r]) * gain) * (scale_a * scale_b[r]) for 64 rows.
  void (*sc_dequantize)(const int32_t* acc, float gain, float scale_a, const float* scale_b, float* y);

  // The bits of the largest |x|; above 0x7f7fffff exactly if an x is NaN or infinite.
  uint32_t (*max_abs_bits)(const float* x, int64_t n);
  // codes[i] = SignMagnitude(BipolarLevel(x[i], scale, q_max)). Requires: x finite.
  void (*quantize)(const float* x, int64_t n, float scale, int q_max, uint8_t* codes);

  // out[t * out_stride + r] = (add ? out + : ) dot(x row t, w row r), kDotLanes order.
  void (*dot_rows)(const float* x, int64_t x_stride, int64_t num_x, const ExactRows& w, int64_t num_w, int64_t cols,
                   float* out, int64_t out_stride, bool add);
  // out[d] = sum over t < n of p[t] * v[t][d], kDotLanes order over t, for d < dims.
  void (*weighted_sum)(const float* p, int64_t n, const float* const* v, int64_t dims, float* out);

  // The sum of squares, kRowLanes order.
  float (*sum_squares)(const float* x, int64_t n);
  // e[i] = Exp(x[i] - shift) (e may be x, or null), and their sum in kRowLanes order.
  float (*exp_sum)(const float* x, int64_t n, float shift, float* e);
  // The sum of DivergenceTerm(base_of.LogProb(base[i]), of.LogProb(x[i])), in double, kRowLanes order.
  double (*divergence)(const float* base, const LogSum& base_of, const float* x, const LogSum& of, int64_t n);
  // out[i] = Silu(x[i]) * x2[i].
  void (*silu_mul)(const float* x, const float* x2, int64_t n, float* out);

  // N elements of a stored row, possibly unaligned, as float.
  void (*load)(const void* source, DType dtype, int64_t n, float* out);
  // out[i] = RandomWeight(seed, stream, first + i, stddev).
  void (*random)(uint64_t seed, uint64_t stream, uint64_t first, int64_t n, float stddev, float* out);

  const FixedLoops* fixed = nullptr;  // never null
  const PanelLoops* panel = nullptr;  // null where the instruction set has none
};

const Simd& ScalarSimd();
const Simd& Avx2Simd();
const Simd& Avx512BwSimd();
const Simd& Avx512VbmiSimd();
const Simd& NeonSimd();

// The variant of that name; "" is the fastest this machine runs.
// Errors: InvalidInput for an unknown name (listing the known) or one this machine cannot run.
const Simd& SelectSimd(std::string_view name);

// The variants this machine can run, scalar first.
std::vector<std::string_view> SupportedSimd();

}  // namespace stoch::cpu
