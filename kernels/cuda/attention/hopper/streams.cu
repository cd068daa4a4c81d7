// SPDX-License-Identifier: Apache-2.0
// Writes the bitstreams of K and V that q k and p v of wide tiles read as B operands, and copies scales and the codes
// of V.
#include <algorithm>

#include "kernels/cuda/attention/hopper/wide.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/sc/tensor_core/operand.cuh"

namespace stoch::cuda {
namespace {

// Maximum number of key blocks (kKeyBlock positions) per thread block. All of them read the same part of the stream
// table.
constexpr int kMostAtOnce = 8;
// Thread blocks per SM to reach before thread blocks are given more than one key block.
constexpr int kBlocksOfAnSm = 8;

// Looks up the streams of 16 codes: a column of a stage of keys, or half a column of a stage of values. codes[c]: the
// four codes of lane c of a quad; code j is that of dimension (in p v: position) first + c * step + j, whose mask
// selects the stream. Calls store(j, words) with word w of the stream of code j of lane c in words[w][c]. A negative
// code's stream is complemented.
template <int kWords, typename Store>
__device__ __forceinline__ void StreamsOf(const ScTables& tables, const uint32_t* swapped, const uint32_t (&codes)[4],
                                          int first, int step, const Store& store) {
  using Stream = std::conditional_t<kWords == 4, uint4, uint2>;
  const auto* table = reinterpret_cast<const Stream*>(swapped);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t words[kWords][4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const uint32_t code = codes[c] >> (8 * j) & 0xff;
      const int mask = (first + c * step + j) & (tables.masks - 1);
      const Stream stream = __ldg(table + mask * tables.levels + static_cast<int>(code & 0x7f));
      const uint32_t flip = (code & 0x80) != 0 ? ~0u : 0u;
      words[0][c] = stream.x ^ flip;
      words[1][c] = stream.y ^ flip;
      if constexpr (kWords == 4) {
        words[2][c] = stream.z ^ flip;
        words[3][c] = stream.w ^ flip;
      }
    }
    store(j, words);
  }
}

// Packs one column of a unit: a word for each lane of a quad.
__device__ __forceinline__ uint4 Unit(const uint32_t (&words)[4]) {
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Writes column `column` of a stage of keys: unit j * kWords + w has word w of the streams of the four lanes' codes j;
// then come two units with the factors of the sign correction (operand.cuh): u = [code < 0], and u minus the ones of
// the stream.
template <int kWords>
__device__ __forceinline__ void StoreKeys(const ScTables& tables, const uint32_t* swapped, const uint32_t (&codes)[4],
                                          int first, uint8_t* stage, int column) {
  uint4* to = reinterpret_cast<uint4*>(stage) + column;
  StreamsOf<kWords>(tables, swapped, codes, first, 4, [&](int j, const uint32_t(&words)[kWords][4]) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) to[(j * kWords + w) * kWideKeys] = Unit(words[w]);
  });
  uint32_t negative[4];
  uint32_t rest[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const uint32_t signs = ByteSigns(codes[c]);
    const uint32_t ones = DirectRanks<kWords>(codes[c]).packed;
    const uint32_t complemented = __vadd4(ones, ((1u - 32 * kWords) & 0xff) * 0x01010101u);
    negative[c] = signs & 0x01010101u;
    rest[c] = (complemented & signs) | (__vsub4(0u, ones) & ~signs);
  }
  to[4 * kWords * kWideKeys] = Unit(negative);
  to[(4 * kWords + 1) * kWideKeys] = Unit(rest);
}

// Writes column `column` (a channel) of one part of a block of kWideValues values to v_first and v_others (laid out as
// in WideArgs). A block has two halves, each with two parts of 16 positions. v_first or v_others null: that array is
// not written.
template <int kWords, int kColumns>
__device__ __forceinline__ void StoreValues(const WideArgs& args, const uint32_t (&codes)[4], int first, int part,
                                            int64_t block, int column, uint8_t* v_first, uint8_t* v_others) {
  constexpr int64_t kUnitBytes = int64_t{kColumns} * 16;
  uint4* const first_words = reinterpret_cast<uint4*>(v_first + block * kWideFirstUnits * kUnitBytes) + column;
  uint4* const others = reinterpret_cast<uint4*>(v_others + block * WideOtherUnits(kWords) * kUnitBytes) + column;
  const int half = part / 2;
  const auto negative = [&](int c) { return codes[c] >> 7 & 0x01010101u; };
  if (v_first != nullptr) {
    first_words[(half * kWideValueUnits + part % 2) * kColumns] =
        make_uint4(negative(0), negative(1), negative(2), negative(3));
  }
  StreamsOf<kWords>(args.av, args.attention.kv.av_swapped, codes, first, 16,
                    [&](int j, const uint32_t(&words)[kWords][4]) {
                      const int unit = part % 2 * 4 + j;
                      if (v_first != nullptr) {
                        first_words[(half * kWideValueUnits + 2 + unit) * kColumns] = Unit(words[0]);
                      }
                      if (v_others == nullptr) return;
#pragma unroll
                      for (int w = 1; w < kWords; ++w) {
                        others[((2 * (w - 1) + half) * 8 + unit) * kColumns] = Unit(words[w]);
                      }
                    });
}

