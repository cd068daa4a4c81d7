// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/dispatch.h"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/quantizer.cuh"
#include "kernels/cuda/weights/pack.h"
#include "kernels/math/fixed_point.h"
#include "kernels/math/random.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kPieceDims = 128;  // dimensions staged in shared memory at a time

unsigned Blocks(int64_t work) { return static_cast<unsigned>((work + kThreads - 1) / kThreads); }

__device__ void NoteBad(int64_t* first_bad, int64_t row) {
  atomicMin(reinterpret_cast<unsigned long long*>(first_bad), static_cast<unsigned long long>(row));
}

struct PackScArgs {
  const void* data = nullptr;
  int64_t first_row = 0;
  int64_t rows = 0;  // of the slab
  ScDims dims;
  ScopeParams params;
  int64_t group = 1;                          // rows of a scope
  const Extremes* shared_extremes = nullptr;  // [chunks][scopes of the slab] where group > 1
  int64_t scopes = 0;
  int64_t rows_padded = 0;
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  float* zeros = nullptr;
  int32_t* sums = nullptr;
  int64_t* first_bad = nullptr;
};

// Extremes of `n` contiguous elements, by a warp.
template <typename T>
__device__ Extremes ObserveRow(const T* x, int64_t n, int lane) {
  Extremes e;
  Observe(e, ToFloat(x[lane < n ? lane : 0]), true);
  for (int64_t i = lane + kWarp; i < n; i += kWarp) Observe(e, ToFloat(x[i]), false);
  return WarpExtremes(e);
}

