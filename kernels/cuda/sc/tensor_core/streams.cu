// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/prologue/held_codes.cuh"
#include "kernels/cuda/prologue/norm_factor.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/tensor_core/expand.cuh"

namespace stoch::cuda {
namespace {

constexpr int kRowThreads = 1024;
constexpr int kRowWarps = kRowThreads / kWarp;
constexpr int kRowsAtOnce = 8;         // rows of a warp at a time: their 16-byte columns of a unit are contiguous
constexpr int kCodePitch = kWarp + 4;  // words from one row's codes to the next row's; avoids bank conflicts
static_assert(kStreamCodeBytes == int64_t{kRowWarps} * kRowsAtOnce * kCodePitch * 4);

// factors[row] = 1 / sqrt(mean(x^2) + eps), the factor of RMSNorm. A block of kRowLanes threads per row.
__global__ void __launch_bounds__(kRowLanes)
    NormFactorsKernel(RowSource source, int cols, float* factors, SiteReporter reporter) {
  __shared__ float fold[kRowLanes];
  StartNext();
  WaitForPrevious();
  reporter.Begin();
  const float factor = NormFactor(source.x + blockIdx.x * source.x_stride, cols, source.norm_eps, fold);
  if (threadIdx.x == 0) factors[blockIdx.x] = factor;
}

struct StreamRowsArgs {
  ScTables tables;
  RowSource source;
  const float* factors = nullptr;  // kRmsNorm: [rows] factors of NormFactorsKernel, else null
  ScDims dims;
  ScopeParams params;
  ScStreams out;
  int* flags = nullptr;  // [flag_count], zeroed by the kernel
  int flag_count = 0;
  SiteReporter reporter;
};

// Number of 16-byte entries of the stream table in shared memory: one for every level under every mask that the
// dimensions of a chunk use.
STOCH_LAYOUT_FN int StreamTableEntries(int masks, int levels, const ScDims& dims) {
  return (dims.chunk_stride < masks ? static_cast<int>(dims.chunk_stride) : masks) * levels;
}
// Quantizes f(x) of rows of floats and expands the codes to streams; codes stay in shared memory. One block per SM. A
// warp takes one chunk of kRowsAtOnce rows at a time: it quantizes four dimensions per lane, then writes the units of
// each block of 16 dimensions, four lanes per row, so that stores are coalesced.
template <int kWords, Prologue P>
__global__ void __launch_bounds__(kRowThreads, 1) StreamRowsKernel(const __grid_constant__ StreamRowsArgs args) {
  extern __shared__ uint4 table[];  // [masks][levels] streams, then u32 codes [warps][kRowsAtOnce][kCodePitch]
  const ScStreams& out = args.out;
  const int levels = args.tables.levels;
  const int entries = StreamTableEntries(args.tables.masks, levels, args.dims);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint32_t* const codes = reinterpret_cast<uint32_t*>(table + entries) + warp * (kRowsAtOnce * kCodePitch);
  StartNext();
  for (int i = static_cast<int>(threadIdx.x); i < entries; i += kRowThreads) {
    table[i] = expand::LoadStream<kWords>(args.tables, args.tables.streams, i / levels, i % levels, 0);
  }
  WaitForPrevious();
  if constexpr (P != Prologue::kRmsNorm) args.reporter.Begin();
  if (blockIdx.x == 0) {
    for (int i = static_cast<int>(threadIdx.x); i < args.flag_count; i += kRowThreads) args.flags[i] = 0;
  }
  __syncthreads();

  const uint32_t last_bits = ValidBits(kWords - 1, args.tables.stoc_len);
  const int row_groups = out.tokens_padded() / kRowsAtOnce;
  const int unit_words = out.tile_tokens * 4;
  const int lane_row = lane / 4;  // index among kRowsAtOnce of the row whose units this lane writes
  const int quad = lane % 4;
  for (int item = static_cast<int>(blockIdx.x) * kRowWarps + warp; item < row_groups * out.chunks;
       item += static_cast<int>(gridDim.x) * kRowWarps) {
    const int chunk = item / row_groups;
    const int first_row = item % row_groups * kRowsAtOnce;
    const bool have = 4 * lane < args.dims.chunk_dims(chunk);
    const int64_t at = chunk * args.dims.chunk_d + (have ? 4 * lane : 0);
    float4 v[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int row = min(first_row + r, out.tokens - 1);
      const float* const x = args.source.x + row * args.source.x_stride;
      const float* const x2 = P == Prologue::kSiluMul ? args.source.x2 + row * args.source.x2_stride : nullptr;
      const float factor = P == Prologue::kRmsNorm ? args.factors[row] : 0.0f;
      v[r] = PrologueValues<P>(args.source, x, x2, factor, at);
    }
    float scale = 0.0f;
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const bool is_row = first_row + r < out.tokens;
      const HeldCodes held(args.params, v[r]);
      codes[r * kCodePitch + lane] = have && is_row ? held.word : 0;
      if (lane == r && is_row) scale = held.scale;
      if (lane == r && is_row && !held.finite) args.reporter.Report();
    }
    if (lane < kRowsAtOnce) out.scales[chunk * out.tokens_padded() + first_row + lane] = scale;
    __syncwarp();
    uint32_t* to = reinterpret_cast<uint32_t*>(
                       out.data + out.block_offset(first_row / out.tile_tokens, chunk * out.blocks_per_chunk, 0)) +
                   (first_row % out.tile_tokens + lane_row) * 4 + quad;
    const int blocks = static_cast<int>(args.dims.chunk_padded(chunk)) / kTileDims;
#pragma unroll 1
    for (int block = 0; block < blocks; ++block, to += out.block_bytes() / 4) {
      const uint32_t word = codes[lane_row * kCodePitch + block * 4 + quad];
      const auto entry = [&](int j, int level) {
        const int mask = (block * kTileDims + quad * 4 + j) & (args.tables.masks - 1);
        return table[mask * levels + level];
      };
      StoreUnits<kWords>(
          word, kWords, entry, [&](int k) { return k + 1 < kWords ? ~0u : last_bits; },
          [&](int unit, uint32_t bits) { to[unit * unit_words] = bits; });
    }
    __syncwarp();  // all lanes have read `codes`, which the next item overwrites
  }
}

template <int kWords>
void LaunchRows(DeviceContext& ctx, const StreamRowsArgs& args, size_t shared_bytes) {
  const auto kernel = DispatchPrologue(args.source.prologue, [](auto p) { return StreamRowsKernel<kWords, p>; });
  AllowShared(ctx, kernel, shared_bytes);
  LaunchOverlapped(ctx, kernel, dim3(static_cast<unsigned>(ctx.traits.sm_count)), dim3(kRowThreads), shared_bytes,
                   args);
}

}  // namespace