// Number of units in a stage of keys.
template <int kWords>
inline constexpr int kUnits = 4 * kWords + 2;

// Writes the streams of 16 dimensions of K for up to at_once key blocks (kWideKeys keys each) of a sequence, one thread
// per key. Thread blocks of the first 16 dimensions also copy the scales of K and V and raise v_max. kAgain: rewrites
// only key blocks whose streams were overwritten by words of V (WideArgs::replaced), and copies no scales. Launched
// with a grid (pieces of a sequence x head_dim / 16, KV heads of the round, sequences of the batch).
template <int kWords, bool kAgain>
__global__ void __launch_bounds__(kWideKeys) KeyStreamsKernel(const WideArgs args, int first_sequence, int at_once) {
  const KvView& kv = args.attention.kv;
  const int sequence_index = first_sequence + static_cast<int>(blockIdx.z);
  const PassSequence sequence = args.attention.pass.sequences[sequence_index];
  const int dim_blocks = kv.head_dim / 16;
  const int dim_block = static_cast<int>(blockIdx.x) % dim_blocks;
  const int begin = static_cast<int>(blockIdx.x) / dim_blocks * at_once * kWideKeys;
  if (sequence.packed_begin < 0) return;
  const int32_t* pages = args.attention.pass.pages + int64_t{sequence_index} * args.attention.pass.max_pages;
  const int head = args.first_kv_head + static_cast<int>(blockIdx.y);
  const int64_t packed = blockIdx.y * args.positions + sequence.packed_begin;
  const int column = static_cast<int>(threadIdx.x);
  // No row of the batch sees positions before `kept`.
  const int kept = FirstKept(args.attention, sequence.start_position);
  for (int block = max(begin, kept); block < min(begin + at_once * kWideKeys, sequence.length); block += kWideKeys) {
    if (kAgain && args.replaced[(packed + block) / kWideKeys] == 0) continue;
    const int t = block + WideKey(column);
    uint32_t codes[4] = {};
    float k_scale = 0.0f;
    float v_scale = 0.0f;
    if (t < sequence.length) {
      const int32_t page = pages[t >> kv.page_shift];
      const int slot = t & (kv.page_tokens - 1);
#pragma unroll
      for (int c = 0; c < 4; ++c) codes[c] = kv.k_words[kv.KWord(page, head, 4 * dim_block + c, slot)];
      if (!kAgain && dim_block == 0) {
        k_scale = kv.k_scales[kv.Scale(page, head, slot)];
        v_scale = kv.v_scales[kv.Scale(page, head, slot)];
      }
    }
    constexpr int64_t kStageBytes = int64_t{kUnits<kWords>} * kWideKeys * 16;
    uint8_t* stage = args.k_streams + ((packed + block) / kWideKeys * dim_blocks + dim_block) * kStageBytes;
    StoreKeys<kWords>(args.qk, kv.qk_swapped, codes, 16 * dim_block, stage, column);
    if (!kAgain && dim_block == 0) {
      args.k_scales[packed + WideScale(t)] = k_scale;
      args.v_scales[packed + WideScale(t)] = v_scale;
      // A scale is not negative, so its float bits are ordered as integers.
      const uint32_t largest = __reduce_max_sync(~0u, __float_as_uint(v_scale));
      if (threadIdx.x % 32 == 0) atomicMax(args.v_max + blockIdx.y, largest);
    }
  }
}

// Loads the codes of channel `column` in part `part` of the kWideValues values from position `block` on. Lane c of a
// quad gets positions 16 c + 4 part .. 16 c + 4 part + 3, so that the codes of p that the lane needs for all four parts
// are 16 consecutive bytes of a row.
__device__ __forceinline__ void LoadValues(const KvView& kv, const PassSequence& sequence, const int32_t* pages,
                                           int head, int block, int part, int column, uint32_t (&codes)[4]) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    codes[c] = 0;
    const int t = block + 16 * c + 4 * part;
    if (t >= sequence.length) continue;
    codes[c] = kv.v_words[kv.VWord(pages[t >> kv.page_shift], head, (t & (kv.page_tokens - 1)) >> 2, column)];
    // Bytes after the sequence's last position may hold values of an earlier owner of the page.
    if (sequence.length - t < 4) codes[c] &= (1u << (8 * (sequence.length - t))) - 1;
  }
}

