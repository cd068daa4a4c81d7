// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/device/quantizer.cuh"
#include "kernels/cuda/plain/operands.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// The extremes of one scope (numbers that share a scale) as unsigned integers, so that atomicMax merges them in any
// order. All bytes 0: no number yet.
struct ScopeBits {
  // Float bits of the largest magnitude.
  uint32_t max_abs;
  uint32_t max;          // OrderedWord(largest number)
  uint32_t flipped_min;  // ~OrderedWord(smallest number)

  __device__ Extremes ToExtremes() const {
    Extremes e;
    e.max_abs_bits = max_abs;
    e.min = FromOrderedWord(~flipped_min);
    e.max = FromOrderedWord(max);
    return e;
  }
};

// One operand of a product: the floats, and where codes, scales and the like go.
struct OperandArgs {
  MatrixBatch x;
  int64_t group = 1;           // rows of one matrix that share a scale, at most x.rows
  bool spans_batches = false;  // per_tensor: one scope for all matrices
  int64_t chunk = 0;           // dimensions of a chunk (dimensions that share a scale within a row)
  int64_t chunks = 1;
  ScopeParams params;
  ScArith arith = ScArith::kSc;
  SiteReporter reporter;
  ScopeBits* extremes = nullptr;  // [scopes][chunks], zeroed by the caller
  // Results, matrix after matrix of the batch: each in the layout of a ScWeightView (is_weight) or a ScActivationView.
  bool is_weight = false;
  ScDims dims;
  int64_t padded_rows = 0;  // rows that a matrix takes in the results
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  float* zeros = nullptr;   // kAsymmetric: zero points [batch][padded_rows]
  int32_t* sums = nullptr;  // kAsymmetric: sums of the codes of each row [batch][padded_rows]

  int64_t batch_codes() const { return padded_rows * dims.padded; }
  int64_t batch_scales() const { return padded_rows * chunks; }
  // Where the code of dimension d of a row of matrix `batch` goes.
  __device__ uint8_t* CodeAt(int64_t batch, int64_t row, int64_t d) const {
    ScWeightView layout;
    layout.dims = dims;
    const int64_t at = dims.padded_index(d);
    return codes + batch * padded_rows * dims.padded +
           (is_weight ? layout.code_offset(row, at) : row * dims.padded + at);
  }
  // Index of the scope of a row; scopes are numbered over all matrices.
  __device__ int64_t Scope(int64_t batch_row) const {
    if (spans_batches) return 0;
    const int64_t per_batch = (x.rows + group - 1) / group;
    return batch_row / x.rows * per_batch + batch_row % x.rows / group;
  }
};

// Finds the extremes of all scopes, launched with one warp per (row, chunk).
__global__ void __launch_bounds__(kThreads) ExtremesKernel(const OperandArgs args) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + (threadIdx.x >> 5);
  if (index >= args.x.batch * args.x.rows * args.chunks) return;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int64_t row = index / args.chunks;
  const int64_t begin = index % args.chunks * args.chunk;
  const int64_t end = min(begin + args.chunk, args.x.cols);
  ScopeBits e{};
  for (int64_t d = begin + lane; d < end; d += 32) {
    const float x = args.x.data[args.x.Offset(row, d)];
    e.max_abs = max(e.max_abs, FloatToBits(x) & 0x7fffffffu);
    e.max = max(e.max, OrderedWord(x));
    e.flipped_min = max(e.flipped_min, ~OrderedWord(x));
  }
  e.max_abs = __reduce_max_sync(0xffffffffu, e.max_abs);
  e.max = __reduce_max_sync(0xffffffffu, e.max);
  e.flipped_min = __reduce_max_sync(0xffffffffu, e.flipped_min);
  if (lane != 0) return;
  ScopeBits* to = args.extremes + args.Scope(row) * args.chunks + index % args.chunks;
  atomicMax(&to->max_abs, e.max_abs);
  atomicMax(&to->max, e.max);
  atomicMax(&to->flipped_min, e.flipped_min);
}

