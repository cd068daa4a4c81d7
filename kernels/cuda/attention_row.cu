// SC attention of single rows: a cluster of blocks per row and query head, count-table rows in shared memory.
//
// For a fixed query, count[mask(d)][|q_d|][.] is one row of at most 128 bytes per dimension: exactly one word in each
// shared-memory bank, so 32 lanes that look 32 tokens up in it never conflict. The same holds for p v, with one row per
// token and lanes over dimensions. Signs ride in a dp4a with +-1 bytes. The blocks of a cluster take every size-th tile
// of 32 tokens; counts are integers, so splitting them is exact, and the softmax in between is done by every block for
// the whole row (an exponential costs less than another cluster barrier).
#include <algorithm>

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/table_lookup.cuh"
#include "kernels/math/elementary.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kRowLanes;
constexpr int kWarps = kBlockWarps;
constexpr int kTileTokens = 32;
constexpr int kRoundTiles = kThreads / kTileTokens;  // tiles between two barriers of the score loop
constexpr int kStageTokens = 128;                    // probability rows staged at once

// kHeadMax only finds the largest probability; kHeadOutput then quantizes with it.
enum class Phase : uint8_t { kPerToken, kPerRow, kHeadMax, kHeadOutput };

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

template <int kSlots, Phase kPhase>
__global__ void __launch_bounds__(kThreads) ScRowKernel(const RowArgs args) {
  extern __shared__ uint4 shared_memory[];
  const AttentionArgs& a = args.attention;
  const KvView& kv = a.kv;
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid & 31;
  const int warp = tid >> 5;
  const int rank = Cluster::Rank();
  const int cluster = Cluster::Size();
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / a.group;
  const int grid_row = static_cast<int>(blockIdx.z);
  const int row = args.row_list != nullptr ? args.row_list[grid_row] : args.row_offset + grid_row;
  const int head_dim = kv.head_dim;
  const int q_words = head_dim / 4;
  const int32_t sequence = a.pass.row_sequence[row];
  const int32_t* pages = a.pass.pages + static_cast<int64_t>(sequence) * a.pass.max_pages;
  const int length = a.pass.positions[row] + 1;
  const int tiles = (length + kTileTokens - 1) / kTileTokens;
  const int own_tiles = rank < tiles ? (tiles - rank + cluster - 1) / cluster : 0;
  const auto token_of = [&](int local) {  // of this block's tokens, in tile order
    return ((local / kTileTokens) * cluster + rank) * kTileTokens + local % kTileTokens;
  };
  const int page_mask = kv.page_tokens - 1;
  SharedLayout s = MakeLayout(shared_memory, args.stage_rows, head_dim, cluster);
  const bool in_shared = length <= args.shared_scores;
  float* spill = args.spill + (static_cast<int64_t>(grid_row) * a.num_heads + head) * args.spill_stride;

  if (cluster > 1) Cluster::Arrive();

  // ---- scores
  const int64_t q_vector = static_cast<int64_t>(row) * a.num_heads + head;
  const uint8_t* q_codes = reinterpret_cast<const uint8_t*>(args.q.words + q_vector * q_words);
  StageRows<kThreads>(s.stage, args.qk, head_dim, [&](int d) { return TableRow{d, q_codes[d] & 0x7f}; });
  const float q_scale = args.q.scales[q_vector];
  uint32_t q_word[kSlots];  // of this warp's slice of the dimensions
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    const int w = warp * kSlots + i;
    q_word[i] = w < q_words ? args.q.words[q_vector * q_words + w] : 0;
  }
  float largest = BitsToFloat(0xff800000u);
  __syncthreads();
  if (cluster > 1) Cluster::Wait();  // every block runs: its shared memory may be written
  for (int first = 0; first < own_tiles; first += kRoundTiles) {
    const int round = min(kRoundTiles, own_tiles - first);
#pragma unroll 2
    for (int i = 0; i < round; ++i) {
      const int t = min(token_of((first + i) * kTileTokens + lane), length - 1);
      const uint32_t* k = kv.k_words + kv.KWord(pages[t >> kv.page_shift], kv_head, warp * kSlots, t & page_mask);
      uint32_t k_word[kSlots];
#pragma unroll
      for (int j = 0; j < kSlots; ++j) {
        k_word[j] = warp * kSlots + j < q_words ? k[static_cast<int64_t>(j) << kv.page_shift] : 0;
      }
      int32_t sum = 0;
#pragma unroll
      for (int j = 0; j < kSlots; ++j) {
        if (warp * kSlots + j >= q_words) break;
        const uint8_t* rows = s.stage + (warp * kSlots + j) * 4 * kRowBytes;
        sum = LookUpWord(k_word[j], q_word[j], rows, sum);
        if (args.qk.top_is_256) sum += TopCorrection(k_word[j], q_word[j], q_word[j], args.qk.levels - 1);
      }
      s.parts[warp * kThreads + i * kTileTokens + lane] = sum;
    }
    __syncthreads();
    const int t = token_of(first * kTileTokens + tid);
    if (tid < round * kTileTokens && t < length) {
      int32_t sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += s.parts[w * kThreads + tid];
      const float k_scale = kv.k_scales[kv.Scale(pages[t >> kv.page_shift], kv_head, t & page_mask)];
      const float score = ((static_cast<float>(sum) * args.qk.gain) * (q_scale * k_scale)) * a.inv_sqrt;
      largest = fmaxf(largest, score);
      if (in_shared) {
        for (int r = 0; r < cluster; ++r) Cluster::At(s.scores, r)[t] = score;
      } else {
        __stcg(spill + t, score);
      }
    }
    __syncthreads();
  }
  if (cluster > 1) Cluster::Sync();

  // ---- softmax of the whole row; thread j is lane j of the sum
  for (int t = tid; t < length; t += kThreads) {
    largest = fmaxf(largest, in_shared ? s.scores[t] : __ldcg(spill + t));
  }
  largest = BlockMax(largest, s.reduce);
  float sum = 0.0f;
  for (int t = tid; t < length; t += kThreads) {
    const float e = Exp((in_shared ? s.scores[t] : __ldcg(spill + t)) - largest);
    if (in_shared) s.scores[t] = e;
    sum = sum + e;
  }
  sum = BlockFoldLanes(sum, s.reduce);
  if (tid == 0 && !IsFinite(sum)) a.finite.Report();
  const auto weight_of = [&](int t, float e) {  // what is quantized: p, or p * s_v[t]
    const float p = e / sum;
    if constexpr (kPhase != Phase::kPerToken) return p;
    return p * kv.v_scales[kv.Scale(pages[t >> kv.page_shift], kv_head, t & page_mask)];
  };
  float p_max = 0.0f;
  if constexpr (kPhase != Phase::kHeadOutput) {
    for (int t = tid; t < length; t += kThreads) {
      const float p = weight_of(t, in_shared ? s.scores[t] : Exp(__ldcg(spill + t) - largest));
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
  int32_t acc[kSlots] = {};
  for (int first = 0; first < own_tiles * kTileTokens; first += kStageTokens) {
    const int tokens = min(kStageTokens, own_tiles * kTileTokens - first);
    __syncthreads();  // scores are final, the stage is free
    if (tid < tokens) {
      const int t = token_of(first + tid);
      int level = 0;
      if (t < length) {
        const float p = weight_of(t, in_shared ? s.scores[t] : Exp(__ldcg(spill + t) - largest));
        level = BipolarLevel(p, p_scale, args.av.q_max);
      }
      reinterpret_cast<uint8_t*>(s.codes)[tid] = static_cast<uint8_t>(level);
    }
    __syncthreads();
    StageRows<kThreads>(s.stage, args.av, tokens, [&](int i) {
      return TableRow{token_of(first + i), reinterpret_cast<const uint8_t*>(s.codes)[i]};
    });
    __syncthreads();
    for (int g = warp; g < tokens / 4; g += kWarps) {
      const uint32_t p_word = s.codes[g];
      if (p_word == 0) continue;  // level 0 counts nothing
      const int t = token_of(first + 4 * g);
      const uint32_t* v = kv.v_words + kv.VWord(pages[t >> kv.page_shift], kv_head, (t & page_mask) >> 2, lane);
      uint32_t v_word[kSlots];
#pragma unroll
      for (int j = 0; j < kSlots; ++j) v_word[j] = lane + 32 * j < head_dim ? v[32 * j] : 0;
#pragma unroll
      for (int j = 0; j < kSlots; ++j) {
        acc[j] = LookUpWord(v_word[j], 0, s.stage + g * 4 * kRowBytes, acc[j]);
        if (args.av.top_is_256) acc[j] += TopCorrection(v_word[j], 0, p_word, args.av.levels - 1);
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kSlots; ++j) {
    if (lane + 32 * j < head_dim) s.parts[warp * head_dim + lane + 32 * j] = acc[j];
  }
  __syncthreads();
  int32_t total = 0;
  if (tid < head_dim) {
    for (int w = 0; w < kWarps; ++w) total += s.parts[w * head_dim + tid];
    if (rank != 0) Cluster::At(s.gather, 0)[rank * head_dim + tid] = total;
  }
  if (cluster > 1) Cluster::Sync();
  if (rank != 0 || tid >= head_dim) return;
  for (int r = 1; r < cluster; ++r) total += s.gather[r * head_dim + tid];
  float scale = p_scale;
  if constexpr (kPhase != Phase::kPerToken) {
    scale =
        p_scale * args.window.v_channels[(static_cast<int64_t>(sequence) * kv.num_kv_heads + kv_head) * head_dim + tid];
  }
  a.out[row * a.out_stride + static_cast<int64_t>(head) * head_dim + tid] =
      (static_cast<float>(total) * args.av.gain) * scale;
}

template <int kSlots, Phase kPhase>
void LaunchKernel(DeviceContext& ctx, const RowArgs& args, int rows, int cluster) {
  auto* kernel = &ScRowKernel<kSlots, kPhase>;
  const size_t shared = SharedBytes(args.stage_rows, args.attention.kv.head_dim, cluster, args.shared_scores);
  STOCH_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster), static_cast<unsigned>(args.attention.num_heads),
                        static_cast<unsigned>(rows));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared;
  config.stream = ctx.stream;
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  STOCH_CUDA(cudaLaunchKernelEx(&config, kernel, args));
}

template <Phase kPhase>
void LaunchSlots(DeviceContext& ctx, const RowArgs& args, int rows, int cluster) {
  const int head_dim = args.attention.kv.head_dim;
  if (head_dim <= 32) return LaunchKernel<1, kPhase>(ctx, args, rows, cluster);
  if (head_dim <= 64) return LaunchKernel<2, kPhase>(ctx, args, rows, cluster);
  if (head_dim <= 128) return LaunchKernel<4, kPhase>(ctx, args, rows, cluster);
  LaunchKernel<8, kPhase>(ctx, args, rows, cluster);
}

// Blocks per row and head: enough to fill the GPU, no more than the context has tiles for.
int ClusterSize(const DeviceContext& ctx, int64_t row_heads, int max_length) {
  if (ctx.compute_capability < 90) return 1;
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
      const int cluster = ClusterSize(ctx, static_cast<int64_t>(count) * args.num_heads, rows.max_length);
      LaunchSlots<kPhase>(ctx, part, count, cluster);
    }
  };
  switch (mode) {
    case AttentionMode::kPerToken: launch.operator()<Phase::kPerToken>(); break;
    case AttentionMode::kPerRow: launch.operator()<Phase::kPerRow>(); break;
    case AttentionMode::kPerHead:
      launch.operator()<Phase::kHeadMax>();
      launch.operator()<Phase::kHeadOutput>();
      break;
    case AttentionMode::kExact: break;
  }
}

}  // namespace stoch::cuda