// Writes the streams and codes of one part (a quarter) of up to at_once * kKeyBlock values of a sequence, one thread
// per channel. If v_others shares memory with k_streams, writes only the first word of each stream. Launched with a
// grid (pieces of a sequence x 4 parts, KV heads of the round, sequences of the batch).
template <int kWords, int kColumns>
__global__ void __launch_bounds__(kColumns) ValueStreamsKernel(const WideArgs args, int first_sequence, int at_once) {
  const KvView& kv = args.attention.kv;
  const int sequence_index = first_sequence + static_cast<int>(blockIdx.z);
  const PassSequence sequence = args.attention.pass.sequences[sequence_index];
  const int part = static_cast<int>(blockIdx.x) % 4;
  const int begin = static_cast<int>(blockIdx.x) / 4 * at_once * kKeyBlock;
  if (sequence.packed_begin < 0) return;
  const int32_t* pages = args.attention.pass.pages + int64_t{sequence_index} * args.attention.pass.max_pages;
  const int head = args.first_kv_head + static_cast<int>(blockIdx.y);
  const int64_t packed = blockIdx.y * args.positions + sequence.packed_begin;
  const int column = static_cast<int>(threadIdx.x);
  const int padded = (sequence.length + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  const int kept = FirstKept(args.attention, sequence.start_position);
  for (int block = max(begin, kept); block < min(begin + at_once * kKeyBlock, padded); block += 64) {
    uint32_t codes[4];
    LoadValues(kv, sequence, pages, head, block, part, column, codes);
    StoreValues<kWords, kColumns>(args, codes, block + 4 * part, part, (packed + block) / kWideValues, column,
                                  args.v_first, args.replaced == nullptr ? args.v_others : nullptr);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int64_t t = packed + block + 16 * (i / 4) + 4 * part + i % 4;
      args.v_codes[t * kColumns + column] = static_cast<uint8_t>(codes[i / 4] >> (8 * (i % 4)));
    }
  }
}

// Returns whether any tile of the group needs all words of the streams of values t .. t + kWideValues - 1 of a sequence
// and KV head. Called by all threads of a block; contains a barrier.
template <int kThreads>
__device__ __forceinline__ bool NeedsOthers(const WideArgs& args, int sequence, int kv_head, int t) {
  bool needs = false;
  for (int i = static_cast<int>(threadIdx.x); i < args.num_tiles * args.attention.group; i += kThreads) {
    const QueryTile& tile = args.tiles[i / args.attention.group];
    const int kept = FirstKept(args.attention, tile.PositionOf(0));
    if (tile.sequence != sequence || t < kept || t >= tile.length()) continue;
    const int head = kv_head * args.attention.group + i % args.attention.group;
    needs |= (args.NeededOf(args.FirstRow(i / args.attention.group, head))[(t - kept) / kWideValues] & kAllWords) != 0;
  }
  return __syncthreads_or(static_cast<int>(needs)) != 0;
}

// Writes all words but the first of a block of kWideValues values to v_others if the group needs them, and sets
// args.replaced for the key blocks whose streams they overwrite. key_block_bytes: bytes of the streams of kWideKeys
// keys. Launched with a grid (blocks of kWideValues values, KV heads of the round, sequences of the batch), a thread
// per channel.
template <int kWords, int kColumns>
__global__ void __launch_bounds__(kColumns)
    OtherWordsKernel(const WideArgs args, int first_sequence, int64_t key_block_bytes) {
  const int sequence_index = first_sequence + static_cast<int>(blockIdx.z);
  const PassSequence sequence = args.attention.pass.sequences[sequence_index];
  const auto block = static_cast<int>(blockIdx.x) * kWideValues;
  const auto kv_head = static_cast<int>(blockIdx.y);
  if (sequence.packed_begin < 0 || block >= sequence.length) return;
  if (!NeedsOthers<kColumns>(args, sequence_index, kv_head, block)) return;
  const int32_t* pages = args.attention.pass.pages + int64_t{sequence_index} * args.attention.pass.max_pages;
  const int64_t to = (kv_head * args.positions + sequence.packed_begin + block) / kWideValues;
  const int column = static_cast<int>(threadIdx.x);
  for (int part = 0; part < 4; ++part) {
    uint32_t codes[4];
    LoadValues(args.attention.kv, sequence, pages, args.first_kv_head + kv_head, block, part, column, codes);
    StoreValues<kWords, kColumns>(args, codes, block + 4 * part, part, to, column, nullptr, args.v_others);
  }
  constexpr int64_t kBytes = int64_t{WideOtherUnits(kWords)} * kColumns * 16;
  const int64_t key_blocks = args.kv_heads * args.positions / kWideKeys;
  const int64_t first = to * kBytes / key_block_bytes;
  const int64_t end = min((to * kBytes + kBytes + key_block_bytes - 1) / key_block_bytes, key_blocks);
  if (first + column < end) args.replaced[first + column] = 1;
}

