// SC attention of single rows: a cluster of blocks per row and query head, count-table rows in shared memory.
//
// For a fixed query, count[mask(d)][|q_d|][.] is one row of at most 128 bytes per dimension: exactly one word in each
// shared-memory bank, so 32 lanes that look 32 tokens up in it never conflict. The same holds for p v, with one row per
// token and lanes over dimensions. A short context is a few thousand instructions of each warp, executed once: they are
// what it costs, so keys and values come 16 bytes at a time. The blocks of a cluster take every size-th tile of 128
// tokens; counts are integers, so splitting them is exact, and the softmax in between is done by every block for the
// whole row (an exponential costs less than another cluster barrier). A short context is one block's work: the others
// leave at once, so that a graph recorded for long contexts does not make short ones wait at cluster barriers.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/attention_row_fresh.cuh"
#include "kernels/cuda/attention_row_words.cuh"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/cluster_launch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/table_lookup.cuh"
#include "kernels/math/elementary.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kRowLanes;
constexpr int kWarps = kBlockWarps;
constexpr int kTileTokens = 32 * kLaneTokens;
constexpr int kRoundTiles = kThreads / kTileTokens;      // tiles between two barriers of the score loop
constexpr int kStageTokens = 256;                        // probability rows staged at once
constexpr int kChunkGroups = kStageTokens / 4 / kWarps;  // of one warp: groups of four tokens in a stage
constexpr int kSoloTokens = 256;                         // up to here one block beats a cluster
constexpr int kMaxSharedPages = 128;

// kFresh: kPerToken that also quantizes and appends the rows of the pass. kHeadMax only finds the largest probability;
// kHeadOutput then quantizes with it.
enum class Phase : uint8_t { kPerToken, kFresh, kPerRow, kHeadMax, kHeadOutput };
constexpr bool IsPerToken(Phase phase) { return phase == Phase::kPerToken || phase == Phase::kFresh; }

struct RowArgs {
  AttentionArgs attention;
  ScTables qk, av;
  QueryCodes q;
  WindowScales window;
  const int32_t* row_list = nullptr;  // null: rows row_offset, row_offset + 1, ...
  int32_t row_offset = 0;
  float* spill = nullptr;  // [grid rows][num_heads][spill_stride]: scores of contexts beyond shared_scores
  int64_t spill_stride = 0;
  int32_t shared_scores = 0;
  int32_t stage_rows = 0;
  int32_t cluster = 1;
};

// Shared memory of one block, in this order.
struct SharedLayout {
  uint8_t* stage;   // [stage_rows][kRowBytes] count rows
  int32_t* parts;   // [kWarps][kThreads] partial counts; then [kWarps][head_dim]
  int32_t* gather;  // [cluster size][head_dim]
  uint32_t* codes;  // [kStageTokens / 4]
  float* reduce;    // [kRowLanes]
  float* scores;    // [shared_scores]
};

__host__ __device__ inline int PartsCount(int head_dim) { return kWarps * (head_dim > kThreads ? head_dim : kThreads); }

__host__ __device__ inline size_t SharedBytes(int stage_rows, int head_dim, int cluster, int shared_scores) {
  return static_cast<size_t>(stage_rows) * kRowBytes +
         4 * static_cast<size_t>(PartsCount(head_dim) + cluster * head_dim + kStageTokens / 4 + kRowLanes +
                                 shared_scores);
}

__device__ SharedLayout MakeLayout(void* memory, int stage_rows, int head_dim, int cluster) {
  SharedLayout s;
  s.stage = static_cast<uint8_t*>(memory);
  s.parts = reinterpret_cast<int32_t*>(s.stage + stage_rows * kRowBytes);
  s.gather = s.parts + PartsCount(head_dim);
  s.codes = reinterpret_cast<uint32_t*>(s.gather + cluster * head_dim);
  s.reduce = reinterpret_cast<float*>(s.codes + kStageTokens / 4);
  s.scores = s.reduce + kRowLanes;
  return s;
}

// kCrowded: for more rows and heads than multiprocessors. A block then loads little ahead, and the registers that this
// saves let others run beside it while it waits: two tiles ahead and a stage's values take 180 registers of a thread,
// which leaves room for one block alone.
constexpr int CrowdedBlocks(int slots) { return slots <= 4 ? 4 : 2; }

