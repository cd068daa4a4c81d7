// SPDX-License-Identifier: Apache-2.0
// State of a block of the row kernel: its row, and the places of its keys and values.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention/row_args.cuh"
#include "kernels/cuda/attention/row_fresh.cuh"
#include "kernels/cuda/device/cluster.cuh"

namespace stoch::cuda::attention_row {

// How many blocks of a kernel are to be on an SM. Two tiles ahead and a stage's values take 170 registers of a thread,
// which leaves room for one block alone; of two, each has 128. Where there are more, a block loads little ahead, and the
// registers that this saves let others run next to it while it waits.
constexpr int CrowdedBlocks(int slots) { return slots <= 4 ? 4 : 2; }

template <int kSlots, int kBlocks>
struct Density {
  static constexpr bool kCrowded = kBlocks > 2 || (kBlocks == 2 && CrowdedBlocks(kSlots) == 2);
  static constexpr int kBatchTiles = kCrowded ? 1 : kRoundTiles;    // tiles whose keys are loaded together
  static constexpr int kValueGroups = kCrowded ? 2 : kChunkGroups;  // groups whose values are
};

template <int kSlots, Phase kPhase>
struct RowBlock {
  static constexpr bool kFresh = IsFresh(kPhase);
  static constexpr bool kMixed = IsMixed(kPhase);
  using Fresh = std::conditional_t<kFresh, FreshRows, char>;
  using Args = std::conditional_t<kMixed, MixedRowArgs, RowArgs>;

  const Args& args;
  const AttentionArgs& a;
  const KvView& kv;
  Fresh& fresh;           // shared memory
  int32_t* shared_pages;  // the same: [kMaxSharedPages]
  SharedLayout s;
  float* spill;

  PassRow info;
  int tid, lane, warp;
  int head, kv_head, grid_row, row;
  int head_dim, q_words;
  int length;
  int visible;  // the first position that the row sees
  bool solo, in_shared;
  int rank, cluster, cluster_shift;
  int own_tiles, own_tokens;
  // Positions of the pass are taken from `fresh` where they are looked up; here they stand for a position before.
  int last;
  int page_mask;
  int32_t page_bytes;
  const uint8_t* keys;
  const uint8_t* values;
  const int32_t* pages;
  int own_token;
  int early_v_token;  // in what order the softmax goes
  float early_k_scale, early_v_scale;

  std::conditional_t<kMixed, ScTables, char> own_qk, own_av;  // of the row's lengths, once they are known

  __device__ __forceinline__ RowBlock(const Args& row_args, Fresh& fresh_rows, int32_t* pages_of_block)
      : args(row_args), a(row_args.attention), kv(a.kv), fresh(fresh_rows), shared_pages(pages_of_block) {
    tid = static_cast<int>(threadIdx.x);
    lane = tid & 31;
    warp = __shfl_sync(0xffffffffu, tid >> 5, 0);  // the compiler knows it to be the same in all lanes
    head = static_cast<int>(blockIdx.y);
    kv_head = head / a.group;
    grid_row = static_cast<int>(blockIdx.z);
    row = args.row_list != nullptr ? args.row_list[grid_row] : args.row_offset + grid_row;
    head_dim = kv.head_dim;
    q_words = head_dim / 4;
    info = a.pass.rows[row];  // of the pass, which was there before its first kernel
    length = info.position + 1;
    visible = a.window > 0 ? max(length - a.window, 0) : 0;
    solo = length <= kSoloTokens;
    rank = Cluster::Rank();
  }

  __device__ __forceinline__ const ScTables& qk() const {
    if constexpr (kMixed) {
      return own_qk;
    } else {
      return args.qk;
    }
  }
  __device__ __forceinline__ const ScTables& av() const {
    if constexpr (kMixed) {
      return own_av;
    } else {
      return args.av;
    }
  }
  // `common`: what tables of all lengths share.
  __device__ __forceinline__ static ScTables TablesOf(const ScTables& common, const ByteTable& table) {
    ScTables own = common;
    own.counts8 = table.counts;
    own.masks = table.mask_bits + 1;
    own.gain = table.gain;
    own.top_is_256 = table.top_is_256 != 0;
    return own;
  }

  // Values that follow from the length; after WaitForPrevious.
  __device__ __forceinline__ void Cut(uint8_t* shared_memory) {
    cluster_shift = solo ? 0 : args.cluster_shift;
    cluster = 1 << cluster_shift;
    const int tiles = (length + kTileTokens - 1) / kTileTokens;
    own_tiles = rank < tiles ? (tiles - rank + cluster - 1) >> cluster_shift : 0;
    // Up to the last group of four of this block's last tile that the context reaches.
    own_tokens =
        min(own_tiles * kTileTokens, (own_tiles - 1) * kTileTokens + (length - tile_begin(own_tiles - 1) + 3) / 4 * 4);
    s = MakeLayout(shared_memory, head_dim, args.cluster);
    in_shared = length <= args.shared_scores;
    spill = args.spill + (static_cast<int64_t>(grid_row) * a.num_heads + head) * args.spill_stride;
    last = kFresh ? max(info.start_position - 1, 0) : length - 1;
    page_mask = kv.page_tokens - 1;
    page_bytes = kv.num_kv_heads * head_dim << kv.page_shift;
    keys = reinterpret_cast<const uint8_t*>(kv.k_words) + (kv_head * head_dim << kv.page_shift) +
           kv.KeyWord(warp * kSlots) * 4;
    values = reinterpret_cast<const uint8_t*>(kv.v_words) + (kv_head * head_dim << kv.page_shift) +
             kv.ValueDim(ValueWords<kSlots>::Dim(lane, 0)) * 4;
    pages = a.pass.pages + static_cast<int64_t>(info.sequence) * a.pass.max_pages;
    own_token = token_of(OwnToken());
    early_v_token = solo ? own_token : tid;
    // By the last warps: the first have rows to quantize.
    const int num_pages = (length - 1 >> kv.page_shift) + 1;
    const int shared_page = kThreads - 1 - tid;
    if (shared_page < min(num_pages, kMaxSharedPages)) shared_pages[shared_page] = pages[shared_page];
  }

