// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>

#include "kernels/base/matrix_batch.h"
#include "kernels/call_check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/sc/matmul.h"
#include "kernels/math/elementary.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
// Count rows in shared memory at once: 32 KB of 256 levels.
template <typename Count>
constexpr int kStageDims = 128 / static_cast<int>(sizeof(Count));
constexpr unsigned kMaxGridYZ = 65535;

// The extremes of one scope, in a form that integer atomics take; max and min do not depend on order.
struct Extremes {
  uint32_t max_abs_bits;
  int32_t min;  // Ordered()
  int32_t max;
};

// Floats as integers of the same order.
__device__ int32_t Ordered(float x) {
  const auto bits = static_cast<int32_t>(FloatToBits(x));
  return bits >= 0 ? bits : bits ^ 0x7fffffff;
}
__device__ float FromOrdered(int32_t bits) {
  return BitsToFloat(static_cast<uint32_t>(bits >= 0 ? bits : bits ^ 0x7fffffff));
}

// One operand and where its quantized form goes.
struct OperandArgs {
  MatrixBatch x;
  int64_t group = 1;           // rows of one batch that share a scale, at most x.rows
  bool spans_batches = false;  // per_tensor: one scope for everything
  int64_t chunk = 0;           // dimensions of a chunk
  int64_t chunks = 1;
  ScCode code = ScCode::kSignMagnitude;
  int q_max = 127;
  float scale_floor = kScaleFloor;
  SiteReporter reporter;
  Extremes* extremes = nullptr;  // [scopes][chunks]
  // Code of (batch * rows + row, d) is at codes[(batch_row / rows) * code_batch + row * code_row + d * code_dim].
  uint8_t* codes = nullptr;
  int64_t code_batch = 0, code_row = 0, code_dim = 0;
  float* scales = nullptr;  // [batch * rows][chunks]
  float* zeros = nullptr;   // [batch * rows], kAsymmetric
  int32_t* sums = nullptr;  // [batch * rows], kAsymmetric

  __device__ int64_t Scope(int64_t batch_row) const {
    if (spans_batches) return 0;
    const int64_t per_batch = (x.rows + group - 1) / group;
    return batch_row / x.rows * per_batch + batch_row % x.rows / group;
  }
};

__global__ void __launch_bounds__(kThreads) InitExtremesKernel(Extremes* extremes, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) extremes[i] = {0, 0x7fffffff, static_cast<int32_t>(0x80000000)};
}

// One warp per row and chunk.
__global__ void __launch_bounds__(kThreads) ExtremesKernel(const OperandArgs args) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + (threadIdx.x >> 5);
  if (index >= args.x.batch * args.x.rows * args.chunks) return;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int64_t row = index / args.chunks;
  const int64_t begin = index % args.chunks * args.chunk;
  const int64_t end = min(begin + args.chunk, args.x.cols);
  Extremes e{0, 0x7fffffff, static_cast<int32_t>(0x80000000)};
  for (int64_t d = begin + lane; d < end; d += 32) {
    const float x = args.x.data[args.x.Offset(row, d)];
    e.max_abs_bits = max(e.max_abs_bits, FloatToBits(x) & 0x7fffffffu);
    e.min = min(e.min, Ordered(x));
    e.max = max(e.max, Ordered(x));
  }
  e.max_abs_bits = __reduce_max_sync(0xffffffffu, e.max_abs_bits);
  e.min = __reduce_min_sync(0xffffffffu, e.min);
  e.max = __reduce_max_sync(0xffffffffu, e.max);
  if (lane != 0) return;
  Extremes* to = args.extremes + args.Scope(row) * args.chunks + index % args.chunks;
  atomicMax(&to->max_abs_bits, e.max_abs_bits);
  atomicMin(&to->min, e.min);
  atomicMax(&to->max, e.max);
}

