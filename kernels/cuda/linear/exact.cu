// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/dispatch.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/linear/exact.h"
#include "kernels/cuda/linear/exact_batch.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/host_device.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {
namespace {

// ---- ExactVectorKernel: up to kMaxExactVectorRows rows of x ----

constexpr int kVectorThreads = 256;
static_assert(kMaxExactVectorRows == 4);  // LaunchVector has a case for each number of rows, 1 to 4
// Weight rows that a half warp multiplies at once, so that more loads are in flight and each x read from shared memory
// is used for several rows.
constexpr int kRowsAtOnce = 2;
constexpr int kWeightRowsOfBlock = kVectorThreads / kDotLanes * kRowsAtOnce;

// y = x @ w^T for kRows rows of x. A block has kWeightRowsOfBlock weight rows; a half warp computes kRowsAtOnce of
// them, each thread one lane of the dot products (kernels/math/reduce.h). x is staged in shared memory in the order of
// the weight's columns.
template <typename T, int kRows>
__global__ void __launch_bounds__(kVectorThreads)
    ExactVectorKernel(const float* x, int64_t x_stride, ExactWeightView w, LinearOutput out, SiteReporter reporter) {
  constexpr int kVector = 16 / sizeof(T);
  constexpr int kBlockCols = kDotLanes * kVector;  // columns that kDotLanes lanes cover with one 16-byte load each
  constexpr int kAhead = 4;                        // loads that a thread keeps in flight for each weight row
  // Staged x: [kRows][padded_cols], columns in the order [block of columns][lane][vector].
  extern __shared__ __align__(16) float xs[];
  const int cols = static_cast<int>(w.padded_cols);
  const int lane = static_cast<int>(threadIdx.x) % kDotLanes;
  const int half_warp = static_cast<int>(threadIdx.x) / kDotLanes;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kWeightRowsOfBlock + half_warp * kRowsAtOnce;
  const int blocks = cols / kBlockCols;
  const T* rows[kRowsAtOnce];
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    rows[r] = static_cast<const T*>(w.data) + min(first + r, w.rows - 1) * w.padded_cols + lane * kVector;
  }
  uint4 bits[kAhead][kRowsAtOnce];
  const auto load = [&](int b0) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        if (b0 + k < blocks) bits[k][r] = LoadStreaming(rows[r] + static_cast<int64_t>(b0 + k) * kBlockCols);
      }
    }
  };
  load(0);  // weights do not depend on earlier kernels, so they load before WaitForPrevious
  WaitForPrevious();
  reporter.Begin();
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kRows * cols; i += kVectorThreads) {
    const int n = i / cols;
    const int d = i % cols;
    const int step = d / kDotLanes;
    xs[n * cols + (step / kVector * kDotLanes + d % kDotLanes) * kVector + step % kVector] = x[n * x_stride + d];
  }
  __syncthreads();
  float acc[kRowsAtOnce][kRows] = {};
  for (int b0 = 0; b0 < blocks; b0 += kAhead) {
    if (b0 > 0) load(b0);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (b0 + k >= blocks) break;
      float weights[kRowsAtOnce][kVector];
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) Expand(bits[k][r], weights[r], T());
#pragma unroll
      for (int n = 0; n < kRows; ++n) {
        const float4* from = reinterpret_cast<const float4*>(xs + n * cols + (b0 + k) * kBlockCols + lane * kVector);
#pragma unroll
        for (int v = 0; v < kVector; v += 4) {
          const float4 xv = from[v / 4];
#pragma unroll
          for (int r = 0; r < kRowsAtOnce; ++r) {
            acc[r][n] = Fma(xv.x, weights[r][v], acc[r][n]);
            acc[r][n] = Fma(xv.y, weights[r][v + 1], acc[r][n]);
            acc[r][n] = Fma(xv.z, weights[r][v + 2], acc[r][n]);
            acc[r][n] = Fma(xv.w, weights[r][v + 3], acc[r][n]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      float y = acc[r][n];
#pragma unroll
      for (int s = kDotLanes / 2; s > 0; s /= 2) y = y + __shfl_down_sync(0xffffffffu, y, s, kDotLanes);
      if (lane != 0 || first + r >= w.rows) continue;
      float* to = out.data + n * out.stride + first + r;
      y = out.add ? *to + PlusZero(y) : PlusZero(y);
      if (!IsFinite(y)) reporter.Report();
      *to = y;
    }
  }
}

// ---- ExactTileKernel: many rows of x ----

// A block computes a tile of kTileM weight rows x kTileN rows of x, one lane of the dot products
// (kernels/math/reduce.h) after the other. Lanes come in the order in which the fold by halves pairs them, so finished
// lanes merge like the digits of a binary counter. Only the current partial tile is in registers; the few waiting ones
// are in local memory, accessed once per lane.
constexpr int kTileThreads = 256;
constexpr int kTileM = 128;
constexpr int kThreadM = 8;
constexpr int kTileSteps = 16;  // elements of a lane ("steps") that are staged in shared memory at a time
constexpr int kLevels = 4;      // log2(kDotLanes): most partial tiles that wait at once to be merged

__device__ __forceinline__ int LaneInFoldOrder(int i) {  // i with its 4 bits reversed: 0, 8, 4, 12, 2, ...
  return static_cast<int>(__brev(static_cast<unsigned>(i)) >> 28);
}

// Staging and products of ExactTileKernel. Weights and x are staged in double buffers of kTileSteps steps of one lane,
// for kTileM weight rows and kTileN rows of x. A thread computes kThreadN x kThreadM outputs.
template <typename T, int kThreadN>
struct ExactTiles {
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kBlockCols = kDotLanes * kVector;
  static constexpr int kThreadsM = kTileM / kThreadM;  // threads along the weight rows: 16
  static constexpr int kTileN = kTileThreads / kThreadsM * kThreadN;
  // 16-byte loads of weights per thread and buffer.
  static constexpr int kLoadsM = kTileM * kTileSteps / kVector / kTileThreads;
  static constexpr int kXCopies = kTileN * kTileSteps / 4 / kTileThreads;  // 16-byte copies of x per thread and buffer
  static_assert(kXCopies * 4 * kTileThreads == kTileN * kTileSteps);
  using Weights = float[2][kTileSteps][kTileM + 4];
  using Rows = float[2][kTileSteps][kTileN + 4];

  // Issues the loads of kTileSteps steps of `lane`, from `step` on: weights to registers next_w, because they are
  // converted to floats before they are stored, and x by asynchronous copies to buffer `to`. With both in registers the
  // main loop spilled (70 ms instead of 52 for 2048 rows of an 8B LM head on an H200).
  static __device__ __forceinline__ void Fetch(const float* x, int64_t x_stride, const ExactWeightView& w, int64_t m0,
                                               int64_t n0, int steps, int lane, int step, int to, Rows& xs,
                                               uint4 (&next_w)[kLoadsM]) {
    const T* weights = static_cast<const T*>(w.data);
    const int t = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int k = 0; k < kLoadsM; ++k) {
      const int i = t + k * kTileThreads;
      const int row = i % kTileM;
      const int vector = i / kTileM;
      const int64_t m = min(m0 + row, w.rows - 1);
      const int at = step / kVector + vector;
      next_w[k] =
          at * kVector < steps
              ? __ldg(reinterpret_cast<const uint4*>(weights + m * w.padded_cols + at * kBlockCols + lane * kVector))
              : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < kXCopies; ++k) {
      const int i = t + k * kTileThreads;
      const int row = i % (kTileN / 4) * 4;
      const int s = i / (kTileN / 4);
      const bool have = step + s < steps && n0 + row < x_stride;
      const int64_t at = have ? (static_cast<int64_t>(lane) * steps + step + s) * x_stride + n0 + row : 0;
      CopyAsync16(SharedAddress(&xs[to][s][row]), x + at, have);
    }
  }

  // Converts the weights in next_w to floats and stores them to `buffer` of ws.
  static __device__ __forceinline__ void Store(const uint4 (&next_w)[kLoadsM], int buffer, Weights& ws) {
#pragma unroll
    for (int k = 0; k < kLoadsM; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * kTileThreads;
      float values[kVector];
      Expand(next_w[k], values, T());
#pragma unroll
      for (int v = 0; v < kVector; ++v) ws[buffer][i / kTileM * kVector + v][i % kTileM] = values[v];
    }
  }

  // Accumulates the kTileSteps steps of `buffer`, in order. tm, tn: this thread's place in the tile.
  static __device__ __forceinline__ void Multiply(const Weights& ws, const Rows& xs, int buffer, int tm, int tn,
                                                  float (&acc)[kThreadN][kThreadM]) {
#pragma unroll
    for (int s = 0; s < kTileSteps; ++s) {
      float wv[kThreadM];
      float xv[kThreadN];
      // Each thread's 8 weight rows are two groups of four, half a tile apart, so a quarter warp reads 128 contiguous
      // bytes.
      *reinterpret_cast<float4*>(wv) = *reinterpret_cast<const float4*>(&ws[buffer][s][tm * 4]);
      *reinterpret_cast<float4*>(wv + 4) = *reinterpret_cast<const float4*>(&ws[buffer][s][kTileM / 2 + tm * 4]);
#pragma unroll
      for (int n = 0; n < kThreadN; ++n) xv[n] = xs[buffer][s][tn * kThreadN + n];
#pragma unroll
      for (int n = 0; n < kThreadN; ++n) {
#pragma unroll
        for (int m = 0; m < kThreadM; ++m) acc[n][m] = Fma(xv[n], wv[m], acc[n][m]);
      }
    }
  }

  // Stores this thread's outputs of the tile that begins at row n0 of x and weight row m0.
  static __device__ __forceinline__ void Write(const float (&acc)[kThreadN][kThreadM], int64_t n0, int64_t m0, int tm,
                                               int tn, int64_t x_rows, int64_t w_rows, const LinearOutput& out,
                                               const SiteReporter& reporter) {
#pragma unroll
    for (int n = 0; n < kThreadN; ++n) {
      const int64_t row = n0 + tn * kThreadN + n;
      if (row >= x_rows) continue;
#pragma unroll
      for (int m = 0; m < kThreadM; ++m) {
        const int64_t col = m0 + m / 4 * (kTileM / 2) + tm * 4 + m % 4;
        if (col >= w_rows) continue;
        float* to = out.data + row * out.stride + col;
        const float dot = PlusZero(acc[n][m]);
        const float y = out.add ? *to + dot : dot;
        if (!IsFinite(y)) reporter.Report();
        *to = y;
      }
    }
  }
};

