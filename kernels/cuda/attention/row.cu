// SC attention of single rows: a cluster of blocks per row and query head, count-table rows in shared memory.
//
// For a fixed query, count[mask(d)][|q_d|][.] is one row of at most 128 bytes per dimension: exactly one word in each
// shared-memory bank, so 32 lanes that look 32 tokens up in it never conflict. The same holds for p v, with one row per
// token and lanes over dimensions. A short context is two thousand instructions of each warp, executed once: they and
// the waits between them are what it costs, so keys and values come 16 bytes at a time, a warp stages what it looks up
// itself, and a thread takes its token from the score to the code of its probability. The blocks of a cluster take
// every size-th tile of 128 tokens; counts are integers, so splitting them is exact, and the softmax in between is done
// by every block for the whole row (an exponential costs less than another cluster barrier). A short context is one
// block's work: the others leave at once, so that a graph recorded for long contexts does not make short ones wait at
// cluster barriers.
#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/cuda/attention/row_args.cuh"
#include "kernels/cuda/attention/row_fresh.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/table_lookup.cuh"
#include "kernels/cuda/runtime/cluster_launch.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/elementary.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {
namespace attention_row {
namespace {

// kBlocks: that are to be on a multiprocessor at a time. Two tiles ahead and a stage's values take 170 registers of a
// thread, which leaves room for one block alone; of two, each has 128 (8 sequences of 8B: 3 % of a step against four).
// Where there are more, a block loads little ahead, and the registers that this saves let others run beside it while it
// waits.
constexpr int CrowdedBlocks(int slots) { return slots <= 4 ? 4 : 2; }

template <int kSlots, Phase kPhase, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks) ScRowKernel(const RowArgs args) {
  constexpr bool kCrowded = kBlocks > 2 || (kBlocks == 2 && CrowdedBlocks(kSlots) == 2);
  constexpr int kBatchTiles = kCrowded ? 1 : kRoundTiles;    // tiles whose keys are loaded together
  constexpr int kValueGroups = kCrowded ? 2 : kChunkGroups;  // groups whose values are
  constexpr bool kFresh = kPhase == Phase::kFresh;
  extern __shared__ __align__(256) uint8_t shared_memory[];
  __shared__ int32_t shared_pages[kMaxSharedPages];
  __shared__ std::conditional_t<kFresh, FreshRows, char> fresh;
  const AttentionArgs& a = args.attention;
  const KvView& kv = a.kv;
  StartNext();
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid & 31;
  const int warp = __shfl_sync(0xffffffffu, tid >> 5, 0);  // the compiler knows it to be the same in all lanes
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / a.group;
  const int grid_row = static_cast<int>(blockIdx.z);
  const int row = args.row_list != nullptr ? args.row_list[grid_row] : args.row_offset + grid_row;
  const int head_dim = kv.head_dim;
  const int q_words = head_dim / 4;
  const PassRow info = a.pass.rows[row];  // of the pass, which was there before its first kernel
  WaitForPrevious();                      // before anybody looks at it
  const int32_t sequence = info.sequence;
  const int length = info.position + 1;
  const bool solo = length <= kSoloTokens;
  const int rank = Cluster::Rank();
  if (rank != 0 && solo) return;
  const int cluster_shift = solo ? 0 : args.cluster_shift;
  const int cluster = 1 << cluster_shift;
  if (cluster > 1) Cluster::Arrive();

  const int tiles = (length + kTileTokens - 1) / kTileTokens;
  const int own_tiles = rank < tiles ? (tiles - rank + cluster - 1) >> cluster_shift : 0;
  const auto tile_begin = [&](int tile) {  // of this block's tiles
    return ((tile << cluster_shift) + rank) * kTileTokens;
  };
  const auto token_of = [&](int local) {  // of this block's tokens, in tile order
    return tile_begin(local / kTileTokens) + local % kTileTokens;
  };
  // Up to the last group of four of this block's last tile that the context reaches.
  const int own_tokens =
      min(own_tiles * kTileTokens, (own_tiles - 1) * kTileTokens + (length - tile_begin(own_tiles - 1) + 3) / 4 * 4);
  const SharedLayout s = MakeLayout(shared_memory, head_dim, args.cluster);
  const bool in_shared = length <= args.shared_scores;
  float* spill = args.spill + (static_cast<int64_t>(grid_row) * a.num_heads + head) * args.spill_stride;

  // ---- places in the cache
  // Positions of the pass are taken from `fresh` where they are looked up; here they stand for a position before.
  const int last = kFresh ? max(info.start_position - 1, 0) : length - 1;
  const int page_mask = kv.page_tokens - 1;
  const int32_t page_bytes = kv.num_kv_heads * head_dim << kv.page_shift;
  const auto* keys = reinterpret_cast<const uint8_t*>(kv.k_words) + (kv_head * head_dim << kv.page_shift) +
                     (warp * kSlots * 4 << kv.page_shift);
  const auto* values = reinterpret_cast<const uint8_t*>(kv.v_words) + (kv_head * head_dim << kv.page_shift) +
                       ValueWords<kSlots>::Dim(lane, 0) * 4;
  const int32_t* const pages = a.pass.pages + static_cast<int64_t>(sequence) * a.pass.max_pages;
  const int num_pages = (length - 1 >> kv.page_shift) + 1;
  const auto page_of = [&](int t) {
    const int page = t >> kv.page_shift;
    return page < kMaxSharedPages ? shared_pages[page] : __ldg(pages + page);
  };
  // Where a lane's keys of one of this block's tiles start, and its values of one of the warp's groups.
  const auto keys_of = [&](int tile) {
    const int t = min(tile_begin(tile) + lane * kLaneTokens, last) & ~3;
    return keys + static_cast<int64_t>(page_of(t)) * page_bytes + (t & page_mask) * 4;
  };
  const auto values_of = [&](int group) {
    constexpr int kTileGroups = kTileTokens / kTurnTokens;
    const int first = tile_begin(group / kTileGroups) + group % kTileGroups * kTurnTokens;
    const int t = min(first + kGroupTokens * warp, last) & ~3;
    return values + static_cast<int64_t>(page_of(t)) * page_bytes + (t & page_mask) * head_dim;
  };
  const auto load_keys = [&](const uint8_t* from, uint4(&k_words)[kSlots]) {
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      k_words[j] = uint4{};
      if (warp * kSlots + j < q_words) {
        k_words[j] = __ldcg(reinterpret_cast<const uint4*>(from + (j * 4 << kv.page_shift)));
      }
    }
  };
  const auto scale_at = [&](const float* scales, int t) {
    return scales + kv.Scale(page_of(t), kv_head, t & page_mask);
  };
  const int own_token = token_of(OwnToken());
  const int early_v_token = solo ? own_token : tid;  // in what order the softmax goes