template <int kSlots, Phase kPhase, bool kCrowded>
__global__ void __launch_bounds__(kThreads, kCrowded ? CrowdedBlocks(kSlots) : 1) ScRowKernel(const RowArgs args) {
  constexpr int kBatchTiles = kCrowded ? 1 : kRoundTiles;    // tiles whose keys are loaded together
  constexpr int kValueGroups = kCrowded ? 4 : kChunkGroups;  // groups whose values are
  extern __shared__ __align__(256) uint8_t shared_memory[];  // LookUpWord wants rows there
  __shared__ int32_t shared_pages[kMaxSharedPages];
  __shared__ std::conditional_t<kPhase == Phase::kFresh, FreshRows, char> fresh;
  const AttentionArgs& a = args.attention;
  const KvView& kv = a.kv;
  StartNext();
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid & 31;
  const int warp = tid >> 5;
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / a.group;
  const int grid_row = static_cast<int>(blockIdx.z);
  const int row = args.row_list != nullptr ? args.row_list[grid_row] : args.row_offset + grid_row;
  const int head_dim = kv.head_dim;
  const int q_words = head_dim / 4;
  const PassRow info = a.pass.rows[row];  // of the pass, which was there before its first kernel
  const int32_t sequence = info.sequence;
  const int length = info.position + 1;
  const int rank = Cluster::Rank();
  if (rank != 0 && length <= kSoloTokens) return;
  const int cluster = length <= kSoloTokens ? 1 : Cluster::Size();
  if (cluster > 1) Cluster::Arrive();

  const int tiles = (length + kTileTokens - 1) / kTileTokens;
  const int own_tiles = rank < tiles ? (tiles - rank + cluster - 1) / cluster : 0;
  // Up to the last group of four of this block's last tile that the context reaches.
  const int own_tokens =
      min(own_tiles * kTileTokens,
          (own_tiles - 1) * kTileTokens + (length - (rank + (own_tiles - 1) * cluster) * kTileTokens + 3) / 4 * 4);
  const auto tile_begin = [&](int tile) { return (tile * cluster + rank) * kTileTokens; };  // of this block's tiles
  const auto token_of = [&](int local) {  // of this block's tokens, in tile order
    return tile_begin(local / kTileTokens) + local % kTileTokens;
  };
  SharedLayout s = MakeLayout(shared_memory, args.stage_rows, head_dim, args.cluster);
  const bool in_shared = length <= args.shared_scores;
  float* spill = args.spill + (static_cast<int64_t>(grid_row) * a.num_heads + head) * args.spill_stride;

  // ---- the pass's own rows, page table, count rows of q
  const int page_mask = kv.page_tokens - 1;
  const int32_t* pages = a.pass.pages + static_cast<int64_t>(sequence) * a.pass.max_pages;
  const int num_pages = (length - 1 >> kv.page_shift) + 1;
  if (num_pages <= kMaxSharedPages) {
    if (tid < num_pages) shared_pages[tid] = pages[tid];
    pages = shared_pages;
  }
  if constexpr (kPhase == Phase::kFresh) {
    constexpr int kLineFloats = 32;
    if (tid * kLineFloats < head_dim) PrefetchL2Line(a.rope + info.position * a.rope_stride + tid * kLineFloats);
  }
  WaitForPrevious();
  const int64_t q_vector = static_cast<int64_t>(row) * a.num_heads + head;
  const uint32_t* q_codes = args.q.words + q_vector * q_words;
  if constexpr (kPhase == Phase::kFresh) {
    QuantizeFresh<kWarps, (kSlots + 1) / 2>(a, args.qk.q_max, args.av.q_max, info, head, fresh);
    q_codes = fresh.q_words;
  }
  __syncthreads();

  // Loads of keys and values are in flight while the table rows they are looked up in come in. Positions of the pass
  // are taken from `fresh` where they are looked up; here they stand for a position before.
  const int last = kPhase == Phase::kFresh ? max(info.start_position - 1, 0) : length - 1;
  const int32_t page_bytes = kv.num_kv_heads * head_dim << kv.page_shift;
  const auto* keys = reinterpret_cast<const uint8_t*>(kv.k_words) + (kv_head * head_dim << kv.page_shift);
  const auto* values = reinterpret_cast<const uint8_t*>(kv.v_words) + (kv_head * head_dim << kv.page_shift) +
                       ValueWords<kSlots>::Dim(lane, 0) * 4;
  const auto load_keys = [&](int first_tile, uint4(&k_words)[kBatchTiles][kSlots]) {
#pragma unroll
    for (int i = 0; i < kBatchTiles; ++i) {
      const int t = min(tile_begin(first_tile + i) + lane * kLaneTokens, last) & ~3;
      const uint8_t* k = keys + static_cast<int64_t>(pages[t >> kv.page_shift]) * page_bytes;
#pragma unroll
      for (int j = 0; j < kSlots; ++j) {
        if (warp * kSlots + j >= q_words) break;
        const int word = ((warp * kSlots + j) << kv.page_shift) + (t & page_mask);
        k_words[i][j] = __ldcg(reinterpret_cast<const uint4*>(k + 4 * word));
      }
    }
  };
  const auto load_values = [&](int first, int group, ValueWords<kSlots>(&v_words)[kValueGroups]) {
#pragma unroll
    for (int i = 0; i < kValueGroups; ++i) {
      const int local = 4 * kWarps * (group + i);
      const int t = min(tile_begin((first + local) / kTileTokens) + local % kTileTokens + 4 * warp, last) & ~3;
      v_words[i].Load(
          values + static_cast<int64_t>(pages[t >> kv.page_shift]) * page_bytes + (t & page_mask) * head_dim, lane,
          head_dim);
    }
  };
  const auto key_word = [&](int t, int word) {
    if constexpr (kPhase == Phase::kFresh) {
      if (t >= info.start_position) return fresh.k_words[word][t - info.start_position];
    }
    return __ldcg(kv.k_words + kv.KWord(pages[t >> kv.page_shift], kv_head, word, t & page_mask));
  };
  const auto value_word = [&](int t, int dim) {  // of positions t .. t + 3
    const uint32_t v =
        __ldcg(kv.v_words + kv.VWord(pages[min(t, last) >> kv.page_shift], kv_head, (t & page_mask) >> 2, dim));
    if constexpr (kPhase == Phase::kFresh) {
      if (t + 4 > info.start_position) return MergeFresh(fresh, info, t, dim, v);
    }
    return v;
  };
  uint4 k_words[kBatchTiles][kSlots] = {};
  ValueWords<kSlots> v_words[kValueGroups];
  load_keys(0, k_words);
  if constexpr (kPhase != Phase::kHeadMax && !kCrowded) load_values(0, 0, v_words);
  StageRows<kThreads>(s.stage, args.qk, head_dim, [&](int d) {
    return TableRow{d, reinterpret_cast<const uint8_t*>(q_codes)[d] & 0x7f};
  });
  float q_scale = 0.0f;
  if constexpr (kPhase == Phase::kFresh) {
    q_scale = fresh.q_scale;
  } else {
    q_scale = args.q.scales[q_vector];
  }
  uint32_t q_word[kSlots];  // of this warp's slice of the dimensions
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    const int w = warp * kSlots + i;
    q_word[i] = w < q_words ? q_codes[w] : 0;
  }
  const auto k_scale_of = [&](int t) {
    if constexpr (kPhase == Phase::kFresh) {
      if (t >= info.start_position) return fresh.k_scales[t - info.start_position];
    }
    return kv.k_scales[kv.Scale(pages[t >> kv.page_shift], kv_head, t & page_mask)];
  };
  const auto v_scale_of = [&](int t) {
    if constexpr (kPhase == Phase::kFresh) {
      if (t >= info.start_position) return fresh.v_scales[t - info.start_position];
    }
    return kv.v_scales[kv.Scale(pages[t >> kv.page_shift], kv_head, t & page_mask)];
  };
  const float early_k_scale = k_scale_of(min(token_of(tid), length - 1));
  const float early_v_scale = IsPerToken(kPhase) ? v_scale_of(min(tid, length - 1)) : 0.0f;
  if constexpr (kPhase == Phase::kFresh) {
    if (rank == 0 && head % a.group == 0) AppendFresh(kv, info, kv_head, pages[num_pages - 1], fresh);
  }
  uint32_t q_tops = 0;
