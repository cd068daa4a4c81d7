// SPDX-License-Identifier: Apache-2.0
// q k, softmax and p v of single rows in one launch, whose blocks are all on the GPU at once, one per SM. 1 to 16
// blocks share a row and the query heads of a KV head; each of them owns whole lanes of the softmax sum, that is the
// positions t with t mod 256 in [rank * stripe, (rank + 1) * stripe).
//
// The blocks of a row exchange through L2 (device/exchange.cuh), in this order: the largest scores; the 256 lane sums
// together with the candidates for the largest weight (resident_softmax.cuh); the sums of p v. So any SMs can share a
// row, and a block has all shared memory of its SM. A warp keeps the queries' streams of its dimensions in registers,
// so a step of q k reads only thermometers from shared memory, where the warps add up their counts.
#include "kernels/cuda/attention/split/resident_keys.cuh"
#include "kernels/cuda/attention/split/resident_posted.cuh"
#include "kernels/cuda/attention/split/resident_steps.cuh"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kSplitResidentThreads;

template <int kHeadDim, int kN>
struct Shared {
  static constexpr int kMaxHeads = kN * kScoreHeads;
  uint4 thermometers[kCodes * kTableCopies];
  int32_t sums[kMaxHeads][kHeadDim + 1];  // sums of p v; the pad puts the heads of a dimension in different banks
  ResidentNumbers of_heads;
};

// Computes the scores of local positions [begin, end) from the counts of CountKeys. Returns the larger of `most` and
// the largest score of this thread. Called by all threads.
__device__ __forceinline__ float ScoresOf(const SplitArgs& args, const Stripes& b, const Scores& scores, int begin,
                                          int end, const int32_t* counts, const float* q_scales, const float* k_scales,
                                          const HeadWarps& of, float most) {
  const AttentionArgs& a = args.attention;
  if (of.head >= b.heads.count) return most;
  const float q_scale = q_scales[of.head];
  ForQuads(of, end - begin, [&](int i) {
    const float4 k_scale = LoadScales(a.kv, a.kv.k_scales, k_scales, b, begin + i);
    const float scales[4] = {k_scale.x, k_scale.y, k_scale.z, k_scale.w};
    const int4 words =
        *reinterpret_cast<const int4*>(counts + of.head * (args.resident_positions + kSplitResidentPad) + i);
    const bool odd = (of.head & 1) != 0;
    const int32_t pairs[2] = {odd ? words.y : words.x, odd ? words.w : words.z};
    const int t = b.Token(begin + i);
    float score[4];
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const int32_t low = static_cast<int16_t>(pairs[x / 2] & 0xffff);
      const int32_t count = x % 2 == 0 ? low : (pairs[x / 2] - low) >> 16;
      score[x] = BipolarProduct(count, args.qk.gain, q_scale, scales[x]) * a.inv_sqrt;
      if (t + x < b.row.first || t + x >= b.row.length) score[x] = BitsToFloat(0xff800000u);
      most = fmaxf(most, score[x]);
    }
    *reinterpret_cast<float4*>(scores.at + of.head * scores.stride + begin + i) =
        make_float4(score[0], score[1], score[2], score[3]);
  });
  return most;
}

// Issues asynchronous copies of the scales of the block's keys to `to` and of the scales of its values to `to` +
// stride, both by local position. Called by all threads.
__device__ __forceinline__ void StageScales(const KvView& kv, const Stripes& b, float* to, int stride) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) * 4; i < b.count(); i += kThreads * 4) {
    CopyAsync16(SharedAddress(to + i), FourScales(kv, kv.k_scales, b, i));
    CopyAsync16(SharedAddress(to + stride + i), FourScales(kv, kv.v_scales, b, i));
  }
}

__device__ __forceinline__ void ClearCounts(const SplitArgs& args, int heads, int32_t* counts) {
  const int all = heads * (args.resident_positions + kSplitResidentPad) / 4;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < all; i += kThreads)
    reinterpret_cast<int4*>(counts)[i] = make_int4(0, 0, 0, 0);
}