  // ---- the query, and the pass's own rows
  // By the last warps: the first have rows to quantize.
  const int shared_page = kThreads - 1 - tid;
  if (shared_page < min(num_pages, kMaxSharedPages)) shared_pages[shared_page] = pages[shared_page];
  const int64_t q_vector = static_cast<int64_t>(row) * a.num_heads + head;
  const uint32_t* q_codes = args.q.words + q_vector * q_words;
  float q_scale = 0.0f;
  if constexpr (kFresh) {
    QuantizeFresh<kWarps, (kSlots + 1) / 2>(a, args.qk.q_max, args.av.q_max, info, head, kv_head, fresh);
    q_codes = fresh.q_words;
  } else {
    q_scale = args.q.scales[q_vector];
  }
  __syncthreads();
  uint32_t q_word[kSlots];  // of this warp's slice of the dimensions
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    const int w = warp * kSlots + i;
    q_word[i] = w < q_words ? q_codes[w] : 0;
  }
  RowCopies<kSlots> q_rows;
  q_rows.Load(args.qk, [&](int i) {
    return TablePlace(args.qk, (warp * kSlots + i) * 4 + lane / 8, q_word[i] >> lane / 8 * 8 & 0x7f);
  });
  uint4 k_words[kBatchTiles][kSlots];
