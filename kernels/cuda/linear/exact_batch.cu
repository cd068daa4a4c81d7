// SPDX-License-Identifier: Apache-2.0
// Exact linears of a batch of tokens. A half warp computes four weight rows for all tokens of a tile, each thread one
// lane of the dot products (kernels/math/reduce.h): a weight goes from memory to a register once and is multiplied with
// every token. Tokens are staged in shared memory, transposed, so that one 16-byte load brings four of them. With 32
// tokens per tile the kernel is bound by fused multiply-adds, with 8 by the bytes of the weights.
#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/dispatch.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/linear/exact_batch.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/host_device.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowsAtOnce = 4;  // weight rows of a half warp
constexpr int kBlockRows = kThreads / kDotLanes * kRowsAtOnce;
constexpr int kStages = kExactBatchStages;

// Floats from one dimension to the next in shared memory; a dimension holds the values of all kTokens tokens. The
// padding of four floats avoids bank conflicts when eight lanes read 16 bytes each.
template <int kTokens>
constexpr int kPitch = kTokens + kExactBatchPadding;

struct BatchArgs {
  const float* tokens = nullptr;  // x as [token tile][padded_cols][kPitch], written by InterleaveKernel
  ExactWeightView w;
  LinearOutput out;
  int64_t rows = 0;  // number of tokens
  SiteReporter reporter;
};

// Writes x [rows][x_stride] as out [token tile][padded_cols][kPitch], with zeros for tokens beyond `rows`. One block
// per 64 columns (blockIdx.x) of a token tile (blockIdx.y).
template <int kTokens>
__global__ void __launch_bounds__(kThreads)
    InterleaveKernel(const float* x, int64_t x_stride, int64_t rows, int64_t cols, float* out) {
  constexpr int kDims = 64;
  __shared__ float tile[kTokens][kDims + 1];
  const int64_t first_dim = int64_t{blockIdx.x} * kDims;
  const int64_t first_row = int64_t{blockIdx.y} * kTokens;
  StartNext();
  WaitForPrevious();
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * kDims; i += kThreads) {
    const int64_t row = first_row + i / kDims;
    const int64_t dim = first_dim + i % kDims;
    tile[i / kDims][i % kDims] = row < rows && dim < cols ? x[row * x_stride + dim] : 0.0f;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * kDims; i += kThreads) {
    const int64_t dim = first_dim + i / kTokens;
    if (dim < cols) out[(blockIdx.y * cols + dim) * kPitch<kTokens> + i % kTokens] = tile[i % kTokens][i / kTokens];
  }
}

// Multiplies one element of each of the four weight rows with the same element of every token. tokens: [kTokens],
// shared memory.
template <int kTokens>
__device__ __forceinline__ void MultiplyStep(const float* tokens, const float (&weights)[kRowsAtOnce],
                                             float (&acc)[kTokens * kRowsAtOnce]) {
#pragma unroll
  for (int n = 0; n < kTokens; n += 4) {
    const float4 x = *reinterpret_cast<const float4*>(tokens + n);
    const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        float& a = acc[(n + j) * kRowsAtOnce + r];
        a = Fma(values[j], weights[r], a);
      }
    }
  }
}

// Folds kCount sums over groups of 2 * kStep lanes by halves, as reduce.h does, and scatters the totals: called with
// kStep = kDotLanes / 2, lane l ends with totals n * l .. n * l + n - 1 in the first n = kCount / kDotLanes elements of
// acc. Lanes of an upper half add the two operands in the other order, which gives equal bits.
template <int kCount, int kStep, int kSize>
__device__ __forceinline__ void FoldShared(float (&acc)[kSize], int lane) {
  const bool upper = (lane & kStep) != 0;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float sent = upper ? acc[i] : acc[i + kCount / 2];
    const float kept = upper ? acc[i + kCount / 2] : acc[i];
    acc[i] = kept + __shfl_xor_sync(0xffffffffu, sent, kStep);
  }
  if constexpr (kStep > 1) FoldShared<kCount / 2, kStep / 2>(acc, lane);
}

