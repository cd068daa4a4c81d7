// SPDX-License-Identifier: Apache-2.0
#include <cuda_fp16.h>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/quantizer.cuh"
#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/prologue/held_codes.cuh"
#include "kernels/cuda/prologue/norm_factor.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kRowLanes;  // one thread per lane of RMSNorm's sum (kernels/math/reduce.h)

// RMSNorm's factor 1 / sqrt(mean(x^2) + eps) of a row of `cols` numbers, returned to every thread of a block of
// kRowLanes threads; 0 for other prologues. shared: kRowLanes floats of scratch.
template <Prologue P>
__device__ float RowFactor(const RowSource& source, const float* x, int64_t cols, float* shared) {
  if constexpr (P != Prologue::kRmsNorm) return 0.0f;
  return NormFactor(x, cols, source.norm_eps, shared);
}

// Arguments of the quantizer kernels. Outputs: codes [tokens][dims.padded], scales [dims.chunks][tokens], and for
// kAsymmetric zeros [tokens] and sums [tokens] (row sums of codes).
struct QuantizeArgs {
  RowSource source;
  ScDims dims;
  ScopeParams params;
  int64_t group = 1;  // rows that share a scale
  int64_t tokens = 0;
  const Extremes* shared_extremes = nullptr;  // [chunks][scopes] if several rows share a scale; else null
  // Number of groups of rows that share a scale.
  int64_t scopes = 0;
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  float* zeros = nullptr;
  int32_t* sums = nullptr;
  SiteReporter reporter;
};

// Quantizes f(x). One block per row. A team quantizes a chunk: a warp if there are many chunks, the whole block if
// there are few.
template <Prologue P, bool kBlockTeam>
__global__ void __launch_bounds__(kThreads) QuantizeRowsKernel(const QuantizeArgs args) {
  __shared__ float fold[kRowLanes];
  __shared__ Extremes extremes[kWarp];
  __shared__ int32_t total;
  args.reporter.Begin();
  const int64_t row = blockIdx.x;
  const float* x = args.source.x + row * args.source.x_stride;
  const float* x2 = P == Prologue::kSiluMul ? args.source.x2 + row * args.source.x2_stride : nullptr;
  const float r = RowFactor<P>(args.source, x, args.dims.dims, fold);

  constexpr int kTeam = kBlockTeam ? kThreads : kWarp;
  const int member = static_cast<int>(threadIdx.x) % kTeam;
  const int team = static_cast<int>(threadIdx.x) / kTeam;
  for (int64_t c = team; c < args.dims.chunks; c += kThreads / kTeam) {
    const int64_t begin = c * args.dims.chunk_d;
    const int64_t n = args.dims.chunk_dims(c);
    Extremes e;
    if (args.shared_extremes != nullptr) {
      e = args.shared_extremes[c * args.scopes + row / args.group];
    } else {
      // Members without an element of their own observe the first one again, which changes no extreme.
      Observe(e, PrologueValue<P>(args.source, x, x2, r, begin + (member < n ? member : 0)), true);
      for (int64_t i = member + kTeam; i < n; i += kTeam) {
        Observe(e, PrologueValue<P>(args.source, x, x2, r, begin + i), false);
      }
      e = kBlockTeam ? BlockExtremes(e, extremes) : WarpExtremes(e);
    }
    const ScopeQuantizer quantizer(args.params, e);
    uint8_t* codes = args.codes + row * args.dims.padded + c * args.dims.chunk_stride;
    int32_t sum = 0;
    for (int64_t i = member; i < args.dims.chunk_padded(c); i += kTeam) {
      uint8_t code = 0;
      if (i < n) code = quantizer.Code(args.params, PrologueValue<P>(args.source, x, x2, r, begin + i));
      codes[i] = code;
      sum += code;
    }
    if (member == 0) {
      args.scales[c * args.tokens + row] = quantizer.scale;
      if (!quantizer.finite) args.reporter.Report();
      if (args.params.code == ScCode::kAsymmetric) args.zeros[row] = quantizer.zero;
    }
    if constexpr (kBlockTeam) {  // the asymmetric code has a single chunk, so the team is the block
      if (args.params.code == ScCode::kAsymmetric) {
        if (member == 0) total = 0;
        __syncthreads();
        atomicAdd(&total, sum);
        __syncthreads();
        if (member == 0) args.sums[row] = total;
      }
    }
  }
}