#pragma unroll
  for (int i = 0; i < kBatchTiles; ++i) load_keys(keys_of(i), k_words[i]);
  if constexpr (kFresh) {
    q_scale = fresh.q_scale;
    if (rank == 0 && head == kv_head * a.group) AppendFresh(kv, info, kv_head, page_of(info.position), fresh);
  }
  uint8_t* const slice = s.stage + warp * (kSlots * 4 * kRowBytes);
  q_rows.template Store<kGroupTokens>(args.qk, slice);
  const uint32_t slice_rows = static_cast<uint32_t>(__cvta_generic_to_shared(slice));
  // Needed later, so behind what everyone waits for: loads are answered in order.
  const float early_k_scale = *scale_at(kv.k_scales, min(own_token, last));
  const float early_v_scale = IsPerToken(kPhase) ? *scale_at(kv.v_scales, min(early_v_token, last)) : 0.0f;
  ValueWords<kSlots> v_words[kValueGroups];
  const auto load_values = [&](int group) {
#pragma unroll
    for (int i = 0; i < kValueGroups; ++i) v_words[i].Load(values_of(group + i), lane, head_dim);
  };
  if constexpr (kPhase != Phase::kHeadMax && !kCrowded) load_values(0);
  const auto k_scale_of = [&](int t, bool early) {
    if constexpr (kFresh) {
      if (t >= info.start_position) return fresh.k_scales[t - info.start_position];
    }
    return early ? early_k_scale : *scale_at(kv.k_scales, t);
  };
  const auto v_scale_of = [&](int t) {
    if constexpr (kFresh) {
      if (t >= info.start_position) return fresh.v_scales[t - info.start_position];
    }
    return t == early_v_token ? early_v_scale : *scale_at(kv.v_scales, t);
  };
  const auto key_word = [&](int t, int word) {
    if constexpr (kFresh) {
      if (t >= info.start_position) return fresh.k_words[word][t - (info.start_position & ~3)];
    }
    return __ldcg(kv.k_words + kv.KWord(page_of(t), kv_head, word, t & page_mask));
  };
  const auto value_word = [&](int t, int dim) {  // of positions t .. t + 3
    const uint32_t v = __ldcg(kv.v_words + kv.VWord(page_of(min(t, last)), kv_head, (t & page_mask) >> 2, dim));
    if constexpr (kFresh) {
      if (t + 4 > info.start_position) return MergeFresh(fresh, info, t, dim, v);
    }
    return v;
  };
  uint32_t q_tops = 0;