void LaunchExpandStreams(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScStreams& out,
                         int* flags, int flag_count, const RowStreams* rows) {
  if (rows != nullptr) return expand::LaunchWords(ctx, tables, a, out, flags, flag_count, *rows);
  expand::LaunchWords(ctx, tables, a, out, flags, flag_count, expand::NoRows{});
}

void LaunchStreamRows(DeviceContext& ctx, Scratch& scratch, const ScTables& tables, const ScDims& dims,
                      const RowSource& source, const ScStreams& out, int* flags, int flag_count,
                      const SiteReporter& reporter) {
  StreamRowsArgs args;
  args.tables = tables;
  args.source = source;
  args.dims = dims;
  args.params = {tables.code, tables.q_max};
  args.out = out;
  args.flags = flags;
  args.flag_count = flag_count;
  args.reporter = reporter;
  if (source.prologue == Prologue::kRmsNorm) {
    auto* const factors = scratch.Take<float>(out.tokens);
    args.factors = factors;
    LaunchOverlapped(ctx, NormFactorsKernel, dim3(static_cast<unsigned>(out.tokens)), dim3(kRowLanes), 0, source,
                     static_cast<int>(dims.dims), factors, reporter);
  }
  const auto shared_bytes = static_cast<size_t>(StreamTableBytes(tables.masks, tables.levels, dims) + kStreamCodeBytes);
  switch (out.words) {
    case 1: return LaunchRows<1>(ctx, args, shared_bytes);
    case 2: return LaunchRows<2>(ctx, args, shared_bytes);
    case 3: return LaunchRows<3>(ctx, args, shared_bytes);
    default: return LaunchRows<4>(ctx, args, shared_bytes);
  }
}

}  // namespace stoch::cuda
