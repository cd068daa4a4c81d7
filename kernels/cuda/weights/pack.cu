// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/dispatch.h"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/quantizer.cuh"
#include "kernels/cuda/runtime/for_each.cuh"
#include "kernels/cuda/weights/pack.h"
#include "kernels/math/fixed_point.h"
#include "kernels/math/random.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

// Number of blocks of a launch that gives each item a warp.
unsigned WarpBlocks(int64_t items) { return static_cast<unsigned>((items + kWarps - 1) / kWarps); }

// Lowers *first_bad to `row`.
__device__ void NoteBad(int64_t* first_bad, int64_t row) {
  atomicMin(reinterpret_cast<unsigned long long*>(first_bad), static_cast<unsigned long long>(row));
}

// Arguments of PackScKernel: a slab of rows, the part of its columns to quantize, and the layout to write.
struct PackArgs {
  const void* data = nullptr;
  // Row of the whole weight at which the slab begins.
  int64_t first_row = 0;
  int64_t rows = 0;  // rows of the slab
  ScopeParams params;
  ScArith arith = ScArith::kSc;
  // Rows that share a scale.
  int64_t group = 1;
  PackedChannels of;
  Extremes* extremes = nullptr;  // [chunks][rows]; null if group is 1
  ScWeightView to;
  // The word that NoteBad lowers.
  int64_t* first_bad = nullptr;
};

// Element i among the packed channels of a row, times its smoothing factor.
template <typename T>
__device__ float PartValue(const PackArgs& args, int64_t row, int64_t i) {
  const int64_t channel = args.of.channels == nullptr ? i : args.of.channels[i];
  const float x = ToFloat(static_cast<const T*>(args.data)[row * args.of.stride + channel]);
  return args.of.smooth == nullptr ? x : x * args.of.smooth[channel];
}

// Extremes of elements [begin, begin + n) of a row. Called by a whole warp; every lane gets the result.
template <typename T>
__device__ Extremes RowExtremes(const PackArgs& args, int64_t row, int64_t begin, int64_t n, int lane) {
  Extremes e;
  Observe(e, PartValue<T>(args, row, begin + (lane < n ? lane : 0)), true);
  for (int64_t i = lane + kWarp; i < n; i += kWarp) Observe(e, PartValue<T>(args, row, begin + i), false);
  return WarpExtremes(e);
}

// Computes the extremes of each (row, chunk), for scales that several rows share. One warp per (row, chunk).
template <typename T>
__global__ void __launch_bounds__(kThreads) PackExtremesKernel(const PackArgs args) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (index >= args.rows * args.to.dims.chunks) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = index % args.rows;
  const int64_t chunk = index / args.rows;
  const Extremes e = RowExtremes<T>(args, row, chunk * args.to.dims.chunk_d, args.to.dims.chunk_dims(chunk), lane);
  if (lane == 0) args.extremes[index] = e;
}

// Writes the codes and the scale of each (row, chunk) of a slab. One warp per (row, chunk).
template <typename T>
__global__ void __launch_bounds__(kThreads) PackScKernel(const PackArgs args) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (index >= args.rows * args.to.dims.chunks) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = index % args.rows;
  const int64_t chunk = index / args.rows;
  const int64_t begin = chunk * args.to.dims.chunk_d;
  const int64_t n = args.to.dims.chunk_dims(chunk);
  const Extremes e = args.extremes == nullptr
                         ? RowExtremes<T>(args, row, begin, n, lane)
                         : GroupExtremes(args.extremes + chunk * args.rows, row, args.rows, args.group, lane);
  const PlainScope scope(args.params, args.arith, e);
  const int64_t to_row = args.first_row + row;
  auto* codes = const_cast<uint8_t*>(args.to.codes);
  int32_t sum = 0;
  for (int64_t i = lane; i < n; i += kWarp) {
    const uint8_t code = scope.Code(args.params, PartValue<T>(args, row, begin + i));
    codes[args.to.code_offset(to_row, chunk * args.to.dims.chunk_stride + i)] = code;
    sum += code;
  }
  sum = static_cast<int32_t>(__reduce_add_sync(kAllLanes, static_cast<unsigned>(sum)));
  if (lane != 0) return;
  if (!scope.finite) NoteBad(args.first_bad, to_row);
  const_cast<float*>(args.to.scales)[chunk * args.to.rows_padded + to_row] = scope.scale;
  if (args.params.code != ScCode::kAsymmetric) return;
  const_cast<float*>(args.to.zeros)[to_row] = scope.zero;
  const_cast<int32_t*>(args.to.sums)[to_row] = sum;
}

// Offset of element (row, d) of an ExactWeightView.
__device__ int64_t ExactOffset(int64_t padded_cols, int vector, int64_t row, int64_t d) {
  const int64_t step = d / kDotLanes;
  return row * padded_cols + (step / vector * kDotLanes + d % kDotLanes) * vector + step % vector;
}
// Stores a slab of rows [rows][cols] in ExactWeightView order, padding included, one thread per element of the layout.
template <typename From, typename To>
struct ExactPacker {
  const From* data;
  int64_t first_row, cols, padded_cols;
  To* to;
  int64_t* first_bad;