#pragma unroll
  for (int j = 0; j < kSlots; ++j) q_tops |= TopBytes(args.qk, q_word[j]);
  __syncwarp();
  if (cluster > 1) Cluster::Wait();  // every block runs: its shared memory may be written

  // ---- scores
  float score = BitsToFloat(0xff800000u);
  float largest = score;
  for (int first = 0; first < own_tiles; first += kRoundTiles) {
    const int round = min(kRoundTiles, own_tiles - first);
    for (int batch = 0; batch < round; batch += kBatchTiles) {
      uint4 now[kBatchTiles][kSlots];
#pragma unroll
      for (int i = 0; i < kBatchTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kSlots; ++j) now[i][j] = k_words[i][j];
      }
      if (first + batch + kBatchTiles < own_tiles) {
#pragma unroll
        for (int i = 0; i < kBatchTiles; ++i) load_keys(keys_of(first + batch + kBatchTiles + i), k_words[i]);
      }
#pragma unroll
      for (int i = 0; i < kBatchTiles; ++i) {
        if (batch + i >= round) break;
        const int local = (batch + i) * kTileTokens + lane * kLaneTokens;
        if constexpr (kFresh) TakeFresh<kSlots>(fresh, info, token_of(first * kTileTokens + local), warp, now[i]);
        Counts counts[kLaneTokens];
        LookUpKeys<kSlots>(now[i], q_word, slice_rows, q_words - warp * kSlots, counts);
        *reinterpret_cast<int4*>(s.parts + warp * kPaddedLanes + Padded(local)) =
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
          s.parts[warp * kPaddedLanes + Padded(i)] += TopCorrection(args.qk, tops, key_word(t, word), q);
        }
      }
    }
    __syncthreads();
    const int t = token_of(first * kTileTokens + OwnToken());
    if (OwnToken() < round * kTileTokens && t < length) {
      int32_t sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += s.parts[w * kPaddedLanes + Padded(OwnToken())];
      const float k_scale = k_scale_of(t, first == 0);
      score = BipolarProduct(sum, args.qk.gain, q_scale, k_scale) * a.inv_sqrt;
      if (!solo) {
        largest = fmaxf(largest, score);
        if (in_shared) {
#pragma unroll 1
          for (int r = 0; r < cluster; ++r) Cluster::At(s.scores, r)[t] = score;
        } else {
          __stcg(spill + t, score);
        }
      }
    }
    if (!solo) __syncthreads();
  }

  // ---- softmax of the whole row
  const auto weight_of = [&](int t, float e, float sum) {  // what is quantized: p, or p * s_v[t]
    const float p = e / sum;
    if constexpr (!IsPerToken(kPhase)) return p;
    return p * v_scale_of(t);
  };
  float sum = 0.0f;
  float p = 0.0f;  // solo: the weight of the thread's own token
  float p_max = 0.0f;
  if (solo) {
    // A token a thread, from the score to its code: nothing but sums and maxima passes between threads.
    largest = BlockMaxOnce(score, s.largest);
    const float e = own_token < length ? Exp(score - largest) : 0.0f;
    s.reduce[Padded(OwnToken())] = e;
    __syncthreads();
    sum = FoldShared<kPaddedLanes / kWarps>(s.reduce);
    if (own_token < length) p = weight_of(own_token, e, sum);
    if constexpr (kPhase != Phase::kHeadOutput) p_max = BlockMaxOnce(p, s.largest + kWarps);
  } else {
    // Thread j is lane j of the sum.
    if (cluster > 1) Cluster::Sync();
#pragma unroll 1
    for (int t = tid; t < length; t += kThreads) {
      largest = fmaxf(largest, in_shared ? s.scores[t] : __ldcg(spill + t));
    }
    largest = BlockMax(largest, s.reduce);
#pragma unroll 1
    for (int t = tid; t < length; t += kThreads) {
      const float e = Exp((in_shared ? s.scores[t] : __ldcg(spill + t)) - largest);
      if (in_shared) s.scores[t] = e;
      sum = sum + e;
    }
    sum = BlockFoldLanes(sum, s.reduce);
    if constexpr (kPhase != Phase::kHeadOutput) {
#pragma unroll 1
      for (int t = tid; t < length; t += kThreads) {
        const float weight = weight_of(t, in_shared ? s.scores[t] : Exp(__ldcg(spill + t) - largest), sum);
        if (in_shared) s.scores[t] = weight;
        p_max = fmaxf(p_max, weight);
      }
      p_max = BlockMax(p_max, s.reduce);
    }
    __syncthreads();  // scores are final
  }
  if (tid == 0 && !IsFinite(sum)) a.finite.Report();
  if constexpr (kPhase == Phase::kHeadOutput) {
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

  // ---- p v over this block's tokens; until it has its counts, a warp needs no other
  Counts acc[kSlots];
  int32_t top_sum[kSlots] = {};
  uint8_t* const turns = s.stage + warp * (kGroupTokens * kRowBytes);
  const uint32_t turn_rows = static_cast<uint32_t>(__cvta_generic_to_shared(turns));
  [[maybe_unused]] FreshValues<kSlots> fresh_values;
  if constexpr (kFresh) {
    fresh_values.Find(fresh, info, head_dim, [&](int t) {
      const int tile = t / kTileTokens;
      return (tile & (cluster - 1)) == rank ? (tile >> cluster_shift) * kTileTokens + t % kTileTokens : -1;
    });
  }
#pragma unroll 1
  for (int first = 0; first < own_tokens; first += kStageTokens) {
    const int t = token_of(first + OwnToken());
    int level = 0;
    if (first + OwnToken() < own_tokens && t < length) {
      float weight = p;
      if (!solo) {
        weight = in_shared ? s.scores[t] : weight_of(t, Exp(__ldcg(spill + t) - largest), sum);
        if (kPhase == Phase::kHeadOutput && in_shared) weight = weight_of(t, weight, sum);
      }
      level = BipolarLevel(weight, p_scale, args.av.q_max);
    }
    const int place = TablePlace(args.av, t, level);
    const unsigned used = __ballot_sync(0xffffffffu, level != 0);  // level 0 counts nothing
#pragma unroll kCrowded ? 1 : 8
    for (int group = 0; group < kChunkGroups; group += kValueGroups) {
      const unsigned groups = used >> (4 * group);
      if (groups == 0) break;
      RowCopies<kValueGroups> rows;
      rows.Load(args.av, [&](int i) { return __shfl_sync(0xffffffffu, place, 4 * (group + i) + lane / 8); });
      if constexpr (kCrowded) load_values(first / kTurnTokens + group);
      __syncwarp();  // the rows before these were looked up
      rows.template Store<kTurnTokens>(args.av, turns + group * (kTurnTokens * kRowBytes));
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kValueGroups; ++i) {
        if ((groups >> 4 * i & 15) == 0) continue;
        if constexpr (kFresh) {
          if (fresh_values.group == first / kTurnTokens + group + i) fresh_values.Take(v_words[i]);
        }
#pragma unroll
        for (int j = 0; j < kSlots; ++j) {
          LookUpWord<0>(v_words[i].word[j], 0, turn_rows + (group + i) * (kTurnTokens * kRowBytes), acc[j]);
        }
      }
    }
    if (args.av.top_is_256) {
#pragma unroll 1
      for (int g = 0; g < kChunkGroups; ++g) {
        uint32_t codes = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          codes |= static_cast<uint32_t>(__shfl_sync(0xffffffffu, level, 4 * g + i)) << (8 * i);
        }
        const uint32_t tops = TopBytes(args.av, codes);
        if (tops == 0) continue;
        const int of = token_of(first + g * kTurnTokens + warp * kGroupTokens);
#pragma unroll
        for (int j = 0; j < kSlots; ++j) {
          const int dim = ValueWords<kSlots>::Dim(lane, j);
          if (dim < head_dim) top_sum[j] += TopCorrection(args.av, tops, value_word(of, dim), 0);
        }
      }
    }
    if (!kCrowded && first + kStageTokens < own_tokens) load_values((first + kStageTokens) / kTurnTokens);
  }