// One block per (32 rows of the slab, chunk); each warp quantizes 4 of the rows. Codes pass through shared memory so
// that the tiles are written in whole lines.
template <typename T>
__global__ void __launch_bounds__(kThreads) PackScKernel(const PackScArgs args) {
  __shared__ __align__(16) uint8_t tiles[kPieceDims / kTileDims][kTileRows][kTileDims];
  constexpr int kRowsOfWarp = kTileRows / kWarps;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTileRows;  // within the slab
  const int64_t chunk = blockIdx.y;
  const int64_t cols = args.dims.dims;
  const int64_t n = args.dims.chunk_dims(chunk);
  const int64_t padded = args.dims.chunk_padded(chunk);
  const T* data = static_cast<const T*>(args.data) + chunk * args.dims.chunk_d;

  Extremes extremes[kRowsOfWarp];
  int32_t sums[kRowsOfWarp] = {};
  for (int k = 0; k < kRowsOfWarp; ++k) {
    const int64_t row = first + warp * kRowsOfWarp + k;
    if (row >= args.rows) continue;
    extremes[k] = args.shared_extremes != nullptr ? args.shared_extremes[chunk * args.scopes + row / args.group]
                                                  : ObserveRow(data + row * cols, n, lane);
  }
  uint8_t* out = args.codes + ((args.first_row + first) / kTileRows * (args.dims.padded / kTileDims) +
                               chunk * args.dims.chunk_stride / kTileDims) *
                                  kTileBytes;
  for (int64_t piece = 0; piece < padded; piece += kPieceDims) {
    for (int k = 0; k < kRowsOfWarp; ++k) {
      const int r = warp * kRowsOfWarp + k;
      const int64_t row = first + r;
      const ScopeQuantizer quantizer(args.params, extremes[k]);
      for (int i = lane; i < kPieceDims; i += kWarp) {
        uint8_t code = 0;
        if (row < args.rows && piece + i < n) code = quantizer.Code(args.params, ToFloat(data[row * cols + piece + i]));
        tiles[i / kTileDims][r][i % kTileDims] = code;
        sums[k] += code;
      }
    }
    __syncthreads();
    const int64_t bytes = min(static_cast<int64_t>(kPieceDims), padded - piece) * kTileRows;
    const uint4* from = reinterpret_cast<const uint4*>(tiles);
    uint4* to = reinterpret_cast<uint4*>(out + piece * kTileRows);
    for (int i = static_cast<int>(threadIdx.x); i < bytes / 16; i += kThreads) to[i] = from[i];
    __syncthreads();
  }
  for (int k = 0; k < kRowsOfWarp; ++k) {
    const int64_t row = first + warp * kRowsOfWarp + k;
    int32_t sum = sums[k];
    for (int s = kWarp / 2; s > 0; s /= 2) sum += __shfl_xor_sync(kAllLanes, sum, s);
    if (lane != 0 || row >= args.rows) continue;
    const ScopeQuantizer quantizer(args.params, extremes[k]);
    if (!quantizer.finite) NoteBad(args.first_bad, args.first_row + row);
    args.scales[chunk * args.rows_padded + args.first_row + row] = quantizer.scale;
    if (args.params.code == ScCode::kAsymmetric) {
      args.zeros[args.first_row + row] = quantizer.zero;
      args.sums[args.first_row + row] = sum;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    SlabExtremesKernel(const T* x, int64_t rows, ScDims dims, int64_t group, Extremes* out) {
  __shared__ Extremes shared[kWarp];
  const int64_t scope = blockIdx.x;
  const int64_t chunk = blockIdx.y;
  const int64_t scope_rows = min(group, rows - scope * group);
  const int64_t n = dims.chunk_dims(chunk);
  const T* base = x + scope * group * dims.dims + chunk * dims.chunk_d;
  Extremes e;
  Observe(e, ToFloat(base[0]), true);
  for (int64_t i = threadIdx.x; i < scope_rows * n; i += kThreads) {
    Observe(e, ToFloat(base[i / n * dims.dims + i % n]), false);
  }
  e = BlockExtremes(e, shared);
  if (threadIdx.x == 0) out[chunk * gridDim.x + scope] = e;
}

// Offset of element (row, d) of an ExactWeightView.
__device__ int64_t ExactOffset(int64_t padded_cols, int vector, int64_t row, int64_t d) {
  const int64_t step = d / kDotLanes;
  return row * padded_cols + (step / vector * kDotLanes + d % kDotLanes) * vector + step % vector;
}

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    PackExactKernel(const From* data, int64_t first_row, int64_t rows, int64_t cols, int64_t padded_cols, To* to,
                    int64_t* first_bad) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * padded_cols) return;
  const int64_t row = i / padded_cols;
  const int64_t d = i % padded_cols;
  const float value = d < cols ? ToFloat(data[row * cols + d]) : -0.0f;
  if (!IsFinite(value)) NoteBad(first_bad, first_row + row);
  to[ExactOffset(padded_cols, 16 / sizeof(To), first_row + row, d)] = FromFloat<To>(value);
}

// A warp a row.
template <typename T>
__global__ void __launch_bounds__(kThreads) PackFixedKernel(WeightSlab slab, FixedWeightView to, int64_t* first_bad) {
  constexpr int kVector = 8;
  const int64_t in_slab = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (in_slab >= slab.rows) return;
  const int64_t row = slab.first_row + in_slab;
  const T* from = static_cast<const T*>(slab.data) + in_slab * slab.cols;
  T* data = static_cast<T*>(const_cast<void*>(to.data));
  uint32_t most = 0;
  for (int64_t d = threadIdx.x % kWarp; d < slab.cols; d += kWarp) {
    const T x = from[d];
    most = max(most, FloatToBits(ToFloat(x)) & 0x7fffffffu);
    data[to.vector_offset(row, d / kVector) * kVector + d % kVector] = x;
  }
  most = __reduce_max_sync(kAllLanes, most);
  if (threadIdx.x % kWarp != 0) return;
  if (!IsFinite(BitsToFloat(most))) NoteBad(first_bad, row);
  const_cast<float*>(to.scales)[row] = FixedScale(most, kFixedWeightBits);
}

// A byte of each of 8 integers, two words, and the sum of squares of what they leave.
struct HighBytes {
  uint32_t words[2] = {};
  uint64_t squares = 0;
};
template <typename T>
__device__ __forceinline__ HighBytes HighBytesOf(const uint4& packed, float scale) {
  float w[8];
  Expand(packed, w, T());
  HighBytes bytes;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int q = FixedInteger(w[i], scale);
    const int high = min((q + 128) >> 8, 127);
    const int rest = q - 256 * high;
    bytes.words[i / 4] |= (static_cast<uint32_t>(high) & 0xffu) << 8 * (i % 4);
    bytes.squares += static_cast<uint64_t>(rest * rest);
  }
  return bytes;
}

