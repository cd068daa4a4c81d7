// SPDX-License-Identifier: Apache-2.0
// The resident kernel (resident.cu) of deep rows, for up to four query heads of 128 dimensions: q k by look-ups
// (resident_lookup.cuh) instead of thermometers. The counts of four heads are a word of shared memory, where a thermometer
// is four.
//
// Shared memory: the table of counts; a tile of keys of every warp; scores. Count rows on their way to the table are in
// the place of tiles and scores, scales of values in that of the tiles, sums of p v in that of the table. What p v needs,
// streams of weights and thermometers of values, is made in front of everything where it has room of its own; for deeper
// rows it follows in the places of the table and of the scales, as soon as these are free.
#include "kernels/cuda/attention/split/resident_lookup.cuh"
#include "kernels/cuda/attention/split/resident_posted.cuh"
#include "kernels/cuda/attention/split/resident_steps.cuh"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kSplitResidentThreads;
constexpr int kTilesBytes = kResidentWarps * kLookupTileBytes;

struct alignas(16) Shared {
  ResidentNumbers of_heads;
  uint32_t score_max[kScoreHeads][kResidentWarps];
  LookupTops tops;
};
using Sums = int32_t[kScoreHeads][kLookupDim + 1];

static_assert(sizeof(Shared) + kLookupTableBytes == kSplitLookupBytes);
static_assert(kTilesBytes == kSplitLookupTileBytes && kLookupCountBytes == kSplitLookupRowBytes);
static_assert(sizeof(Sums) % 16 == 0);

// The largest of this lane's two heads.
struct Largest {
  float of[2];
};

// Makes the scores of the stripe.
__device__ __forceinline__ Largest MakeScores(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                              const LookupPlaces& places, uint8_t* tile, const LookupTops& tops,
                                              uint32_t turned, const float* q_scales, LookupKeys& keys) {
  const AttentionArgs& a = args.attention;
  const int num_tops = tops.count;
  const int head = LookupKeys::Head();
  const LookupOnes ones;
  float q_scale[2];
  int sign[2];
  int less[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    q_scale[h] = q_scales[min(head + h, b.heads.count - 1)];
    sign[h] = (turned >> (head + h) & 1) != 0 ? -1 : 1;
    less[h] = tops.of_heads[head + h] * sign[h];
  }
  const float least = BitsToFloat(0xff800000u);
  Largest largest{{least, least}};
  constexpr int kStep = kResidentWarps * kLookupTile;
  constexpr int kAhead = 2;
  const int end = b.count();
  float* to = scores.at + head * scores.stride + LookupKeys::Key();
  float next_scale = 0.0f;
  // The tile at local position `i`, which is in registers, into shared memory; those behind it are on their way.
  const auto stage = [&](int i) {
    if (i >= end) return;
    keys.Store(tile);
    next_scale = keys.scale;
    if (i + kStep < end) keys.Load(a.kv, b, i + kStep);
    if (i + kAhead * kStep < end) keys.Prefetch(a.kv, b, i + kAhead * kStep);
  };
  int i = static_cast<int>(threadIdx.x >> 5) * kLookupTile;
  stage(i);
#pragma unroll 1
  for (; i < end; i += kStep) {
    __syncwarp();
    int32_t counts[2];
    CountTile(places, tops, num_tops, ones, counts);
    __syncwarp();
    const float k_scale = next_scale;
    stage(i + kStep);
    const int t = b.Token(i) + LookupKeys::Key();
    const bool seen = t >= b.row.first && t < b.row.length;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float score =
          seen ? BipolarProduct(counts[h] * sign[h] - less[h], args.qk.gain, q_scale[h], k_scale) * a.inv_sqrt : least;
      largest.of[h] = fmaxf(largest.of[h], score);
      if (head + h < b.heads.count) to[h * scores.stride + i] = score;
    }
  }
  return largest;
}

// The largest score of every head of the block's row (ShareMaxima). Warps that do not exchange fetch the scales of the
// block's values, where they fit the place of the tiles.
__device__ __forceinline__ void ShareLargest(const SplitArgs& args, const Stripes& b, Largest largest, float* v_scales,
                                             Shared& s) {
  const KvView& kv = args.attention.kv;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t word = OrderedWord(largest.of[h]);
#pragma unroll
    for (int x = 2; x < 32; x *= 2) word = max(word, __shfl_xor_sync(0xffffffffu, word, x));
    if (lane < 2) s.score_max[lane * 2 + h][warp] = word;
  }
  __syncthreads();
  if (warp < b.heads.count) {
    const uint32_t word = lane < kResidentWarps ? s.score_max[warp][lane] : 0;
    ExchangeMaximum<true>(b, word, args.flags, s.of_heads.largest);
  } else if (v_scales != nullptr) {
    const int exchanging = b.heads.count * 32;
#pragma unroll 1
    for (int i = (static_cast<int>(threadIdx.x) - exchanging) * 4; i < b.count(); i += (kThreads - exchanging) * 4)
      CopyAsync16(SharedAddress(v_scales + i), FourScales(kv, kv.v_scales, b, i));
    WaitForAllCopies();
  }
  __syncthreads();
}