  __device__ __forceinline__ int tile_begin(int tile) const {  // of this block's tiles
    return ((tile << cluster_shift) + rank) * kTileTokens;
  }
  __device__ __forceinline__ int token_of(int local) const {  // of this block's tokens, in tile order
    return tile_begin(local / kTileTokens) + local % kTileTokens;
  }
  __device__ __forceinline__ int32_t page_of(int t) const {
    const int page = t >> kv.page_shift;
    return page < kMaxSharedPages ? shared_pages[page] : __ldg(pages + page);
  }
  // Where a lane's keys of one of this block's tiles start, and its values of one of the warp's groups.
  __device__ __forceinline__ const uint8_t* keys_of(int tile) const {
    const int t = min(tile_begin(tile) + lane * kLaneTokens, last) & ~3;
    return keys + static_cast<int64_t>(page_of(t)) * page_bytes + kv.KeySlot(t & page_mask) * 4;
  }
  __device__ __forceinline__ const uint8_t* values_of(int group) const {
    constexpr int kTileGroups = kTileTokens / kTurnTokens;
    const int first = tile_begin(group / kTileGroups) + group % kTileGroups * kTurnTokens;
    const int t = min(first + kGroupTokens * warp, last) & ~3;
    return values + static_cast<int64_t>(page_of(t)) * page_bytes + kv.ValueGroup((t & page_mask) >> 2) * 4;
  }
  __device__ __forceinline__ void LoadKeys(int tile, uint4 (&k_words)[kSlots]) const {
    const uint8_t* const from = keys_of(tile);
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      k_words[j] = uint4{};
      if (warp * kSlots + j < q_words) {
        k_words[j] = __ldcg(reinterpret_cast<const uint4*>(from + kv.KeyWord(j) * 4));
      }
    }
  }
  template <int kGroups>
  __device__ __forceinline__ void LoadValues(int group, ValueWords<kSlots> (&v_words)[kGroups]) const {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) v_words[i].Load(values_of(group + i), lane, kv);
  }
  __device__ __forceinline__ const float* scale_at(const float* scales, int t) const {
    return scales + kv.Scale(page_of(t), kv_head, t & page_mask);
  }
  __device__ __forceinline__ void LoadEarlyScales() {
    early_k_scale = *scale_at(kv.k_scales, min(own_token, last));
    early_v_scale = IsPerToken(kPhase) ? *scale_at(kv.v_scales, min(early_v_token, last)) : 0.0f;
  }
  __device__ __forceinline__ float k_scale_of(int t, bool early) const {
    if constexpr (kFresh) {
      if (t >= info.start_position) return fresh.k_scales[t - info.start_position];
    }
    return early ? early_k_scale : *scale_at(kv.k_scales, t);
  }
  __device__ __forceinline__ float v_scale_of(int t) const {
    if constexpr (kFresh) {
      if (t >= info.start_position) return fresh.v_scales[t - info.start_position];
    }
    return t == early_v_token ? early_v_scale : *scale_at(kv.v_scales, t);
  }
  __device__ __forceinline__ uint32_t key_word(int t, int word) const {
    if constexpr (kFresh) {
      if (t >= info.start_position) return fresh.k_words[word][t - (info.start_position & ~3)];
    }
    return __ldcg(kv.k_words + kv.KWord(page_of(t), kv_head, word, t & page_mask));
  }
  __device__ __forceinline__ uint32_t value_word(int t, int dim) const {  // of positions t .. t + 3
    const uint32_t v = __ldcg(kv.v_words + kv.VWord(page_of(min(t, last)), kv_head, (t & page_mask) >> 2, dim));
    if constexpr (kFresh) {
      if (t + 4 > info.start_position) return MergeFresh(fresh, info, t, dim, v);
    }
    return v;
  }
  // The value to quantize: p, or p * s_v[t].
  __device__ __forceinline__ float weight_of(int t, float e, float sum) const {
    const float p = e / sum;
    if constexpr (!IsPerToken(kPhase)) return p;
    return p * v_scale_of(t);
  }
  // A score, then an exponential, then a weight that waits in memory.
  __device__ __forceinline__ float kept(int t) const { return in_shared ? s.scores[t] : __ldcg(spill + t); }
};

}  // namespace stoch::cuda::attention_row