// QuantizeRowsKernel for rows that satisfy HasVectors and have a scale per (row, chunk). One block per row, one warp
// per chunk, whose values are computed once and held in registers.
template <Prologue P>
__global__ void __launch_bounds__(kThreads) QuantizeChunksKernel(const QuantizeArgs args) {
  __shared__ float fold[kRowLanes];
  args.reporter.Begin();
  const int64_t row = blockIdx.x;
  const float* x = args.source.x + row * args.source.x_stride;
  const float* x2 = P == Prologue::kSiluMul ? args.source.x2 + row * args.source.x2_stride : nullptr;
  const float r = RowFactor<P>(args.source, x, args.dims.dims, fold);
  const int first = static_cast<int>(threadIdx.x) % kWarp * 4;
  for (int64_t c = static_cast<int>(threadIdx.x) / kWarp; c < args.dims.chunks; c += kThreads / kWarp) {
    const bool have = first < args.dims.chunk_dims(c);
    // Lanes without elements of their own repeat the first four, which does not change the largest magnitude.
    const HeldCodes held(args.params,
                         PrologueValues<P>(args.source, x, x2, r, c * args.dims.chunk_d + (have ? first : 0)));
    if (first < args.dims.chunk_padded(c)) {
      uint8_t* codes = args.codes + row * args.dims.padded + c * args.dims.chunk_stride;
      *reinterpret_cast<uint32_t*>(codes + first) = have ? held.word : 0;
    }
    if (first == 0) {
      args.scales[c * args.tokens + row] = held.scale;
      if (!held.finite) args.reporter.Report();
    }
  }
}

// Computes the extremes of each (scope, chunk); used if several rows share a scale. x: f(x) in memory, [rows][stride].
// One block per (scope, chunk).
__global__ void __launch_bounds__(kThreads)
    ScopeExtremesKernel(const float* x, int64_t stride, int64_t rows, ScDims dims, int64_t group, Extremes* out) {
  __shared__ Extremes shared[kWarp];
  const int64_t scope = blockIdx.x;
  const int64_t chunk = blockIdx.y;
  const int64_t first = scope * group;
  const int64_t scope_rows = min(group, rows - first);
  const int64_t n = dims.chunk_dims(chunk);
  const float* base = x + first * stride + chunk * dims.chunk_d;
  Extremes e;
  Observe(e, base[0], true);
  for (int64_t i = threadIdx.x; i < scope_rows * n; i += kThreads) Observe(e, base[i / n * stride + i % n], false);
  e = BlockExtremes(e, shared);
  if (threadIdx.x == 0) out[chunk * gridDim.x + scope] = e;
}

template <typename T>
__device__ T ConvertTo(float x);
template <>
__device__ float ConvertTo<float>(float x) {
  return x;
}
template <>
__device__ uint16_t ConvertTo<uint16_t>(float x) {
  return __half_as_ushort(__float2half_rn(x));
}

// out [rows][out_stride] = f(x) as float or half, columns from `cols` on zeroed. One block per row.
template <Prologue P, typename T>
__global__ void __launch_bounds__(kThreads)
    PrologueKernel(RowSource source, int64_t cols, T* out, int64_t out_stride, SiteReporter reporter) {
  __shared__ float fold[kRowLanes];
  const int64_t row = blockIdx.x;
  const float* x = source.x + row * source.x_stride;
  const float* x2 = P == Prologue::kSiluMul ? source.x2 + row * source.x2_stride : nullptr;
  StartNext();
  WaitForPrevious();
  reporter.Begin();
  const float r = RowFactor<P>(source, x, cols, fold);
  bool finite = true;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < out_stride; i += kThreads) {
    const float value = i < cols ? PrologueValue<P>(source, x, x2, r, i) : 0.0f;
    finite = finite && IsFinite(value);
    out[row * out_stride + i] = ConvertTo<T>(value);
  }
  if (!finite) reporter.Report();
}