// y = x @ w^T for many rows of x. blockIdx.x: tile of x rows, blockIdx.y: tile of weight rows. x:
// [lane][step][x_stride], transposed by TransposeKernel.
template <typename T, int kThreadN>
__global__ void __launch_bounds__(kTileThreads, 2)
    ExactTileKernel(const float* x, int64_t x_stride, int64_t x_rows, ExactWeightView w, LinearOutput out,
                    SiteReporter reporter) {
  using Tiles = ExactTiles<T, kThreadN>;
  __shared__ __align__(16) typename Tiles::Weights ws;
  __shared__ __align__(16) typename Tiles::Rows xs;
  reporter.Begin();
  const int t = static_cast<int>(threadIdx.x);
  const int tm = t % Tiles::kThreadsM;
  const int tn = t / Tiles::kThreadsM;
  // Tiles of x vary fastest: blocks that run at the same time share weight rows through the L2.
  const int64_t n0 = static_cast<int64_t>(blockIdx.x) * Tiles::kTileN;
  const int64_t m0 = static_cast<int64_t>(blockIdx.y) * kTileM;
  const int steps = static_cast<int>(w.padded_cols / kDotLanes);

  float acc[kThreadN][kThreadM];
  float stack[kLevels][kThreadN][kThreadM];
  uint4 next_w[Tiles::kLoadsM];
  const auto fetch = [&](int lane, int step, int to) {
    Tiles::Fetch(x, x_stride, w, m0, n0, steps, lane, step, to, xs, next_w);
  };
  const int pieces = (steps + kTileSteps - 1) / kTileSteps;
  int buffer = 0;
  fetch(LaneInFoldOrder(0), 0, 0);
  Tiles::Store(next_w, 0, ws);
  WaitForAllCopies();
  __syncthreads();
#pragma unroll 1
  for (int index = 0; index < kDotLanes; ++index) {
#pragma unroll
    for (int n = 0; n < kThreadN; ++n) {
#pragma unroll
      for (int m = 0; m < kThreadM; ++m) acc[n][m] = 0.0f;
    }
#pragma unroll 1
    for (int piece = 0; piece < pieces; ++piece) {
      const bool wrap = piece == pieces - 1;
      const bool last = wrap && index == kDotLanes - 1;
      if (!last) fetch(LaneInFoldOrder(index + (wrap ? 1 : 0)), wrap ? 0 : (piece + 1) * kTileSteps, buffer ^ 1);
      Tiles::Multiply(ws, xs, buffer, tm, tn, acc);
      if (!last) Tiles::Store(next_w, buffer ^ 1, ws);
      WaitForAllCopies();
      __syncthreads();
      buffer ^= 1;
    }
    // Carry of the binary counter: each set bit of `index` below its first clear bit is a waiting partial tile to add.
    // At the last index all of them are added.
    int level = 0;
#pragma unroll 1
    for (; (index >> level & 1) != 0; ++level) {
#pragma unroll
      for (int n = 0; n < kThreadN; ++n) {
#pragma unroll
        for (int m = 0; m < kThreadM; ++m) acc[n][m] = stack[level][n][m] + acc[n][m];
      }
    }
    if (index == kDotLanes - 1) break;
#pragma unroll
    for (int n = 0; n < kThreadN; ++n) {
#pragma unroll
      for (int m = 0; m < kThreadM; ++m) stack[level][n][m] = acc[n][m];
    }
  }
  Tiles::Write(acc, n0, m0, tm, tn, x_rows, w.rows, out, reporter);
}