// A warp 16 rows.
template <typename T>
__global__ void __launch_bounds__(kThreads) PackScreenKernel(FixedWeightView w) {
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (group * FixedWeightView::kGroupRows >= w.padded_rows()) return;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t steps = w.padded_cols / FixedWeightView::kStepCols;
  const auto* from = static_cast<const uint4*>(w.data) + group * steps * 2 * kWarp + lane;
  auto* to = const_cast<uint4*>(reinterpret_cast<const uint4*>(w.screen.bytes)) + group * steps * kWarp + lane;
  uint64_t squares[2] = {};
  for (int64_t step = 0; step < steps; ++step) {
    HighBytes of_rows[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      of_rows[r] = HighBytesOf<T>(from[(step * 2 + r) * kWarp],
                                  w.scales[group * FixedWeightView::kGroupRows + r * 8 + lane / 4]);
      squares[r] += of_rows[r].squares;
    }
    to[step * kWarp] = {of_rows[0].words[0], of_rows[1].words[0], of_rows[0].words[1], of_rows[1].words[1]};
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    for (int s = 1; s < 4; s *= 2) squares[r] += __shfl_xor_sync(kAllLanes, squares[r], s);
    // Rounded up, and a little more.
    const double norm = sqrt(static_cast<double>(squares[r])) * (1.0 + 0x1p-40);
    if (lane % 4 == 0)
      const_cast<float*>(w.screen.rests)[group * FixedWeightView::kGroupRows + r * 8 + lane / 4] =
          __double2float_ru(norm);
  }
}

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    PackPlainKernel(const From* data, int64_t first_row, int64_t count, int64_t cols, To* to, int64_t* first_bad) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const To value = FromFloat<To>(ToFloat(data[i]));
  if (!IsFinite(ToFloat(value))) NoteBad(first_bad, first_row + i / cols);
  to[first_row * cols + i] = value;
}

__global__ void __launch_bounds__(kThreads)
    GenerateKernel(uint64_t seed, uint64_t stream, int64_t first, float stddev, int64_t count, __half* to) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  to[i] = __float2half_rn(RandomWeight(seed, stream, static_cast<uint64_t>(first + i), stddev));
}

__global__ void __launch_bounds__(kThreads) FillKernel(float value, int64_t count, float* to) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) to[i] = value;
}

__global__ void __launch_bounds__(kThreads) UnpackScKernel(ScWeightView from, uint8_t* codes, float* scales) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= from.rows * from.dims.dims) return;
  const int64_t row = i / from.dims.dims;
  const int64_t d = i % from.dims.dims;
  codes[i] = from.codes[from.code_offset(row, from.dims.padded_index(d))];
  if (d % from.dims.chunk_d == 0) {
    const int64_t chunk = d / from.dims.chunk_d;
    scales[row * from.dims.chunks + chunk] = from.scales[chunk * from.rows_padded + row];
  }
}

__global__ void __launch_bounds__(kThreads) CopyScRowsKernel(ScWeightView from, int64_t first, ScWeightView to) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= to.rows * to.dims.padded) return;
  const int64_t row = i / to.dims.padded;
  const int64_t d = i % to.dims.padded;
  const_cast<uint8_t*>(to.codes)[to.code_offset(row, d)] = from.codes[from.code_offset(first + row, d)];
  if (d < to.dims.chunks) {
    const_cast<float*>(to.scales)[d * to.rows_padded + row] = from.scales[d * from.rows_padded + first + row];
  }
  if (d > 0 || to.zeros == nullptr) return;
  const_cast<float*>(to.zeros)[row] = from.zeros[first + row];
  const_cast<int32_t*>(to.sums)[row] = from.sums[first + row];
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    UnpackExactKernel(const T* from, int64_t rows, int64_t cols, int64_t padded_cols, float* values) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < rows * cols) values[i] = ToFloat(from[ExactOffset(padded_cols, 16 / sizeof(T), i / cols, i % cols)]);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) UnpackFixedKernel(FixedWeightView from, float* values) {
  constexpr int kVector = 8;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= from.rows * from.cols) return;
  const int64_t d = i % from.cols;
  const int64_t at = from.vector_offset(i / from.cols, d / kVector) * kVector + d % kVector;
  values[i] = ToFloat(static_cast<const T*>(from.data)[at]);
}