// Quantizes by the extremes, launched with one warp per (row, chunk).
__global__ void __launch_bounds__(kThreads) QuantizeKernel(const OperandArgs args) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + (threadIdx.x >> 5);
  if (index >= args.x.batch * args.x.rows * args.chunks) return;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int64_t row = index / args.chunks;
  const int64_t begin = index % args.chunks * args.chunk;
  const int64_t end = min(begin + args.chunk, args.x.cols);
  const ScopeBits& of_scope = args.extremes[args.Scope(row) * args.chunks + index % args.chunks];
  const PlainScope scope(args.params, args.arith, of_scope.ToExtremes());
  const int64_t batch = row / args.x.rows;
  const int64_t own = row % args.x.rows;
  int32_t sum = 0;
  for (int64_t d = begin + lane; d < end; d += 32) {
    const uint8_t code = scope.Code(args.params, args.x.data[args.x.Offset(row, d)]);
    *args.CodeAt(batch, own, d) = code;
    sum += code;
  }
  sum = __reduce_add_sync(0xffffffffu, sum);
  if (lane != 0) return;
  if (!scope.finite) args.reporter.Report();
  args.scales[(batch * args.chunks + index % args.chunks) * args.padded_rows + own] = scope.scale;
  if (args.params.code == ScCode::kAsymmetric) {
    args.zeros[batch * args.padded_rows + own] = scope.zero;
    args.sums[batch * args.padded_rows + own] = sum;
  }
}

unsigned Blocks(int64_t items, int per_block) { return static_cast<unsigned>((items + per_block - 1) / per_block); }

}  // namespace

PlainOperand QuantizeOperand(DeviceContext& ctx, Scratch& scratch, const MatrixBatch& x, const ScOperator& op,
                             OperandSide side, const SiteReporter& reporter) {
  const bool is_weight = side == OperandSide::kB;
  const int64_t group_rows = is_weight ? op.config.group_b : op.config.group_a;
  const int64_t rows = x.batch * x.rows;
  OperandArgs args;
  args.x = x;
  args.spans_batches = op.config.granularity == ScGranularity::kPerTensor;
  args.group = op.config.granularity == ScGranularity::kPerRow ? std::min(group_rows, x.rows) : x.rows;
  args.is_weight = is_weight;
  args.dims = MakeScDims(x.cols, op.config.chunk_d);
  args.chunk = args.dims.chunk_d;
  args.chunks = args.dims.chunks;
  args.padded_rows = is_weight ? (x.rows + kRowPadding - 1) / kRowPadding * kRowPadding : x.rows;
  args.params = {op.code, op.q_max, op.scale_floor};
  args.arith = op.config.arith;
  args.reporter = reporter;
  const int64_t scopes = args.spans_batches ? 1 : x.batch * ((x.rows + args.group - 1) / args.group);
  args.extremes = scratch.Take<ScopeBits>(scopes * args.chunks);
  args.codes = scratch.Take<uint8_t>(x.batch * args.batch_codes());
  args.scales = scratch.Take<float>(x.batch * args.batch_scales());
  args.zeros = scratch.Take<float>(x.batch * args.padded_rows);
  args.sums = scratch.Take<int32_t>(x.batch * args.padded_rows);

  STOCH_CUDA(
      cudaMemsetAsync(args.extremes, 0, static_cast<size_t>(scopes * args.chunks) * sizeof(ScopeBits), ctx.stream));
  const unsigned blocks = Blocks(rows * args.chunks, kWarps);
  ExtremesKernel<<<blocks, kThreads, 0, ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("ExtremesKernel");
  QuantizeKernel<<<blocks, kThreads, 0, ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("QuantizeKernel");
  PlainOperand operand;
  operand.batch = x.batch;
  operand.rows = x.rows;
  operand.padded_rows = args.padded_rows;
  operand.dims = args.dims;
  operand.codes = args.codes;
  operand.scales = args.scales;
  operand.zeros = args.zeros;
  operand.sums = args.sums;
  return operand;
}

}  // namespace stoch::cuda