#pragma unroll
  for (int j = 0; j < kSlots; ++j) q_tops |= TopBytes(args.qk, q_word[j]);
  const uint32_t q_rows = static_cast<uint32_t>(__cvta_generic_to_shared(s.stage)) + warp * (kSlots * 4 * kRowBytes);
  __syncthreads();
  if (cluster > 1) Cluster::Wait();  // every block runs: its shared memory may be written

  // ---- scores
  float largest = BitsToFloat(0xff800000u);
  for (int first = 0; first < own_tiles; first += kRoundTiles) {
    const int round = min(kRoundTiles, own_tiles - first);
    for (int batch = 0; batch < round; batch += kBatchTiles) {
      uint4 now[kBatchTiles][kSlots];
#pragma unroll
      for (int i = 0; i < kBatchTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kSlots; ++j) now[i][j] = k_words[i][j];
      }
      if (first + batch + kBatchTiles < own_tiles) load_keys(first + batch + kBatchTiles, k_words);
#pragma unroll
      for (int i = 0; i < kBatchTiles; ++i) {
        if (batch + i >= round) break;
        const int local = (batch + i) * kTileTokens + lane * kLaneTokens;
        if constexpr (kPhase == Phase::kFresh)
          TakeFresh<kSlots>(fresh, info, token_of(first * kTileTokens + local), warp, now[i]);
        Counts counts[kLaneTokens];
        LookUpKeys<kSlots>(now[i], q_word, q_rows, q_words - warp * kSlots, counts);
        *reinterpret_cast<int4*>(s.parts + warp * kThreads + local) =
            make_int4(counts[0].Sum(), counts[1].Sum(), counts[2].Sum(), counts[3].Sum());
      }
    }
    if (q_tops != 0) {
      __syncwarp();
      // Rare, and out of the loop above, which is executed once and costs by the instruction.
#pragma unroll 1
      for (int word = warp * kSlots; word < min((warp + 1) * kSlots, q_words); ++word) {
        const uint32_t q = q_codes[word];
        const uint32_t tops = TopBytes(args.qk, q);
        if (tops == 0) continue;
#pragma unroll 1
        for (int i = lane; i < round * kTileTokens; i += 32) {
          const int t = min(token_of(first * kTileTokens + i), length - 1);
          s.parts[warp * kThreads + i] += TopCorrection(args.qk, tops, key_word(t, word), q);
        }
      }
    }
    __syncthreads();
    const int t = token_of(first * kTileTokens + tid);
    if (tid < round * kTileTokens && t < length) {
      int32_t sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += s.parts[w * kThreads + tid];
      const float k_scale = first == 0 ? early_k_scale : k_scale_of(t);
      const float score = BipolarProduct(sum, args.qk.gain, q_scale, k_scale) * a.inv_sqrt;
      largest = fmaxf(largest, score);
      if (in_shared) {
#pragma unroll 1
        for (int r = 0; r < cluster; ++r) Cluster::At(s.scores, r)[t] = score;
      } else {
        __stcg(spill + t, score);
      }
    }
    __syncthreads();
  }
  if (cluster > 1) Cluster::Sync();

    // ---- softmax of the whole row; thread j is lane j of the sum