__global__ void __launch_bounds__(kThreads) UnpackHalfKernel(const __half* from, int64_t count, float* values) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) values[i] = ToFloat(from[i]);
}

}  // namespace

void LaunchPackSc(DeviceContext& ctx, Scratch& scratch, const WeightSlab& slab, const ScOperator& op, int64_t group,
                  const ScWeightView& to, int64_t* first_bad) {
  PackScArgs args;
  args.data = slab.data;
  args.first_row = slab.first_row;
  args.rows = slab.rows;
  args.dims = to.dims;
  args.params = {op.code, op.q_max};
  args.group = group;
  args.rows_padded = to.rows_padded;
  args.codes = const_cast<uint8_t*>(to.codes);
  args.scales = const_cast<float*>(to.scales);
  args.zeros = const_cast<float*>(to.zeros);
  args.sums = const_cast<int32_t*>(to.sums);
  args.first_bad = first_bad;
  DispatchFloat(slab.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (group > 1) {
      args.scopes = (slab.rows + group - 1) / group;
      Extremes* extremes = scratch.Take<Extremes>(args.scopes * args.dims.chunks);
      const dim3 grid(static_cast<unsigned>(args.scopes), static_cast<unsigned>(args.dims.chunks));
      SlabExtremesKernel<T>
          <<<grid, kThreads, 0, ctx.stream>>>(static_cast<const T*>(slab.data), slab.rows, args.dims, group, extremes);
      STOCH_CUDA_LAUNCH("SlabExtremesKernel");
      args.shared_extremes = extremes;
    }
    const dim3 grid(static_cast<unsigned>((slab.rows + kTileRows - 1) / kTileRows),
                    static_cast<unsigned>(args.dims.chunks));
    PackScKernel<T><<<grid, kThreads, 0, ctx.stream>>>(args);
    STOCH_CUDA_LAUNCH("PackScKernel");
  });
}

void LaunchPackExact(DeviceContext& ctx, const WeightSlab& slab, const ExactWeightView& to, int64_t* first_bad) {
  const unsigned blocks = Blocks(slab.rows * to.padded_cols);
  void* data = const_cast<void*>(to.data);
  DispatchFloat(slab.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const T* from = static_cast<const T*>(slab.data);
    if (to.dtype == slab.dtype) {
      PackExactKernel<T, T><<<blocks, kThreads, 0, ctx.stream>>>(from, slab.first_row, slab.rows, slab.cols,
                                                                 to.padded_cols, static_cast<T*>(data), first_bad);
    } else {
      PackExactKernel<T, float><<<blocks, kThreads, 0, ctx.stream>>>(
          from, slab.first_row, slab.rows, slab.cols, to.padded_cols, static_cast<float*>(data), first_bad);
    }
    STOCH_CUDA_LAUNCH("PackExactKernel");
  });
}

void LaunchPackFixed(DeviceContext& ctx, const WeightSlab& slab, const FixedWeightView& to, int64_t* first_bad) {
  STOCH_CHECK(to.dtype == slab.dtype);
  DispatchFloat(slab.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto blocks = static_cast<unsigned>((slab.rows + kWarps - 1) / kWarps);
    PackFixedKernel<T><<<blocks, kThreads, 0, ctx.stream>>>(slab, to, first_bad);
    STOCH_CUDA_LAUNCH("PackFixedKernel");
  });
}

void LaunchPackScreen(DeviceContext& ctx, const FixedWeightView& to) {
  const int64_t groups = to.padded_rows() / FixedWeightView::kGroupRows;
  if (groups == 0) return;
  const auto kernel = to.dtype == DType::kF16 ? PackScreenKernel<__half> : PackScreenKernel<__nv_bfloat16>;
  kernel<<<static_cast<unsigned>((groups + kWarps - 1) / kWarps), kThreads, 0, ctx.stream>>>(to);
  STOCH_CUDA_LAUNCH("PackScreenKernel");
}

