// SPDX-License-Identifier: Apache-2.0
// Expands codes of activations to streams (streams.h). Tokens are rows, slots of experts, or rows of a group of
// lengths.
#pragma once

#include <type_traits>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/tensor_core/streams.cuh"

namespace stoch::cuda::expand {

inline constexpr int kThreads = 256;
inline constexpr int kTokensPerPass = kThreads / 4;  // four lanes of a warp serve the 16 dimensions of a token
inline constexpr int kTokensPerBlock = 1024;  // tokens of a block: enough to pay for staging streams of 16 dimensions
// Calls with fewer tokens do not stage: loading only the streams of their codes takes fewer loads than staging all.
inline constexpr int kFewestStagedTokens = 512;

// Loads kWords words, zero-extended to four: half `half` of the stream of level `level` in dimension dim_in_chunk of a
// chunk.
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

// The Rows of ExpandStreamsKernel if token t is row t and all rows have one stream length.
struct NoRows {};
// Whether Rows is a group of rows that have their own stream lengths (MixedGroupRows).
template <typename Rows>
inline constexpr bool kIsMixedGroup = requires(const Rows& rows) {
  rows.lengths;
};
// Whether the rows have their own stream lengths.
template <typename Rows>
inline constexpr bool kHasLengths = std::is_same_v<Rows, RowStreams> || kIsMixedGroup<Rows>;

// Returns the streams of each slot, and the slot of each row. Requires: kHasLengths.
template <typename Rows>
__device__ __forceinline__ const RowStreams& LengthsOf(const Rows& rows) {
  if constexpr (kIsMixedGroup<Rows>) {
    return rows.lengths;
  } else {
    return rows;
  }
}

// Expands codes to streams. Block (x, y) takes block x of 16 dimensions and tokens y * kTokensPerBlock and on; four
// lanes serve a token. Block (0, 0) also zeroes `flags`.
// kStaged: the streams of all levels of the 16 dimensions are staged in shared memory first; not with kHasLengths.
// Rows maps tokens to rows of `a`. With NoRows and RowStreams token t is row t; with SlotRows, recognized by its member
// `tiles`, tokens are slots of experts; with GroupRows and MixedGroupRows, recognized by `group`, tokens are the rows
// of one group of lengths. With RowStreams and MixedGroupRows the rows have their own stream lengths.
template <int kWords, bool kStaged, typename Rows>
__global__ void __launch_bounds__(kThreads)
    ExpandStreamsKernel(ScTables tables, ScActivationView a, ScStreams out, int* flags, int flag_count, Rows rows) {
  constexpr bool kSlots = requires { rows.tiles; };
  constexpr bool kMixed = kHasLengths<Rows>;
  constexpr bool kGroup = requires { rows.group; };
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

}  // namespace stoch::cuda::expand