template <bool kDirect>
__global__ void __launch_bounds__(kThreads, 1) SplitLookupKernel(const SplitArgs args) {
  extern __shared__ __align__(256) uint8_t shared_memory[];
  const bool is_posted = args.posted.q != nullptr;
  if (!is_posted) StartNext();
  Stripes b;
  if (!FindStripes(args, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), &b)) return;
  const bool apart = args.lookup_apart;
  uint8_t* const table = shared_memory;
  auto& s = *reinterpret_cast<Shared*>(table + kLookupTableBytes);
  uint8_t* const of_values = table + kSplitLookupBytes;
  uint8_t* const tiles = of_values + (apart ? kSplitTableBytes + args.resident_bytes : 0);
  auto* const thermometers = reinterpret_cast<uint4*>(apart ? of_values : tiles);
  auto& sums = *reinterpret_cast<Sums*>(table);
  uint8_t* const weights = apart ? of_values + kSplitTableBytes : table + sizeof(Sums);
  auto* v_scales = reinterpret_cast<float*>(tiles);
  Scores scores{reinterpret_cast<float*>(tiles + kTilesBytes), args.resident_positions + kSplitResidentPad, true};
  if (b.count() > args.resident_positions) {
    scores = ScratchScores(args, b);
    v_scales = nullptr;
  }
  const KvView& kv = args.attention.kv;
  const int tid = static_cast<int>(threadIdx.x);
  const int warp = tid >> 5;
  const HeadWarps of = HeadWarpsOf(b.heads.count);
  Prefetch(kv, b);
  WeightStreams streams{};
  if (apart) {
    FillThermometers<kThreads>(args.av, thermometers);
  }
  LookupKeys keys(kv, b, warp * kLookupTile);
  if (tid <= kScoreHeads) (&s.tops.count)[tid] = 0;
  const Queries queries = TakeQueries<kLookupDim>(args, b, table, s.of_heads.q_scales);
  CopyCountRows(args, b, queries, SharedAddress(tiles));
  CommitCopies();
  LookupQueries q(b, queries);
  keys.Load(kv, b, warp * kLookupTile);
  ClearWords(args, b);
  if (apart) streams = StageStreams(args, b, weights);
  CommitCopies();
  q.Turn();
  WaitForCopies<1>();  // count rows
  __syncthreads();
  FillCounts(tiles, q, reinterpret_cast<uint32_t*>(table), s.tops);
  __syncthreads();
  Largest largest;
  {
    uint8_t* const tile = tiles + warp * kLookupTileBytes;
    const LookupPlaces places(SharedAddress(table), SharedAddress(tile));
    largest = MakeScores(args, b, scores, places, tile, s.tops, q.turned, queries.scales, keys);
  }
  ShareLargest(args, b, largest, v_scales, s);
  if (is_posted) {
    StartNext();  // not before: what the next kernel loads ahead would come in front of keys
    ClearPosted(args, b);
  }
  ValueGroups<kLookupDim> values(kv, b);
  if (!apart) streams = StageStreams(args, b, weights);
  for (int i = tid; i < kScoreHeads * (kLookupDim + 1); i += kThreads) (&sums[0][0])[i] = 0;
  Softmax(args, b, scores, of, v_scales, s.of_heads, [&] {
    if (tid < b.heads.count) args.flags[b.item * kValueHeads + tid] = 0;
  });
  if (!apart) {
    __syncthreads();  // scales are read
    FillThermometers<kThreads>(args.av, thermometers);
  }
  WaitForAllCopies();  // streams
  __syncthreads();
  Values<kDirect>(args, b, scores, streams, LaneTable(thermometers), values, sums);
  __syncthreads();
  WriteOutput<kLookupDim>(args, b, s.of_heads.largest, sums);
  ClearWeightWords(args, b);
}

template <bool kDirect>
void Launch(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args) {
  const auto shared = static_cast<size_t>(plan.lookup_shared_bytes);
  AllowShared(ctx, &SplitLookupKernel<kDirect>, shared);
  LaunchOverlapped(ctx, &SplitLookupKernel<kDirect>, dim3(static_cast<unsigned>(plan.resident_blocks)), dim3(kThreads),
                   shared, args);
}

}  // namespace

void LaunchSplitLookup(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args) {
  SplitArgs lookup = args;
  lookup.resident_positions = plan.lookup_positions;
  lookup.resident_masks = plan.lookup_masks;
  lookup.resident_bytes = static_cast<int32_t>(SplitStreamBytes(plan.lookup_masks, args.av.levels));
  lookup.lookup_apart = plan.lookup_apart;
  RanksBySum(args.av) ? Launch<true>(ctx, plan, lookup) : Launch<false>(ctx, plan, lookup);
}

}  // namespace stoch::cuda