void LaunchPackHalf(DeviceContext& ctx, const WeightSlab& slab, const HalfWeightView& to, int64_t* first_bad) {
  const int64_t count = slab.rows * slab.cols;
  __half* data = reinterpret_cast<__half*>(const_cast<uint16_t*>(to.data));
  DispatchFloat(slab.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    PackPlainKernel<T, __half><<<Blocks(count), kThreads, 0, ctx.stream>>>(
        static_cast<const T*>(slab.data), slab.first_row, count, slab.cols, data, first_bad);
    STOCH_CUDA_LAUNCH("PackPlainKernel");
  });
}

void LaunchPackPlain(DeviceContext& ctx, const WeightSlab& slab, DType dtype, void* to, int64_t* first_bad) {
  const int64_t count = slab.rows * slab.cols;
  DispatchFloat(slab.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const T* from = static_cast<const T*>(slab.data);
    if (dtype == slab.dtype) {
      PackPlainKernel<T, T><<<Blocks(count), kThreads, 0, ctx.stream>>>(from, slab.first_row, count, slab.cols,
                                                                        static_cast<T*>(to), first_bad);
    } else {
      PackPlainKernel<T, float><<<Blocks(count), kThreads, 0, ctx.stream>>>(from, slab.first_row, count, slab.cols,
                                                                            static_cast<float*>(to), first_bad);
    }
    STOCH_CUDA_LAUNCH("PackPlainKernel");
  });
}

void LaunchGenerate(DeviceContext& ctx, const WeightSource& source, int64_t first, int64_t count, void* to) {
  if (source.stddev == 0.0f) {
    FillKernel<<<Blocks(count), kThreads, 0, ctx.stream>>>(source.constant, count, static_cast<float*>(to));
  } else {
    GenerateKernel<<<Blocks(count), kThreads, 0, ctx.stream>>>(source.seed, source.stream, source.first + first,
                                                               source.stddev, count, static_cast<__half*>(to));
  }
  STOCH_CUDA_LAUNCH("GenerateKernel");
}

void LaunchCopyScRows(DeviceContext& ctx, const ScWeightView& from, int64_t first, const ScWeightView& to) {
  CopyScRowsKernel<<<Blocks(to.rows * to.dims.padded), kThreads, 0, ctx.stream>>>(from, first, to);
  STOCH_CUDA_LAUNCH("CopyScRowsKernel");
}

void LaunchUnpackSc(DeviceContext& ctx, const ScWeightView& from, uint8_t* codes, float* scales) {
  UnpackScKernel<<<Blocks(from.rows * from.dims.dims), kThreads, 0, ctx.stream>>>(from, codes, scales);
  STOCH_CUDA_LAUNCH("UnpackScKernel");
}

void LaunchUnpackExact(DeviceContext& ctx, const ExactWeightView& from, float* values) {
  DispatchFloat(from.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    UnpackExactKernel<T><<<Blocks(from.rows * from.cols), kThreads, 0, ctx.stream>>>(
        static_cast<const T*>(from.data), from.rows, from.cols, from.padded_cols, values);
    STOCH_CUDA_LAUNCH("UnpackExactKernel");
  });
}

void LaunchUnpackFixed(DeviceContext& ctx, const FixedWeightView& from, float* values) {
  DispatchFloat(from.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    UnpackFixedKernel<T><<<Blocks(from.rows * from.cols), kThreads, 0, ctx.stream>>>(from, values);
    STOCH_CUDA_LAUNCH("UnpackFixedKernel");
  });
}

void LaunchUnpackHalf(DeviceContext& ctx, const HalfWeightView& from, float* values) {
  const int64_t count = from.rows * from.cols;
  UnpackHalfKernel<<<Blocks(count), kThreads, 0, ctx.stream>>>(reinterpret_cast<const __half*>(from.data), count,
                                                               values);
  STOCH_CUDA_LAUNCH("UnpackHalfKernel");
}

}  // namespace stoch::cuda