template <typename T>
void LaunchPrologueOf(DeviceContext& ctx, const RowSource& source, int64_t tokens, int64_t in_features, T* out,
                      int64_t out_stride, const SiteReporter& reporter) {
  const auto kernel = DispatchPrologue(source.prologue, [](auto p) { return PrologueKernel<p, T>; });
  LaunchOverlapped(ctx, kernel, dim3(static_cast<unsigned>(tokens)), dim3(kThreads), 0, source, in_features, out,
                   out_stride, reporter);
}

// Number of rows of side a (activations) that share a scale.
int64_t ScopeRows(const ScOperator& op, int64_t tokens) {
  return op.config.granularity == ScGranularity::kPerRow ? op.config.group_a : tokens;
}

}  // namespace

RowSource MakeRowSource(const LinearCall& call) {
  RowSource source;
  source.prologue = call.prologue;
  source.x = call.x.ptr<const float>();
  source.x_stride = call.x.step(0);
  switch (call.prologue) {
    case Prologue::kNone: break;
    case Prologue::kRmsNorm:
      source.norm_weight = call.norm_weight.ptr<const float>();
      source.norm_eps = call.norm_eps;
      break;
    case Prologue::kSiluMul:
      source.x2 = call.x2.ptr<const float>();
      source.x2_stride = call.x2.step(0);
      break;
  }
  return source;
}

ScActivationView LaunchQuantize(DeviceContext& ctx, Scratch& scratch, const RowSource& source, int64_t tokens,
                                int64_t in_features, const ScOperator& op, const SiteReporter& reporter) {
  QuantizeArgs args;
  args.source = source;
  args.dims = MakeScDims(in_features, op.config.chunk_d);
  args.params = {op.code, op.q_max};
  args.group = ScopeRows(op, tokens);
  args.tokens = tokens;
  args.codes = scratch.Take<uint8_t>(tokens * args.dims.padded);
  args.scales = scratch.Take<float>(tokens * args.dims.chunks);
  args.reporter = reporter;
  if (op.code == ScCode::kAsymmetric) {
    args.zeros = scratch.Take<float>(tokens);
    args.sums = scratch.Take<int32_t>(tokens);
  }
  if (args.group > 1) {
    args.scopes = (tokens + args.group - 1) / args.group;
    float* plain = scratch.Take<float>(tokens * in_features);
    LaunchPrologue(ctx, source, tokens, in_features, plain, in_features, reporter);
    args.source = RowSource{Prologue::kNone, plain, in_features, nullptr, 0, nullptr, 0};
    Extremes* extremes = scratch.Take<Extremes>(args.scopes * args.dims.chunks);
    const dim3 grid(static_cast<unsigned>(args.scopes), static_cast<unsigned>(args.dims.chunks));
    ScopeExtremesKernel<<<grid, kThreads, 0, ctx.stream>>>(plain, in_features, tokens, args.dims, args.group, extremes);
    STOCH_CUDA_LAUNCH("ScopeExtremesKernel");
    args.shared_extremes = extremes;
  }
  const bool block_team = args.dims.chunks < kThreads / kWarp;
  const bool has_vectors =
      !block_team && args.shared_extremes == nullptr && HasVectors(args.source, args.dims, op.code);
  const auto kernel = DispatchPrologue(args.source.prologue, [&](auto p) {
    return has_vectors  ? QuantizeChunksKernel<p>
           : block_team ? QuantizeRowsKernel<p, true>
                        : QuantizeRowsKernel<p, false>;
  });
  kernel<<<static_cast<unsigned>(tokens), kThreads, 0, ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("QuantizeRowsKernel or QuantizeChunksKernel");
  return ScActivationView{args.dims, tokens, args.codes, args.scales, args.zeros, args.sums};
}

void LaunchPrologue(DeviceContext& ctx, const RowSource& source, int64_t tokens, int64_t in_features, float* out,
                    int64_t out_stride, const SiteReporter& reporter) {
  LaunchPrologueOf(ctx, source, tokens, in_features, out, out_stride, reporter);
}

void LaunchPrologueHalf(DeviceContext& ctx, const RowSource& source, int64_t tokens, int64_t in_features, uint16_t* out,
                        int64_t out_stride, const SiteReporter& reporter) {
  LaunchPrologueOf(ctx, source, tokens, in_features, out, out_stride, reporter);
}

}  // namespace stoch::cuda