#pragma unroll
  for (int j = 0; j < kSlots; j += ValueWords<kSlots>::kVector) {
    const int dim = ValueWords<kSlots>::Dim(lane, j);
    if (dim >= head_dim) continue;
    int32_t* const to = s.parts + warp * head_dim + dim;
    const auto count = [&](int i) { return acc[j + i].Sum() + top_sum[j + i]; };
    if constexpr (ValueWords<kSlots>::kVector == 4) {
      *reinterpret_cast<int4*>(to) = make_int4(count(0), count(1), count(2), count(3));
    } else {
#pragma unroll
      for (int i = 0; i < ValueWords<kSlots>::kVector; ++i) to[i] = count(i);
    }
  }
  __syncthreads();
  int32_t total = 0;
  if (tid < head_dim) {
#pragma unroll
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

static_assert(kFixedBytes + kStageRows * kRowBytes == kScRowFixedBytes);
static_assert(sizeof(FreshRows) + kMaxSharedPages * sizeof(int32_t) <= kScRowStaticBytes);

template <int kSlots, Phase kPhase, int kBlocks>
void LaunchKernel(DeviceContext& ctx, const RowArgs& args, int rows, size_t shared) {
  const dim3 grid(static_cast<unsigned>(args.cluster), static_cast<unsigned>(args.attention.num_heads),
                  static_cast<unsigned>(rows));
  LaunchClusters(ctx, &ScRowKernel<kSlots, kPhase, kBlocks>, grid, kThreads, shared, args);
}

template <int kSlots, Phase kPhase>
void LaunchDensity(DeviceContext& ctx, const ScRowPlan& plan, const RowArgs& args, int rows) {
  const auto shared = static_cast<size_t>(plan.shared_bytes);
  if constexpr (IsPerToken(kPhase)) {
    if (plan.blocks_per_sm == CrowdedBlocks(kSlots)) {
      return LaunchKernel<kSlots, kPhase, CrowdedBlocks(kSlots)>(ctx, args, rows, shared);
    }
    if (plan.blocks_per_sm == 2) return LaunchKernel<kSlots, kPhase, 2>(ctx, args, rows, shared);
  }
  LaunchKernel<kSlots, kPhase, 1>(ctx, args, rows, shared);
}

template <Phase kPhase>
void LaunchSlots(DeviceContext& ctx, const ScRowPlan& plan, const RowArgs& args, int rows) {
  const int head_dim = args.attention.kv.head_dim;
  if (head_dim <= 32) return LaunchDensity<1, kPhase>(ctx, plan, args, rows);
  if (head_dim <= 64) return LaunchDensity<2, kPhase>(ctx, plan, args, rows);
  if (head_dim <= 128) return LaunchDensity<4, kPhase>(ctx, plan, args, rows);
  LaunchDensity<8, kPhase>(ctx, plan, args, rows);
}

}  // namespace
}  // namespace attention_row

void LaunchScRows(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTables& qk,
                  const ScTables& av, const QueryCodes& q, const WindowScales& scales, const RowSet& rows,
                  const ScoreSpill& spill) {
  using attention_row::Phase;
  using attention_row::RowArgs;
  RowArgs row_args;
  row_args.attention = args;
  row_args.qk = qk;
  row_args.av = av;
  row_args.q = q;
  row_args.window = scales;
  row_args.row_list = rows.list;
  row_args.spill = spill.scores;
  row_args.spill_stride = spill.stride;
  const auto launch = [&]<Phase kPhase>() {
    for (int first = 0; first < rows.count; first += spill.rows_at_once) {
      const int count = std::min(spill.rows_at_once, rows.count - first);
      RowArgs part = row_args;
      if (rows.list != nullptr) part.row_list = rows.list + first;
      part.row_offset = first;
      const ScRowPlan plan = PlanScRows(ctx.traits, shape, count, rows.max_length);
      part.shared_scores = plan.shared_scores;
      part.cluster = plan.cluster;
      part.cluster_shift = std::countr_zero(static_cast<unsigned>(part.cluster));
      attention_row::LaunchSlots<kPhase>(ctx, plan, part, count);
    }
  };
  switch (shape.mode) {
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