// One warp per row and chunk.
__global__ void __launch_bounds__(kThreads) QuantizeKernel(const OperandArgs args) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + (threadIdx.x >> 5);
  if (index >= args.x.batch * args.x.rows * args.chunks) return;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int64_t row = index / args.chunks;
  const int64_t begin = index % args.chunks * args.chunk;
  const int64_t end = min(begin + args.chunk, args.x.cols);
  const Extremes e = args.extremes[args.Scope(row) * args.chunks + index % args.chunks];
  const bool finite = IsFinite(BitsToFloat(e.max_abs_bits));
  uint8_t* codes = args.codes + row / args.x.rows * args.code_batch + row % args.x.rows * args.code_row;

  const bool asymmetric = args.code == ScCode::kAsymmetric;
  float scale = 0.0f;
  float zero = 0.0f;
  if (finite) {
    scale = asymmetric ? UnipolarScale(FromOrdered(e.min), FromOrdered(e.max), args.q_max)
                       : BipolarScale(BitsToFloat(e.max_abs_bits), args.q_max, args.scale_floor);
    if (asymmetric) zero = UnipolarZero(FromOrdered(e.min), scale, args.q_max);
  }
  int32_t sum = 0;
  for (int64_t d = begin + lane; d < end; d += 32) {
    uint8_t code = 0;
    if (finite) {
      const float x = args.x.data[args.x.Offset(row, d)];
      switch (args.code) {
        case ScCode::kSignMagnitude: code = SignMagnitude(BipolarLevel(x, scale, args.q_max)); break;
        case ScCode::kOffset: code = static_cast<uint8_t>(BipolarLevel(x, scale, args.q_max) + args.q_max); break;
        case ScCode::kAsymmetric: code = UnipolarCode(x, scale, zero, args.q_max); break;
      }
    }
    codes[d * args.code_dim] = code;
    sum += code;
  }
  sum = __reduce_add_sync(0xffffffffu, sum);
  if (lane != 0) return;
  if (!finite) args.reporter.Report();
  args.scales[index] = scale;
  if (asymmetric) {
    args.zeros[row] = zero;
    args.sums[row] = sum;
  }
}

struct ProductArgs {
  ScTables tables;
  const void* counts = nullptr;  // of tables, in 16 bits, or in 32 where they need more
  MatrixBatch out;
  int64_t batch = 1, rows_a = 0, rows_b = 0, rows_b_padded = 0, dims = 0, chunk = 0, chunks = 1;
  int64_t first_row = 0;             // of the rows of a that this launch takes
  const uint8_t* codes_a = nullptr;  // [batch][rows_a][dims]
  const uint8_t* codes_b = nullptr;  // [batch][dims][rows_b_padded]
  const float* scales_a = nullptr;
  const float* scales_b = nullptr;
  const float* zeros_a = nullptr;
  const float* zeros_b = nullptr;
  const int32_t* sums_a = nullptr;
  const int32_t* sums_b = nullptr;
};

