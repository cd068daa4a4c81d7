// SPDX-License-Identifier: Apache-2.0
// A thread's state in the row kernel: the row and head of its block, and the addresses of keys and values.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention/row_args.cuh"
#include "kernels/cuda/attention/row_fresh.cuh"
#include "kernels/cuda/device/cluster.cuh"

namespace stoch::cuda::attention_row {

// Blocks per SM for which the "crowded" variant of the kernel is compiled. slots: words of four query dimensions that
// each warp takes. Prefetching two tiles of keys and the values of a stage takes 170 registers a thread, which leaves
// room for one block per SM; with two blocks, a thread has 128. A crowded variant prefetches little, and the registers
// saved let more blocks run while one waits.
constexpr int CrowdedBlocks(int slots) { return slots <= 4 ? 4 : 2; }

// Prefetch distances of a kernel that is compiled for kBlocks blocks per SM.
template <int kSlots, int kBlocks>
struct Density {
  static constexpr bool kCrowded = kBlocks > 2 || (kBlocks == 2 && CrowdedBlocks(kSlots) == 2);
  // Tiles whose keys are loaded before the first is looked up.
  static constexpr int kBatchTiles = kCrowded ? 1 : kRoundTiles;
  // Groups of four tokens whose values are loaded before the first is looked up.
  static constexpr int kValueGroups = kCrowded ? 2 : kChunkGroups;
};

// State of one thread. The constructor sets the members that depend only on the grid and the pass, Cut those that
// depend on the context's length. kSlots: words of four query dimensions that each warp takes.
template <int kSlots, Phase kPhase>
struct RowBlock {
  static constexpr bool kFresh = IsFresh(kPhase);
  static constexpr bool kMixed = IsMixed(kPhase);
  using Fresh = std::conditional_t<kFresh, FreshRows, char>;
  using Args = std::conditional_t<kMixed, MixedRowArgs, RowArgs>;

  const Args& args;
  const AttentionArgs& a;
  const KvView& kv;
  // Codes and scales of the rows of the pass, in shared memory (kFresh variants only).
  Fresh& fresh;
  int32_t* shared_pages;  // [kMaxSharedPages] in shared memory: the first entries of the page table
  SharedLayout s;
  // Scores of the row in device memory, used if in_shared is false.
  float* spill;

  PassRow info;
  int tid, lane, warp;
  int head, kv_head, grid_row, row;
  int head_dim, q_words;
  int length;
  int visible;  // the first position that the row sees
  // solo: the context is the work of one block. in_shared: the scores fit in shared memory.
  bool solo, in_shared;
  // Index of the block in its cluster, the number of blocks in the cluster (1 if solo), and its log2.
  int rank, cluster, cluster_shift;
  // Tiles of kTileTokens positions that this block takes, and positions in these tiles.
  int own_tiles, own_tokens;
  // The last position that is loaded from the cache; loads of later positions read this one. In kFresh variants it is
  // the last position before the pass, as the keys and values of the pass come from `fresh`.
  int last;
  int page_mask;
  int32_t page_bytes;
  // Addresses in page 0 of the cache, to which a page's offset is added: the first key word of this warp's slice of
  // dimensions, and the first value word of this lane's dimensions.
  const uint8_t* keys;
  const uint8_t* values;
  const int32_t* pages;
  // Position whose score this thread computes in the first round.
  int own_token;
  // Position whose value scale this thread prefetches: the first one that it reads in the softmax.
  int early_v_token;
  float early_k_scale, early_v_scale;

  std::conditional_t<kMixed, ScTables, char> own_qk, own_av;  // tables of q k and p v at the row's stream lengths

  __device__ __forceinline__ RowBlock(const Args& row_args, Fresh& fresh_rows, int32_t* pages_of_block)
      : args(row_args), a(row_args.attention), kv(a.kv), fresh(fresh_rows), shared_pages(pages_of_block) {
    tid = static_cast<int>(threadIdx.x);
    lane = tid & 31;
    warp = __shfl_sync(0xffffffffu, tid >> 5, 0);  // a shuffle tells the compiler that the warp index is uniform
    head = static_cast<int>(blockIdx.y);
    kv_head = head / a.group;
    grid_row = static_cast<int>(blockIdx.z);
    row = args.row_list != nullptr ? args.row_list[grid_row] : args.row_offset + grid_row;
    head_dim = kv.head_dim;
    q_words = head_dim / 4;
    // The pass was uploaded before its first kernel, so this load need not wait for the previous kernel.
    info = a.pass.rows[row];
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
  // Returns `common` with the table-dependent members replaced by those of `table`, the count table of one stream
  // length.
  __device__ __forceinline__ static ScTables TablesOf(const ScTables& common, const ByteTable& table) {
    ScTables own = common;
    own.counts8 = table.counts;
    own.masks = table.mask_bits + 1;
    own.gain = table.gain;
    own.top_is_256 = table.top_is_256 != 0;
    return own;
  }

  // Computes the members that depend on the context's length. Called by all threads, after WaitForPrevious.
  __device__ __forceinline__ void Cut(uint8_t* shared_memory) {
    cluster_shift = solo ? 0 : args.cluster_shift;
    cluster = 1 << cluster_shift;
    const int tiles = (length + kTileTokens - 1) / kTileTokens;
    own_tiles = rank < tiles ? (tiles - rank + cluster - 1) >> cluster_shift : 0;
    // The positions in the block's tiles. The context's last tile ends at the context's length, rounded up to four.
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
    // The last warps copy the page table, since the first warps have rows to quantize (kFresh).
    const int num_pages = (length - 1 >> kv.page_shift) + 1;
    const int shared_page = kThreads - 1 - tid;
    if (shared_page < min(num_pages, kMaxSharedPages)) shared_pages[shared_page] = pages[shared_page];
  }

  __device__ __forceinline__ int tile_begin(int tile) const {  // first position of this block's tile number `tile`
    return ((tile << cluster_shift) + rank) * kTileTokens;
  }
  // Position of this block's token number `local`, counted tile by tile.
  __device__ __forceinline__ int token_of(int local) const {
    return tile_begin(local / kTileTokens) + local % kTileTokens;
  }
  __device__ __forceinline__ int32_t page_of(int t) const {
    const int page = t >> kv.page_shift;
    return page < kMaxSharedPages ? shared_pages[page] : __ldg(pages + page);
  }
  // keys_of returns the address of this lane's first key word in the block's tile number `tile`, values_of that of its
  // first value word in the warp's group number `group`.
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
  // Codes of dimension dim of the values at positions t .. t + 3.
  __device__ __forceinline__ uint32_t value_word(int t, int dim) const {
    const uint32_t v = __ldcg(kv.v_words + kv.VWord(page_of(min(t, last)), kv_head, (t & page_mask) >> 2, dim));
    if constexpr (kFresh) {
      if (t + 4 > info.start_position) return MergeFresh(fresh, info, t, dim, v);
    }
    return v;
  }
  // The weight (number to quantize) of position t: the probability e / sum, in per-token variants times the value's
  // scale.
  __device__ __forceinline__ float weight_of(int t, float e, float sum) const {
    const float p = e / sum;
    if constexpr (!IsPerToken(kPhase)) return p;
    return p * v_scale_of(t);
  }
  // Returns the stored number of position t: at first a score; in shared memory it becomes an exponential, then a
  // weight.
  __device__ __forceinline__ float kept(int t) const { return in_shared ? s.scores[t] : __ldcg(spill + t); }
};

}  // namespace stoch::cuda::attention_row