#pragma unroll 1
  for (int t = tid; t < length; t += kThreads) {
    largest = fmaxf(largest, in_shared ? s.scores[t] : __ldcg(spill + t));
  }
  largest = BlockMax(largest, s.reduce);
  float sum = 0.0f;
#pragma unroll 1
  for (int t = tid; t < length; t += kThreads) {
    const float e = Exp((in_shared ? s.scores[t] : __ldcg(spill + t)) - largest);
    if (in_shared) s.scores[t] = e;
    sum = sum + e;
  }
  sum = BlockFoldLanes(sum, s.reduce);
  if (tid == 0 && !IsFinite(sum)) a.finite.Report();
  const auto weight_of = [&](int t, float e) {  // what is quantized: p, or p * s_v[t]
    const float p = e / sum;
    if constexpr (!IsPerToken(kPhase)) return p;
    return p * (t == tid ? early_v_scale : v_scale_of(t));
  };
  float p_max = 0.0f;
  if constexpr (kPhase != Phase::kHeadOutput) {
#pragma unroll 1
    for (int t = tid; t < length; t += kThreads) {
      const float p = weight_of(t, in_shared ? s.scores[t] : Exp(__ldcg(spill + t) - largest));
      if (in_shared) s.scores[t] = p;
      p_max = fmaxf(p_max, p);
    }
    p_max = BlockMax(p_max, s.reduce);
  } else {
    p_max = args.window.p_heads[static_cast<int64_t>(sequence) * a.num_heads + head];
  }
  if constexpr (kPhase == Phase::kHeadMax) {
    if (tid == 0 && rank == 0) {
      int* to = reinterpret_cast<int*>(args.window.p_heads + static_cast<int64_t>(sequence) * a.num_heads + head);
      atomicMax(to, static_cast<int>(FloatToBits(p_max)));  // not negative: ordered as integers
    }
    return;
  }
  const float p_scale = BipolarScale(p_max, args.av.q_max);

  // ---- p v over this block's tokens
  Counts acc[kSlots];
  int32_t top_sum[kSlots] = {};
  const uint32_t p_rows = static_cast<uint32_t>(__cvta_generic_to_shared(s.stage)) + warp * (4 * kRowBytes);
  for (int first = 0; first < own_tokens; first += kStageTokens) {
    const int tokens = min(kStageTokens, own_tokens - first);
    __syncthreads();  // scores are final, the stage is free
    if (tid < tokens) {
      const int t = token_of(first + tid);
      int level = 0;
      if (t < length) {
        float p = in_shared ? s.scores[t] : weight_of(t, Exp(__ldcg(spill + t) - largest));
        if (kPhase == Phase::kHeadOutput && in_shared) p = weight_of(t, p);
        level = BipolarLevel(p, p_scale, args.av.q_max);
      }
      reinterpret_cast<uint8_t*>(s.codes)[tid] = static_cast<uint8_t>(level);
    }
    __syncthreads();
    StageRows<kThreads>(s.stage, args.av, tokens, [&](int i) {
      return TableRow{token_of(first + i), reinterpret_cast<const uint8_t*>(s.codes)[i]};
    });
    __syncthreads();
#pragma unroll kCrowded ? 1 : 8
    for (int group = 0; group < kChunkGroups; group += kValueGroups) {
      if (4 * (warp + kWarps * group) >= tokens) break;
      if constexpr (kCrowded) load_values(first, group, v_words);
#pragma unroll
      for (int i = 0; i < kValueGroups; ++i) {
        const int g = warp + kWarps * (group + i);
        const uint32_t p_word = g < tokens / 4 ? s.codes[g] : 0;
        if (p_word == 0) continue;  // level 0 counts nothing
        uint32_t(&v)[kSlots] = v_words[i].word;
        if constexpr (kPhase == Phase::kFresh) {
          const int t = token_of(first + 4 * g);
          if (t + 4 > info.start_position) {
#pragma unroll
            for (int j = 0; j < kSlots; ++j) {
              const int dim = ValueWords<kSlots>::Dim(lane, j);
              if (dim < head_dim) v[j] = MergeFresh(fresh, info, t, dim, v[j]);
            }
          }
        }
        const uint32_t rows = p_rows + (group + i) * (kWarps * 4 * kRowBytes);
#pragma unroll
        for (int j = 0; j < kSlots; ++j) LookUpWord<0>(v[j], 0, rows, acc[j]);
      }
    }
    if (args.av.top_is_256) {
#pragma unroll 1
      for (int g = warp; g < tokens / 4; g += kWarps) {
        const uint32_t tops = TopBytes(args.av, s.codes[g]);
        if (tops == 0) continue;
#pragma unroll
        for (int j = 0; j < kSlots; ++j) {
          const int dim = ValueWords<kSlots>::Dim(lane, j);
          if (dim < head_dim) top_sum[j] += TopCorrection(args.av, tops, value_word(token_of(first + 4 * g), dim), 0);
        }
      }
    }
    if (!kCrowded && first + kStageTokens < own_tokens) load_values(first + kStageTokens, 0, v_words);
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kSlots; ++j) {
    const int dim = ValueWords<kSlots>::Dim(lane, j);
    if (dim < head_dim) s.parts[warp * head_dim + dim] = acc[j].Sum() + top_sum[j];
  }
  __syncthreads();
  int32_t total = 0;
  if (tid < head_dim) {
    for (int w = 0; w < kWarps; ++w) total += s.parts[w * head_dim + tid];
    if (rank != 0) Cluster::At(s.gather, 0)[rank * head_dim + tid] = total;
  }
  if (cluster > 1) Cluster::Sync();
  if (rank != 0 || tid >= head_dim) return;