// Bytes of the streams of kWideKeys keys.
int KeyBlockBytes(const WideArgs& args) {
  const int units = args.qk.stream_words == 4 ? kUnits<4> : kUnits<2>;
  return units * kWideKeys * 16 * (args.attention.kv.head_dim / 16);
}

// Launches `kernel` with a grid (pieces of a sequence x parts, KV heads, sequences). A piece is at_once blocks of
// kKeyBlock positions, at most kMostAtOnce, chosen so that each SM still gets about kBlocksOfAnSm thread blocks.
template <typename Kernel>
void LaunchPieces(DeviceContext& ctx, const WideArgs& args, const TileBatch& batch, Kernel* kernel, int parts,
                  int threads) {
  const int64_t blocks = (batch.max_length + kKeyBlock - 1) / kKeyBlock;
  const int64_t of_each = int64_t{args.kv_heads} * batch.num_sequences;
  const int64_t most = int64_t{kBlocksOfAnSm} * ctx.traits.sm_count;
  const int at_once = static_cast<int>(std::clamp<int64_t>(blocks * of_each * parts / most, 1, kMostAtOnce));
  const dim3 grid(static_cast<unsigned>((blocks + at_once - 1) / at_once * parts), static_cast<unsigned>(args.kv_heads),
                  static_cast<unsigned>(batch.num_sequences));
  kernel<<<grid, static_cast<unsigned>(threads), 0, ctx.stream>>>(args, batch.first_sequence, at_once);
}

template <bool kAgain>
void LaunchKeys(DeviceContext& ctx, const WideArgs& args, const TileBatch& batch) {
  static_assert(kWideKeys == kKeyBlock);
  auto* kernel = args.qk.stream_words == 4 ? &KeyStreamsKernel<4, kAgain> : &KeyStreamsKernel<2, kAgain>;
  LaunchPieces(ctx, args, batch, kernel, args.attention.kv.head_dim / 16, kWideKeys);
  STOCH_CUDA_LAUNCH("KeyStreamsKernel");
}

void ClearReplaced(DeviceContext& ctx, const WideArgs& args) {
  STOCH_CUDA(
      cudaMemsetAsync(args.replaced, 0, static_cast<size_t>(args.kv_heads * args.positions / kWideKeys), ctx.stream));
}

}  // namespace

void LaunchWideStreams(DeviceContext& ctx, const WideArgs& args, const TileBatch& batch) {
  const int head_dim = args.attention.kv.head_dim;
  STOCH_CUDA(cudaMemsetAsync(args.v_max, 0, static_cast<size_t>(args.kv_heads) * sizeof(uint32_t), ctx.stream));
  if (args.replaced != nullptr) ClearReplaced(ctx, args);
  LaunchKeys<false>(ctx, args, batch);
  auto* of_values = args.av.stream_words == 4
                        ? (head_dim == 128 ? &ValueStreamsKernel<4, 128> : &ValueStreamsKernel<4, 64>)
                        : (head_dim == 128 ? &ValueStreamsKernel<2, 128> : &ValueStreamsKernel<2, 64>);
  LaunchPieces(ctx, args, batch, of_values, 4, head_dim);
  STOCH_CUDA_LAUNCH("ValueStreamsKernel");
}

void LaunchOtherWords(DeviceContext& ctx, const WideArgs& args, const TileBatch& batch) {
  const int head_dim = args.attention.kv.head_dim;
  auto* kernel = args.av.stream_words == 4 ? (head_dim == 128 ? &OtherWordsKernel<4, 128> : &OtherWordsKernel<4, 64>)
                                           : (head_dim == 128 ? &OtherWordsKernel<2, 128> : &OtherWordsKernel<2, 64>);
  const dim3 grid(static_cast<unsigned>((batch.max_length + kWideValues - 1) / kWideValues),
                  static_cast<unsigned>(args.kv_heads), static_cast<unsigned>(batch.num_sequences));
  kernel<<<grid, static_cast<unsigned>(head_dim), 0, ctx.stream>>>(args, batch.first_sequence, KeyBlockBytes(args));
  STOCH_CUDA_LAUNCH("OtherWordsKernel");
}

void LaunchReplacedKeys(DeviceContext& ctx, const WideArgs& args, const TileBatch& batch) {
  LaunchKeys<true>(ctx, args, batch);
  ClearReplaced(ctx, args);
}

}  // namespace stoch::cuda