  __device__ void operator()(int64_t i) const {
    const int64_t row = i / padded_cols;
    const int64_t d = i % padded_cols;
    const float value = d < cols ? ToFloat(data[row * cols + d]) : -0.0f;
    if (!IsFinite(value)) NoteBad(first_bad, first_row + row);
    to[ExactOffset(padded_cols, 16 / sizeof(To), first_row + row, d)] = FromFloat<To>(value);
  }
};

// Stores a slab of rows in FixedWeightView order, and each row's scale. One warp per row.
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

// The byte h of each of eight integers q = 256 h + r, packed in two words, and the sum of the squares of the remainders
// r.
struct HighBytes {
  uint32_t words[2] = {};
  uint64_t squares = 0;
};
// HighBytes of eight packed weights of a row. scale: FixedScale of the row.
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

// Fills a weight's screen (FixedWeightView::Screen): bytes and norms of remainders. One warp per group of 16 rows.
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
    // Rounded up: the factor covers the rounding of sqrt, __double2float_ru that of the conversion.
    const double norm = sqrt(static_cast<double>(squares[r])) * (1.0 + 0x1p-40);
    if (lane % 4 == 0)
      const_cast<float*>(w.screen.rests)[group * FixedWeightView::kGroupRows + r * 8 + lane / 4] =
          __double2float_ru(norm);
  }
}

// Converts a slab of rows to type To, row-major, one thread per element.
template <typename From, typename To>
struct PlainPacker {
  const From* data;
  int64_t first_row, cols;
  To* to;
  int64_t* first_bad;

  __device__ void operator()(int64_t i) const {
    const To value = FromFloat<To>(ToFloat(data[i]));
    if (!IsFinite(ToFloat(value))) NoteBad(first_bad, first_row + i / cols);
    to[first_row * cols + i] = value;
  }
};

// to[i] = number first + i of the random weights, rounded to half. One thread per element (LaunchForEach).
struct Generator {
  uint64_t seed, stream, first;
  float stddev;
  __half* to;

  __device__ void operator()(int64_t i) const {
    to[i] = __float2half_rn(RandomWeight(seed, stream, first + static_cast<uint64_t>(i), stddev));
  }
};

struct Filler {
  float value;
  float* to;

  __device__ void operator()(int64_t i) const { to[i] = value; }
};

// Copies codes to [rows, cols] and scales to [rows, chunks], one thread per element.
struct ScUnpacker {
  ScWeightView from;
  uint8_t* codes;
  float* scales;

  __device__ void operator()(int64_t i) const {
    const int64_t row = i / from.dims.dims;
    const int64_t d = i % from.dims.dims;
    codes[i] = from.codes[from.code_offset(row, from.dims.padded_index(d))];
    if (d % from.dims.chunk_d != 0) return;
    const int64_t chunk = d / from.dims.chunk_d;
    scales[row * from.dims.chunks + chunk] = from.scales[chunk * from.rows_padded + row];
  }
};

// Copies rows [first, first + to.rows) of an SC weight, one thread per code of `to`.
struct ScRowCopier {
  ScWeightView from;
  int64_t first;
  ScWeightView to;

  __device__ void operator()(int64_t i) const {
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
};

template <typename T>
struct ExactUnpacker {
  ExactWeightView from;
  float* values;

  __device__ void operator()(int64_t i) const {
    const int64_t at = ExactOffset(from.padded_cols, 16 / sizeof(T), i / from.cols, i % from.cols);
    values[i] = ToFloat(static_cast<const T*>(from.data)[at]);
  }
};

template <typename T>
struct FixedUnpacker {
  FixedWeightView from;
  float* values;

  __device__ void operator()(int64_t i) const {
    constexpr int kVector = 8;
    const int64_t d = i % from.cols;
    const int64_t at = from.vector_offset(i / from.cols, d / kVector) * kVector + d % kVector;
    values[i] = ToFloat(static_cast<const T*>(from.data)[at]);
  }
};

struct HalfUnpacker {
  const __half* from;
  float* values;

  __device__ void operator()(int64_t i) const { values[i] = ToFloat(from[i]); }
};

}  // namespace

void LaunchPackSc(DeviceContext& ctx, const WeightSlab& slab, const ScOperator& op, int64_t group,
                  const ScWeightView& to, int64_t* first_bad, const PackedChannels& of) {
  PackArgs args;
  args.data = slab.data;
  args.first_row = slab.first_row;
  args.rows = slab.rows;
  args.params = {op.code, op.q_max, op.scale_floor};
  args.arith = op.config.arith;
  args.group = group;
  args.of = of;
  if (of.stride == 0) args.of.stride = slab.cols;
  args.to = to;
  args.first_bad = first_bad;
  const int64_t warps = slab.rows * to.dims.chunks;
  const unsigned blocks = WarpBlocks(warps);
  Scratch scratch(ctx.workspace);
  DispatchFloat(slab.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (group > 1) {
      args.extremes = scratch.Take<Extremes>(warps);
      PackExtremesKernel<T><<<blocks, kThreads, 0, ctx.stream>>>(args);
      STOCH_CUDA_LAUNCH("PackExtremesKernel");
    }
    PackScKernel<T><<<blocks, kThreads, 0, ctx.stream>>>(args);
    STOCH_CUDA_LAUNCH("PackScKernel");
  });
}