// A block takes one row of a and 256 rows of b, a thread each; the count rows of a's codes pass through shared memory.
template <typename Count>
__global__ void __launch_bounds__(kThreads) ProductKernel(const ProductArgs args) {
  extern __shared__ __align__(16) uint8_t stage_memory[];
  auto* const stage = reinterpret_cast<Count*>(stage_memory);  // [kStageDims][levels]
  __shared__ uint8_t stage_signs[kStageDims<Count>];
  const auto* const counts = static_cast<const Count*>(args.counts);
  const ScTables& tables = args.tables;
  const int64_t batch = blockIdx.z;
  const int64_t n = args.first_row + blockIdx.y;
  const int64_t m = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool sign_magnitude = tables.code == ScCode::kSignMagnitude;
  const int level_mask = sign_magnitude ? 0x7f : 0xff;
  const int sign_mask = sign_magnitude ? 0x80 : 0;
  const uint8_t* a = args.codes_a + (batch * args.rows_a + n) * args.dims;
  const uint8_t* b = args.codes_b + batch * args.dims * args.rows_b_padded + m;  // padded: every thread may read
  const int64_t row_a = batch * args.rows_a + n;
  const int64_t row_b = batch * args.rows_b + m;

  float y = 0.0f;
  for (int64_t c = 0; c < args.chunks; ++c) {
    const int64_t begin = c * args.chunk;
    const int64_t end = min(begin + args.chunk, args.dims);
    int32_t acc = 0;
    for (int64_t first = begin; first < end; first += kStageDims<Count>) {
      const int count = static_cast<int>(min(static_cast<int64_t>(kStageDims<Count>), end - first));
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < count * tables.levels; i += kThreads) {
        const int j = i / tables.levels;
        const int mask = static_cast<int>((first - begin + j) & (tables.masks - 1));
        const int level = a[first + j] & level_mask;
        stage[i] = counts[(mask * tables.levels + level) * tables.levels + i % tables.levels];
      }
      if (threadIdx.x < count) stage_signs[threadIdx.x] = static_cast<uint8_t>(a[first + threadIdx.x] & sign_mask);
      __syncthreads();
      if (m < args.rows_b) {
#pragma unroll 8
        for (int j = 0; j < count; ++j) {
          const int code = b[(first + j) * args.rows_b_padded];
          const auto entry = static_cast<int>(stage[j * tables.levels + (code & level_mask)]);
          acc += ((code & sign_mask) ^ stage_signs[j]) != 0 ? -entry : entry;
        }
      }
    }
    if (m >= args.rows_b) continue;
    const float scale_a = args.scales_a[row_a * args.chunks + c];
    const float scale_b = args.scales_b[row_b * args.chunks + c];
    if (tables.code == ScCode::kAsymmetric) {
      const UnipolarRow left{scale_a, args.zeros_a[row_a], args.sums_a[row_a]};
      const UnipolarRow right{scale_b, args.zeros_b[row_b], args.sums_b[row_b]};
      y = UnipolarProduct(acc, tables.gain, static_cast<int>(args.dims), left, right);
    } else {
      y = y + BipolarProduct(acc, tables.gain, scale_a, scale_b);
    }
  }
  if (m < args.rows_b) args.out.data[batch * args.out.batch_step + n * args.out.row_step + m * args.out.col_step] = y;
}

__global__ void __launch_bounds__(kThreads) ZeroKernel(const MatrixBatch out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < out.batch * out.rows * out.cols) out.data[out.Offset(i / out.cols, i % out.cols)] = 0.0f;
}

void CheckGpuLimits(const TensorView& a) {
  if (a.rank == 3 && a.dim(0) > kMaxGridYZ) {
    Reject({-1, "sc_matmul"}, "batch " + std::to_string(a.dim(0)) + ", at most 65535 on a GPU");
  }
}

unsigned Blocks(int64_t items, int per_block) { return static_cast<unsigned>((items + per_block - 1) / per_block); }

OperandArgs Quantize(DeviceContext& ctx, Scratch& scratch, const MatrixBatch& x, const ScOperator& op,
                     int64_t group_rows, const ProductArgs& product, bool by_dim) {
  const int64_t rows = x.batch * x.rows;
  OperandArgs args;
  args.x = x;
  args.spans_batches = op.config.granularity == ScGranularity::kPerTensor;
  args.group = op.config.granularity == ScGranularity::kPerRow ? std::min(group_rows, x.rows) : x.rows;
  args.chunk = product.chunk;
  args.chunks = product.chunks;
  args.code = op.code;
  args.q_max = op.q_max;
  args.scale_floor = op.scale_floor;
  args.reporter = ctx.Reporter({-1, "sc_matmul"});
  const int64_t scopes = args.spans_batches ? 1 : x.batch * ((x.rows + args.group - 1) / args.group);
  args.extremes = scratch.Take<Extremes>(scopes * args.chunks);
  const int64_t padded = by_dim ? product.rows_b_padded : x.rows;
  args.codes = scratch.Take<uint8_t>(x.batch * padded * x.cols);
  args.code_batch = padded * x.cols;
  args.code_row = by_dim ? 1 : x.cols;
  args.code_dim = by_dim ? padded : 1;
  args.scales = scratch.Take<float>(rows * args.chunks);
  args.zeros = scratch.Take<float>(rows);
  args.sums = scratch.Take<int32_t>(rows);

  InitExtremesKernel<<<Blocks(scopes * args.chunks, kThreads), kThreads, 0, ctx.stream>>>(args.extremes,
                                                                                          scopes * args.chunks);
  STOCH_CUDA_LAUNCH("InitExtremesKernel");
  const unsigned blocks = Blocks(rows * args.chunks, kWarps);
  ExtremesKernel<<<blocks, kThreads, 0, ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("ExtremesKernel");
  QuantizeKernel<<<blocks, kThreads, 0, ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("QuantizeKernel");
  return args;
}