#pragma unroll 1
  for (int r = 1; r < cluster; ++r) total += s.gather[r * head_dim + tid];
  float scale = p_scale;
  if constexpr (!IsPerToken(kPhase)) {
    scale =
        p_scale * args.window.v_channels[(static_cast<int64_t>(sequence) * kv.num_kv_heads + kv_head) * head_dim + tid];
  }
  a.out[row * a.out_stride + static_cast<int64_t>(head) * head_dim + tid] =
      (static_cast<float>(total) * args.av.gain) * scale;
}

template <int kSlots, Phase kPhase, bool kCrowded>
void LaunchKernel(DeviceContext& ctx, const RowArgs& args, int rows) {
  const size_t shared = SharedBytes(args.stage_rows, args.attention.kv.head_dim, args.cluster, args.shared_scores);
  const dim3 grid(static_cast<unsigned>(args.cluster), static_cast<unsigned>(args.attention.num_heads),
                  static_cast<unsigned>(rows));
  LaunchClusters(ctx, &ScRowKernel<kSlots, kPhase, kCrowded>, grid, kThreads, shared, args);
}

template <int kSlots, Phase kPhase>
void LaunchDensity(DeviceContext& ctx, const RowArgs& args, int rows) {
  if constexpr (IsPerToken(kPhase)) {
    if (int64_t{rows} * args.attention.num_heads * args.cluster > ctx.sm_count) {
      return LaunchKernel<kSlots, kPhase, true>(ctx, args, rows);
    }
  }
  LaunchKernel<kSlots, kPhase, false>(ctx, args, rows);
}