// Computes q k, softmax and p v of all rows of the launch. Grid: plan.blocks blocks, at most one per SM and all on the
// GPU at once; FindStripes says which row, heads and positions a block has. kDirect: ranks need no table (RanksBySum).
// kN: 8-column tiles that the block's query heads need in q k.
template <bool kDirect, int kHeadDim, int kN>
__global__ void __launch_bounds__(kThreads, 1) SplitResidentKernel(const SplitArgs args) {
  extern __shared__ __align__(256) uint8_t shared_memory[];
  constexpr int kGroups = 2 / kN;  // groups of 16 dimensions that a warp takes
  auto& s = *reinterpret_cast<Shared<kHeadDim, kN>*>(shared_memory);
  const bool is_posted = args.posted.q != nullptr;
  if (!is_posted) StartNext();
  const int tid = static_cast<int>(threadIdx.x);
  Stripes b;
  if (!FindStripes(args, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), &b)) return;
  uint8_t* const table = shared_memory + sizeof(s);
  auto* const counts = reinterpret_cast<int32_t*>(table + args.resident_bytes);
  auto* const scales =
      reinterpret_cast<float*>(counts) + args.block_heads * (args.resident_positions + kSplitResidentPad);
  Scores scores{reinterpret_cast<float*>(counts), args.resident_positions + kSplitResidentPad, true};
  BlockScales in_shared{scales, scales + args.resident_positions};
  if (b.count() > args.resident_positions) {
    scores = ScratchScores(args, b);
    in_shared = {};
  }
  const KvView& kv = args.attention.kv;
  const HeadWarps of = HeadWarpsOf(b.heads.count);
  Prefetch(kv, b);
  FillThermometers<kThreads>(args.qk, s.thermometers);
  ClearCounts(args, b.heads.count, counts);
  float most = BitsToFloat(0xff800000u);
  WeightStreams streams;
  {
    using Keys = KeyTiles<kHeadDim, kGroups>;
    Keys keys(kv, b, 0);
    int end = min(b.count(), args.resident_positions);
    const Queries queries = TakeQueries<kHeadDim>(args, b, s.sums, s.of_heads.q_scales);
    QueryRegisters<kGroups, kN> q;
    q.template Ask<kHeadDim>(b, queries, Keys::Group());
    keys.Begin(kv, b, 0);
    if (in_shared.k != nullptr) StageScales(kv, b, scales, args.resident_positions);
    CommitCopies();
    ClearWords(args, b);
    if (tid < b.heads.count) s.of_heads.q_scales[tid] = queries.scales[tid];
    q.template Load<kDirect>(args, Keys::Group());
    streams = StageStreams(args, b, table);
    CommitCopies();
    const uint32_t lane_table = LaneTable(s.thermometers);
    __syncthreads();
#pragma unroll 1
    for (int begin = 0;; begin = end, end = min(b.count(), end + args.resident_positions)) {
      CountKeys<kDirect>(args, b, begin, end, lane_table, q, keys, counts);
      WaitForCopies<1>();  // scales have arrived, streams may still be in flight
      __syncthreads();
      most = ScoresOf(args, b, scores, begin, end, counts, s.of_heads.q_scales, in_shared.k, of, most);
      if (end == b.count()) break;
      keys = Keys(kv, b, end);
      keys.Begin(kv, b, end);
      __syncthreads();  // the counts have been read
      ClearCounts(args, b.heads.count, counts);
      __syncthreads();
    }
  }
  ShareMaxima<true>(b, of, most, args.flags, s.of_heads.of_warps, s.of_heads.largest);
  if (is_posted) {
    StartNext();  // after the scores: earlier prefetches of the next kernel would delay this kernel's keys
    ClearPosted(args, b);
  }
  for (int i = tid; i < kN * kScoreHeads * (kHeadDim + 1); i += kThreads) (&s.sums[0][0])[i] = 0;
  if (args.av.ranks != args.qk.ranks) FillThermometers<kThreads>(args.av, s.thermometers);
  ValueGroups<kHeadDim> values(kv, b);
  Softmax(
      args, b, scores, of, in_shared.v, s.of_heads,
      [&] { return Exponentials(args, b, scores, of, in_shared.v, s.of_heads); }, [](int, int) {},
      [](int, uint32_t levels) { return levels; });
  WaitForAllCopies();  // streams of weights have arrived
  __syncthreads();
  Values<kDirect, false>(args, b, scores, streams, LaneTable(s.thermometers), values, s.sums, [] {});
  __syncthreads();
  WriteOutput<kHeadDim>(args, b, s.of_heads.largest, s.sums);
  ClearWeightWords(args, b);
}

template <bool kDirect, int kHeadDim, int kN>
void Launch(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args) {
  static_assert(sizeof(Shared<kHeadDim, kN>) == kSplitTableBytes + SplitResidentBytes(kHeadDim, kN));
  const auto shared = static_cast<size_t>(plan.shared_bytes);
  AllowShared(ctx, &SplitResidentKernel<kDirect, kHeadDim, kN>, shared);
  LaunchOverlapped(ctx, &SplitResidentKernel<kDirect, kHeadDim, kN>, dim3(static_cast<unsigned>(plan.blocks)),
                   dim3(kThreads), shared, args);
}

}  // namespace

void LaunchSplitResident(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args) {
  const bool direct = RanksBySum(args.qk) && RanksBySum(args.av);
  DispatchHeads(args, [&]<int kHeadDim, int kN>() {
    direct ? Launch<true, kHeadDim, kN>(ctx, plan, args) : Launch<false, kHeadDim, kN>(ctx, plan, args);
  });
}

}  // namespace stoch::cuda