template <typename Count>
void LaunchProduct(DeviceContext& ctx, ProductArgs product) {
  const size_t shared =
      static_cast<size_t>(kStageDims<Count>) * static_cast<size_t>(product.tables.levels) * sizeof(Count);
  for (int64_t first = 0; first < product.rows_a; first += kMaxGridYZ) {
    product.first_row = first;
    const dim3 grid(Blocks(product.rows_b, kThreads),
                    static_cast<unsigned>(std::min<int64_t>(product.rows_a - first, kMaxGridYZ)),
                    static_cast<unsigned>(product.batch));
    ProductKernel<Count><<<grid, kThreads, shared, ctx.stream>>>(product);
    STOCH_CUDA_LAUNCH("ProductKernel");
  }
}

}  // namespace

void LaunchScMatmul(DeviceContext& ctx, const TensorView& a, const TensorView& b, const ScOperator& op,
                    const TensorView& out) {
  CheckScMatmul(a, b, op, out);
  CheckGpuLimits(a);
  const MatrixBatch left(a);
  const MatrixBatch right(b);
  const MatrixBatch result(out);
  if (out.numel() == 0) return;
  if (left.cols == 0) {
    ZeroKernel<<<Blocks(out.numel(), kThreads), kThreads, 0, ctx.stream>>>(result);
    STOCH_CUDA_LAUNCH("ZeroKernel");
    return;
  }
  Scratch scratch(ctx.workspace);
  ProductArgs product;
  product.out = result;
  const bool wide = !op.wide_counts.empty();
  if (wide) {
    product.tables.code = op.code;
    product.tables.levels = op.levels;
    product.tables.masks = op.masks;
    product.tables.gain = op.gain;
    product.counts = ctx.tables.Wide(op);
  } else {
    product.tables = ctx.tables.Get(op);
    product.counts = product.tables.counts16;
  }
  product.batch = left.batch;
  product.rows_a = left.rows;
  product.rows_b = right.rows;
  product.rows_b_padded = (right.rows + kThreads - 1) / kThreads * kThreads;
  product.dims = left.cols;
  product.chunk = op.config.chunk_d > 0 ? std::min(op.config.chunk_d, left.cols) : left.cols;
  product.chunks = (left.cols + product.chunk - 1) / product.chunk;
  const OperandArgs qa = Quantize(ctx, scratch, left, op, op.config.group_a, product, false);
  const OperandArgs qb = Quantize(ctx, scratch, right, op, op.config.group_b, product, true);
  product.codes_a = qa.codes;
  product.codes_b = qb.codes;
  product.scales_a = qa.scales;
  product.scales_b = qb.scales;
  product.zeros_a = qa.zeros;
  product.zeros_b = qb.zeros;
  product.sums_a = qa.sums;
  product.sums_b = qb.sums;

  if (wide) return LaunchProduct<int32_t>(ctx, product);
  LaunchProduct<int16_t>(ctx, product);
}

}  // namespace stoch::cuda