template <Phase kPhase>
void LaunchSlots(DeviceContext& ctx, const RowArgs& args, int rows) {
  const int head_dim = args.attention.kv.head_dim;
  if (head_dim <= 32) return LaunchDensity<1, kPhase>(ctx, args, rows);
  if (head_dim <= 64) return LaunchDensity<2, kPhase>(ctx, args, rows);
  if (head_dim <= 128) return LaunchDensity<4, kPhase>(ctx, args, rows);
  LaunchDensity<8, kPhase>(ctx, args, rows);
}

// Blocks per row and head: enough to fill the GPU, no more than the context has tiles for.
int ClusterSize(const DeviceContext& ctx, int64_t row_heads, int max_length) {
  if (ctx.compute_capability < 90 || max_length <= kSoloTokens) return 1;
  int cluster = 1;
  while (cluster < 8 && row_heads * cluster < ctx.sm_count && cluster * kTileTokens < max_length) cluster *= 2;
  return cluster;
}

}  // namespace

void LaunchScRows(DeviceContext& ctx, const AttentionArgs& args, AttentionMode mode, const ScTables& qk,
                  const ScTables& av, const QueryCodes& q, const WindowScales& scales, const RowSet& rows,
                  const ScoreSpill& spill) {
  RowArgs row_args;
  row_args.attention = args;
  row_args.qk = qk;
  row_args.av = av;
  row_args.q = q;
  row_args.window = scales;
  row_args.row_list = rows.list;
  row_args.stage_rows = std::max(args.kv.head_dim, kStageTokens);
  row_args.shared_scores = std::min((rows.max_length + 255) / 256 * 256, kMaxSharedScores);
  row_args.spill = spill.scores;
  row_args.spill_stride = spill.stride;
  const auto launch = [&]<Phase kPhase>() {
    for (int first = 0; first < rows.count; first += spill.rows_at_once) {
      const int count = std::min(spill.rows_at_once, rows.count - first);
      RowArgs part = row_args;
      if (rows.list != nullptr) part.row_list = rows.list + first;
      part.row_offset = first;
      part.cluster = ClusterSize(ctx, static_cast<int64_t>(count) * args.num_heads, rows.max_length);
      LaunchSlots<kPhase>(ctx, part, count);
    }
  };
  switch (mode) {
    case AttentionMode::kPerToken:
      if (q.words == nullptr) {
        launch.operator()<Phase::kFresh>();
      } else {
        launch.operator()<Phase::kPerToken>();
      }
      break;
    case AttentionMode::kPerRow: launch.operator()<Phase::kPerRow>(); break;
    case AttentionMode::kPerHead:
      launch.operator()<Phase::kHeadMax>();
      launch.operator()<Phase::kHeadOutput>();
      break;
    case AttentionMode::kExact: break;
  }
}

}  // namespace stoch::cuda