// y = x @ w^T. blockIdx.x: kBlockRows weight rows, blockIdx.y: tile of kTokens tokens. Shared memory is a ring of
// kStages stages of kPieceDims dimensions.
template <typename T, int kTokens>
__global__ void __launch_bounds__(kThreads, kTokens > 16 ? 1 : 2) ExactBatchKernel(const BatchArgs args) {
  constexpr int kVector = 16 / sizeof(T);
  constexpr int kPieceDims = kDotLanes * kVector;  // columns that kDotLanes lanes cover with one 16-byte load each
  constexpr int kPieceFloats = kPieceDims * kPitch<kTokens>;
  constexpr int kSums = kTokens * kRowsAtOnce;
  extern __shared__ __align__(16) float shared[];  // ring of tokens [kStages][kPieceDims][kPitch]
  const int lane = static_cast<int>(threadIdx.x) % kDotLanes;
  const int64_t first = int64_t{blockIdx.x} * kBlockRows + static_cast<int>(threadIdx.x) / kDotLanes * kRowsAtOnce;
  const int pieces = static_cast<int>(args.w.padded_cols / kPieceDims);
  const T* weights[kRowsAtOnce];
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    weights[r] =
        static_cast<const T*>(args.w.data) + min(first + r, args.w.rows - 1) * args.w.padded_cols + lane * kVector;
  }
  const auto load = [&](int piece, uint4(&to)[kRowsAtOnce]) {
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      if (piece < pieces) to[r] = LoadStreaming(weights[r] + int64_t{piece} * kPieceDims);
    }
  };
  const float* tokens = args.tokens + int64_t{blockIdx.y} * args.w.padded_cols * kPitch<kTokens>;
  const auto copy = [&](int piece) {
    if (piece < pieces) {
      const float* from = tokens + int64_t{piece} * kPieceFloats;
      float* to = shared + piece % kStages * kPieceFloats;
      for (int i = static_cast<int>(threadIdx.x) * 4; i < kPieceFloats; i += kThreads * 4)
        CopyAsync16(SharedAddress(to + i), from + i);
    }
    CommitCopies();
  };
  // With few tokens the products of a piece take little time, so weights of two pieces are kept in flight.
  constexpr int kAhead = kTokens > 8 ? 1 : 2;
  uint4 ring[kAhead + 1][kRowsAtOnce];
#pragma unroll
  // Weights do not depend on earlier kernels, so they load before WaitForPrevious.
  for (int p = 0; p < kAhead; ++p) load(p, ring[p]);
  StartNext();
  WaitForPrevious();
  args.reporter.Begin();
#pragma unroll
  for (int p = 0; p < kStages - 1; ++p) copy(p);
  float acc[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) acc[i] = 0.0f;
#pragma unroll 1
  for (int piece = 0; piece < pieces; ++piece) {
    WaitForCopies<kStages - 2>();
    __syncthreads();
    copy(piece + kStages - 1);
    load(piece + kAhead, ring[kAhead]);
    float expanded[kRowsAtOnce][kVector];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) Expand(ring[0][r], expanded[r], T());
    const float* from = shared + piece % kStages * kPieceFloats + lane * kPitch<kTokens>;
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      float step[kRowsAtOnce];
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) step[r] = expanded[r][v];
      MultiplyStep<kTokens>(from + v * kDotLanes * kPitch<kTokens>, step, acc);
    }
#pragma unroll
    for (int p = 0; p < kAhead; ++p) {
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) ring[p][r] = ring[p + 1][r];
    }
  }
  FoldShared<kSums, kDotLanes / 2>(acc, lane);
  constexpr int kMine = kSums / kDotLanes;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int index = lane * kMine + i;
    const int64_t token = int64_t{blockIdx.y} * kTokens + index / kRowsAtOnce;
    const int64_t row = first + index % kRowsAtOnce;
    if (token >= args.rows || row >= args.w.rows) continue;
    float* to = args.out.data + token * args.out.stride + row;
    const float dot = PlusZero(acc[i]);
    const float y = args.out.add ? *to + dot : dot;
    if (!IsFinite(y)) args.reporter.Report();
    *to = y;
  }
}

template <typename T, int kTokens>
void Launch(DeviceContext& ctx, const LinearPlan& plan, const float* x, int64_t x_stride, BatchArgs args) {
  constexpr int kDims = 64;
  constexpr size_t kShared = sizeof(float) * kStages * kDotLanes * (16 / sizeof(T)) * kPitch<kTokens>;
  STOCH_CHECK(plan.tile_tokens == kTokens && plan.shared_bytes == static_cast<int64_t>(kShared));
  const int64_t cols = args.w.padded_cols;
  const auto tiles = static_cast<unsigned>((args.rows + kTokens - 1) / kTokens);
  Scratch scratch(ctx.workspace);
  float* tokens = scratch.Take<float>(tiles * cols * kPitch<kTokens>);
  args.tokens = tokens;
  LaunchOverlapped(ctx, InterleaveKernel<kTokens>, dim3(static_cast<unsigned>((cols + kDims - 1) / kDims), tiles),
                   dim3(kThreads), 0, x, x_stride, args.rows, cols, tokens);
  const auto kernel = ExactBatchKernel<T, kTokens>;
  AllowShared(ctx, kernel, kShared);
  LaunchOverlapped(ctx, kernel, dim3(static_cast<unsigned>((args.w.rows + kBlockRows - 1) / kBlockRows), tiles),
                   dim3(kThreads), kShared, args);
}

}  // namespace

void LaunchExactBatch(DeviceContext& ctx, const LinearPlan& plan, const float* x, int64_t x_stride, int64_t rows,
                      const ExactWeightView& w, const LinearOutput& out, const SiteReporter& reporter) {
  STOCH_CHECK(rows >= 1 && rows <= kMaxExactBatchRows);
  BatchArgs args;
  args.w = w;
  args.out = out;
  args.rows = rows;
  args.reporter = reporter;
  DispatchFloat(w.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (plan.tile_tokens == 8) return Launch<T, 8>(ctx, plan, x, x_stride, args);
    if (plan.tile_tokens == 16) return Launch<T, 16>(ctx, plan, x, x_stride, args);
    Launch<T, 32>(ctx, plan, x, x_stride, args);
  });
}

}  // namespace stoch::cuda
