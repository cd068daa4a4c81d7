// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/prologue/held_codes.cuh"
#include "kernels/cuda/prologue/norm_factor.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/hopper/grouped_kernels.h"
#include "kernels/cuda/sc/hopper/row_group_kernels.h"
#include "kernels/cuda/sc/tensor_core/streams.cuh"

namespace stoch::cuda {
namespace {

// -------------------------------------------------------------------------------------- Activations that are codes
// ----

constexpr int kThreads = 256;
constexpr int kTokensPerPass = kThreads / 4;  // four lanes of a warp serve the 16 dimensions of a token
constexpr int kTokensPerBlock = 1024;         // enough to pay for staging the streams of the block's 16 dimensions
constexpr int kFewestStagedTokens = 512;  // calls with fewer tokens load less when they load only the streams needed

// Words of half `half` of the stream of one level in one dimension of a chunk, zero extended to four words.
template <int kWords>
__device__ __forceinline__ uint4 LoadStream(const ScTables& tables, const uint32_t* streams, int dim_in_chunk,
                                            int level, int half) {
  const uint32_t* stream =
      streams +
      (static_cast<int64_t>(dim_in_chunk & (tables.masks - 1)) * tables.levels + level) * tables.stream_words +
      half * kWords;
  if constexpr (kWords == 4) {  // stream_words is 4 or 8, so every half is 16-byte aligned
    return __ldg(reinterpret_cast<const uint4*>(stream));
  } else {
    uint32_t w[4] = {};
#pragma unroll
    for (int k = 0; k < kWords; ++k) w[k] = half * kWords + k < tables.stream_words ? __ldg(stream + k) : 0;
    return make_uint4(w[0], w[1], w[2], w[3]);
  }
}

// Tokens of a call whose rows all have one stream length: token t is row t.
struct NoRows {};
// Whether rows have stream lengths of their own.
template <typename Rows>
inline constexpr bool kHasLengths = std::is_same_v<Rows, RowStreams> || std::is_same_v<Rows, MixedGroupRows>;

// The streams by slot, and the slots of the rows, of either type of rows with kHasLengths.
__device__ __forceinline__ const RowStreams& LengthsOf(const RowStreams& rows) { return rows; }
__device__ __forceinline__ const RowStreams& LengthsOf(const MixedGroupRows& rows) { return rows.lengths; }

// Expands codes to streams. Block (x, y) takes block x of 16 dimensions and tokens y * kTokensPerBlock and on; four
// lanes serve a token. Block (0, 0) also zeroes `flags`.
// kStaged: the streams of all levels of the 16 dimensions are staged in shared memory first; not with kHasLengths.
// Rows says which row of `a` a token is: NoRows, token t is row t; RowStreams, token t is row t with lengths of their own;
// SlotRows, tokens are slots of experts; GroupRows, tokens are the rows of one group of lengths; MixedGroupRows, the
// rows of a group with lengths of their own.
template <int kWords, bool kStaged, typename Rows>
__global__ void __launch_bounds__(kThreads)
    ExpandStreamsKernel(ScTables tables, ScActivationView a, ScStreams out, int* flags, int flag_count, Rows rows) {
  constexpr bool kSlots = std::is_same_v<Rows, SlotRows>;
  constexpr bool kMixed = kHasLengths<Rows>;
  constexpr bool kGroup = std::is_base_of_v<GroupRows, Rows>;
  static_assert(!(kStaged && kMixed));
  // [16 dims][levels][halves] entries of 4 words, of which kWords are used.
  extern __shared__ uint4 staged[];
  const int dim_block = static_cast<int>(blockIdx.x);
  const int block_in_chunk = dim_block % out.blocks_per_chunk;
  StartNext();
  if constexpr (kStaged) {
    for (int dim = static_cast<int>(threadIdx.x) / 32; dim < 16; dim += kThreads / 32) {
      for (int i = static_cast<int>(threadIdx.x) % 32; i < tables.levels * out.halves; i += 32) {
        staged[dim * tables.levels * out.halves + i] =
            LoadStream<kWords>(tables, tables.streams, block_in_chunk * 16 + dim, i / out.halves, i % out.halves);
      }
    }
  }
  WaitForPrevious();
  if (blockIdx.x == 0 && blockIdx.y == 0) {
    for (int i = static_cast<int>(threadIdx.x); i < flag_count; i += kThreads) flags[i] = 0;
  }
  __syncthreads();

  const int lane = static_cast<int>(threadIdx.x) & 3;
  const int first_token = static_cast<int>(blockIdx.y) * kTokensPerBlock;
  int end_token = min(first_token + kTokensPerBlock, out.tokens_padded());
  if constexpr (kSlots) end_token = min(end_token, (*rows.tiles - rows.first_tile) * out.tile_tokens);
  if constexpr (kGroup) end_token = min(end_token, rows.group->rows);
  for (int token = first_token + static_cast<int>(threadIdx.x) / 4; token < end_token; token += kTokensPerPass) {
    uint32_t codes = 0;
    int row = token;
    if constexpr (kSlots) {
      const int slot = rows.slots[rows.first_tile * out.tile_tokens + token];
      if (slot < 0) continue;
      row = slot / rows.row_slots;
    }
    if constexpr (kGroup) row = rows.order[rows.group->first + token];
    if (kSlots || kGroup || token < out.tokens) {
      codes = *reinterpret_cast<const uint32_t*>(a.codes + row * a.dims.padded + dim_block * 16 + lane * 4);
    }
    const uint32_t* streams = tables.streams;
    [[maybe_unused]] float gain = 0.0f;
    if constexpr (kMixed) {
      const int64_t chunk = dim_block / out.blocks_per_chunk;
      const RowStreams& lengths = LengthsOf(rows);
      const RowSlots& slots = lengths.slots;
      const int slot = (kGroup || token < out.tokens) && slots.slots != nullptr
                           ? slots.slots[row * slots.per_row + (slots.per_row > 1 ? chunk : 0)]
                           : 0;
      streams = lengths.tables[slot].streams;
      gain = lengths.tables[slot].gain;
    }
    for (int half = 0; half < out.halves; ++half) {
      uint32_t* block =
          reinterpret_cast<uint32_t*>(out.data + out.block_offset(token / out.tile_tokens, dim_block, half));
      const int column = token % out.tile_tokens * 4 + lane;
      const auto entry = [&](int j, int level) {
        uint4 stream = make_uint4(0, 0, 0, 0);
        if constexpr (kStaged) {
          stream = staged[((lane * 4 + j) * tables.levels + level) * out.halves + half];
        } else if (!kMixed || streams != nullptr) {
          stream = LoadStream<kWords>(tables, streams, block_in_chunk * 16 + lane * 4 + j, level, half);
        }
        return stream;
      };
      StoreUnits<kWords>(
          codes, kWords, entry, [&](int k) { return ValidBits(half * kWords + k, tables.stoc_len); },
          [&](int unit, uint32_t word) { block[unit * out.tile_tokens * 4 + column] = word; });
    }
    if (lane == 0 && block_in_chunk == 0) {
      const int64_t chunk = dim_block / out.blocks_per_chunk;
      out.scales[chunk * out.tokens_padded() + token] =
          kSlots || kGroup || token < out.tokens ? a.scales[chunk * a.tokens + row] : 0.0f;
      if constexpr (kMixed) out.gains[chunk * out.tokens_padded() + token] = gain;
    }
  }
}

template <int kWords, typename Rows>
void Launch(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScStreams& out, int* flags,
            int flag_count, const Rows& rows) {
  const dim3 grid(static_cast<unsigned>(out.dim_blocks),
                  static_cast<unsigned>((out.tokens_padded() + kTokensPerBlock - 1) / kTokensPerBlock));
  if constexpr (kHasLengths<Rows>) {
    LaunchOverlapped(ctx, ExpandStreamsKernel<kWords, false, Rows>, grid, dim3(kThreads), 0, tables, a, out, flags,
                     flag_count, rows);
  } else {
    const bool is_staged = out.tokens >= kFewestStagedTokens;
    const int shared = is_staged ? 16 * tables.levels * out.halves * 16 : 0;
    const auto kernel = is_staged ? ExpandStreamsKernel<kWords, true, Rows> : ExpandStreamsKernel<kWords, false, Rows>;
    AllowShared(ctx, kernel, static_cast<size_t>(shared));
    LaunchOverlapped(ctx, kernel, grid, dim3(kThreads), static_cast<size_t>(shared), tables, a, out, flags, flag_count,
                     rows);
  }
}

template <typename Rows>
void LaunchWords(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScStreams& out,
                 int* flags, int flag_count, const Rows& rows) {
  switch (out.words) {
    case 1: return Launch<1>(ctx, tables, a, out, flags, flag_count, rows);
    case 2: return Launch<2>(ctx, tables, a, out, flags, flag_count, rows);
    case 3: return Launch<3>(ctx, tables, a, out, flags, flag_count, rows);
    default: return Launch<4>(ctx, tables, a, out, flags, flag_count, rows);
  }
}

// ------------------------------------------------------------------------------------- Activations that are floats
// ----

constexpr int kRowThreads = 1024;
constexpr int kRowWarps = kRowThreads / kWarp;
constexpr int kRowsAtOnce = 8;         // rows of a warp: their columns of a unit are 128 contiguous bytes
constexpr int kCodePitch = kWarp + 4;  // words between the codes of two rows in shared memory: no bank conflicts
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
// warp takes one chunk of kRowsAtOnce rows at a time: it quantizes with four dimensions a lane, then writes units of 16
// dimensions with a quad of lanes a row, so that stores are coalesced.
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
    table[i] = LoadStream<kWords>(args.tables, args.tables.streams, i / levels, i % levels, 0);
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
  if (rows != nullptr) return LaunchWords(ctx, tables, a, out, flags, flag_count, *rows);
  LaunchWords(ctx, tables, a, out, flags, flag_count, NoRows{});
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

void LaunchExpandGroup(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScStreams& out,
                       int* flags, int flag_count, const GroupRows& rows) {
  LaunchWords(ctx, tables, a, out, flags, flag_count, rows);
}

void LaunchExpandGroup(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScStreams& out,
                       int* flags, int flag_count, const MixedGroupRows& rows) {
  LaunchWords(ctx, tables, a, out, flags, flag_count, rows);
}

void LaunchExpandSlots(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScStreams& out,
                       const SlotRows& rows) {
  STOCH_CHECK(out.words == 2 || out.words == 4);
  const auto launch = out.words == 2 ? Launch<2, SlotRows> : Launch<4, SlotRows>;
  launch(ctx, tables, a, out, nullptr, 0, rows);
}

}  // namespace stoch::cuda