void LaunchPackExact(DeviceContext& ctx, const WeightSlab& slab, const ExactWeightView& to, int64_t* first_bad) {
  const int64_t count = slab.rows * to.padded_cols;
  void* data = const_cast<void*>(to.data);
  DispatchFloat(slab.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const T* from = static_cast<const T*>(slab.data);
    if (to.dtype == slab.dtype) {
      LaunchForEach(
          ctx, count,
          ExactPacker<T, T>{from, slab.first_row, slab.cols, to.padded_cols, static_cast<T*>(data), first_bad});
      return;
    }
    auto* const floats = static_cast<float*>(data);
    LaunchForEach(ctx, count,
                  ExactPacker<T, float>{from, slab.first_row, slab.cols, to.padded_cols, floats, first_bad});
  });
}

void LaunchPackFixed(DeviceContext& ctx, const WeightSlab& slab, const FixedWeightView& to, int64_t* first_bad) {
  STOCH_CHECK(to.dtype == slab.dtype);
  DispatchFloat(slab.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    PackFixedKernel<T><<<WarpBlocks(slab.rows), kThreads, 0, ctx.stream>>>(slab, to, first_bad);
    STOCH_CUDA_LAUNCH("PackFixedKernel");
  });
}

void LaunchPackScreen(DeviceContext& ctx, const FixedWeightView& to) {
  const int64_t groups = to.padded_rows() / FixedWeightView::kGroupRows;
  if (groups == 0) return;
  const auto kernel = to.dtype == DType::kF16 ? PackScreenKernel<__half> : PackScreenKernel<__nv_bfloat16>;
  kernel<<<WarpBlocks(groups), kThreads, 0, ctx.stream>>>(to);
  STOCH_CUDA_LAUNCH("PackScreenKernel");
}

void LaunchPackHalf(DeviceContext& ctx, const WeightSlab& slab, const HalfWeightView& to, int64_t* first_bad) {
  __half* data = reinterpret_cast<__half*>(const_cast<uint16_t*>(to.data));
  DispatchFloat(slab.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const T* from = static_cast<const T*>(slab.data);
    LaunchForEach(ctx, slab.rows * slab.cols, PlainPacker<T, __half>{from, slab.first_row, slab.cols, data, first_bad});
  });
}

void LaunchPackPlain(DeviceContext& ctx, const WeightSlab& slab, DType dtype, void* to, int64_t* first_bad) {
  const int64_t count = slab.rows * slab.cols;
  DispatchFloat(slab.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const T* from = static_cast<const T*>(slab.data);
    if (dtype == slab.dtype) {
      LaunchForEach(ctx, count, PlainPacker<T, T>{from, slab.first_row, slab.cols, static_cast<T*>(to), first_bad});
      return;
    }
    auto* const floats = static_cast<float*>(to);
    LaunchForEach(ctx, count, PlainPacker<T, float>{from, slab.first_row, slab.cols, floats, first_bad});
  });
}

void LaunchGenerate(DeviceContext& ctx, const WeightSource& source, int64_t first, int64_t count, void* to) {
  if (source.stddev == 0.0f) return LaunchForEach(ctx, count, Filler{source.constant, static_cast<float*>(to)});
  const auto start = static_cast<uint64_t>(source.first + first);
  LaunchForEach(ctx, count, Generator{source.seed, source.stream, start, source.stddev, static_cast<__half*>(to)});
}

void LaunchCopyScRows(DeviceContext& ctx, const ScWeightView& from, int64_t first, const ScWeightView& to) {
  LaunchForEach(ctx, to.rows * to.dims.padded, ScRowCopier{from, first, to});
}

void LaunchUnpackSc(DeviceContext& ctx, const ScWeightView& from, uint8_t* codes, float* scales) {
  LaunchForEach(ctx, from.rows * from.dims.dims, ScUnpacker{from, codes, scales});
}

void LaunchUnpackExact(DeviceContext& ctx, const ExactWeightView& from, float* values) {
  DispatchFloat(from.dtype, [&](auto tag) {
    LaunchForEach(ctx, from.rows * from.cols, ExactUnpacker<typename decltype(tag)::Type>{from, values});
  });
}

void LaunchUnpackFixed(DeviceContext& ctx, const FixedWeightView& from, float* values) {
  DispatchFloat(from.dtype, [&](auto tag) {
    LaunchForEach(ctx, from.rows * from.cols, FixedUnpacker<typename decltype(tag)::Type>{from, values});
  });
}

void LaunchUnpackHalf(DeviceContext& ctx, const HalfWeightView& from, float* values) {
  LaunchForEach(ctx, from.rows * from.cols, HalfUnpacker{reinterpret_cast<const __half*>(from.data), values});
}

}  // namespace stoch::cuda