// Transposes x [rows][x_stride] to out [lane][step][out_stride] for ExactTileKernel, so that the values of all rows at
// one step of a lane are contiguous. Rows are padded with zeros to a multiple of kTransposeTile. One block per tile of
// kTransposeTile columns x kTransposeTile rows.
constexpr int kTransposeTile = kExactTileRows;
__global__ void __launch_bounds__(kTransposeTile * 8)
    TransposeKernel(const float* x, int64_t x_stride, int64_t rows, int64_t cols, float* out, int64_t out_stride) {
  __shared__ float tile[kTransposeTile][kTransposeTile + 1];
  const int64_t d0 = static_cast<int64_t>(blockIdx.x) * kTransposeTile;
  const int64_t n0 = static_cast<int64_t>(blockIdx.y) * kTransposeTile;
  const int tx = static_cast<int>(threadIdx.x) % kTransposeTile;
  const int ty = static_cast<int>(threadIdx.x) / kTransposeTile;
  for (int i = ty; i < kTransposeTile; i += 8) {
    if (n0 + i < rows && d0 + tx < cols) tile[i][tx] = x[(n0 + i) * x_stride + d0 + tx];
  }
  __syncthreads();
  const int64_t steps = cols / kDotLanes;
  for (int i = ty; i < kTransposeTile; i += 8) {
    const int64_t d = d0 + i;
    if (d >= cols) continue;
    out[(d % kDotLanes * steps + d / kDotLanes) * out_stride + n0 + tx] = n0 + tx < rows ? tile[tx][i] : 0.0f;
  }
}

template <typename T>
void LaunchVector(DeviceContext& ctx, const float* x, int64_t x_stride, int rows, const ExactWeightView& w,
                  const LinearOutput& out, const SiteReporter& reporter) {
  const auto launch = [&]<int kRows>() {
    const auto kernel = ExactVectorKernel<T, kRows>;
    const size_t shared_bytes = static_cast<size_t>(kRows * w.padded_cols) * sizeof(float);
    AllowShared(ctx, kernel, shared_bytes);
    const unsigned blocks = static_cast<unsigned>((w.rows + kWeightRowsOfBlock - 1) / kWeightRowsOfBlock);
    LaunchOverlapped(ctx, kernel, dim3(blocks), dim3(kVectorThreads), shared_bytes, x, x_stride, w, out, reporter);
  };
  switch (rows) {
    case 1: return launch.template operator()<1>();
    case 2: return launch.template operator()<2>();
    case 3: return launch.template operator()<3>();
    default: return launch.template operator()<4>();
  }
}

template <typename T>
void LaunchTiles(DeviceContext& ctx, const float* x, int64_t x_stride, int64_t rows, const ExactWeightView& w,
                 const LinearOutput& out, const SiteReporter& reporter) {
  const int64_t stride = (rows + kTransposeTile - 1) / kTransposeTile * kTransposeTile;
  Scratch scratch(ctx.workspace);
  float* transposed = scratch.Take<float>(w.padded_cols * stride);
  const dim3 transpose_grid(static_cast<unsigned>((w.padded_cols + kTransposeTile - 1) / kTransposeTile),
                            static_cast<unsigned>((rows + kTransposeTile - 1) / kTransposeTile));
  TransposeKernel<<<transpose_grid, kTransposeTile * 8, 0, ctx.stream>>>(x, x_stride, rows, w.padded_cols, transposed,
                                                                         stride);
  STOCH_CUDA_LAUNCH("TransposeKernel");
  constexpr int kThreadN = 8;
  constexpr int kTileN = kTileThreads / (kTileM / kThreadM) * kThreadN;
  static_assert(kTileN == kExactTileTokens);
  const dim3 grid(static_cast<unsigned>((rows + kTileN - 1) / kTileN),
                  static_cast<unsigned>((w.rows + kTileM - 1) / kTileM));
  ExactTileKernel<T, kThreadN><<<grid, kTileThreads, 0, ctx.stream>>>(transposed, stride, rows, w, out, reporter);
  STOCH_CUDA_LAUNCH("ExactTileKernel");
}

}  // namespace

void LaunchExactLinear(DeviceContext& ctx, const LinearPlan& plan, const float* x, int64_t x_stride, int64_t rows,
                       const ExactWeightView& w, const LinearOutput& out, const SiteReporter& reporter) {
  if (plan.route == LinearRoute::kExactBatch) return LaunchExactBatch(ctx, plan, x, x_stride, rows, w, out, reporter);
  DispatchFloat(w.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (plan.route == LinearRoute::kExactTiles) return LaunchTiles<T>(ctx, x, x_stride, rows, w, out, reporter);
    STOCH_CHECK(plan.route == LinearRoute::kExactVector && plan.tile_tokens >= 1);
    for (int64_t first = 0; first < rows; first += plan.tile_tokens) {
      LinearOutput part = out;
      part.data += first * out.stride;
      LaunchVector<T>(ctx, x + first * x_stride, x_stride,
                      static_cast<int>(std::min<int64_t>(plan.tile_tokens, rows - first)), w, part, reporter);
    }
  });
}

}  // namespace stoch::cuda
