// SPDX-License-Identifier: Apache-2.0
// Resident kernel (see resident.cu) for deep rows and up to four query heads of 128 dimensions: computes q k by table
// look-ups (resident_lookup.cuh) instead of thermometers. A look-up reads one word of shared memory for the counts of
// four heads; a thermometer takes four words.
//
// Use of shared memory in the phases of a block, which barriers separate; LookupOffsets names the offsets in the first
// column. K and V stand for keys and values; count rows are rows of the count table for the queries' levels, tops the
// dimensions in LookupTops, maxima score_max, listed ListedWeights.
//
//   bytes      | count rows   | table         | q k            | largest score | softmax            | p v
//   -----------+--------------+---------------+----------------+---------------+--------------------+------------------
//   0          | q scales     | tops          | tops           | maxima        | candidates, listed | listed
//   1024       | query codes  | table of counts, 128 KB ------ | scales of K   | exponentials of heads, then levels
//   132096     | count rows ------------------ |                | scales of V ---------------------- | listed operands
//     ... end  |              |               |                |               | sums of p v (see below) ---------
//   165888     | count rows ------------------ | counts, 16 bit ---------------- | thermometers, streams of weights,
//              |              |               |                |               | or first words of streams of values
//   + counts   | streams of weights, if there is room for them here (`apart`): in flight from the start
//
// Exponentials reach into the first 1 KB (kOverTable) of the row of the scales of V, so the scales of V begin after
// this 1 KB. Scales of K are where the exponentials of the last head will be. If a row is too deep for shared memory,
// its scores are in scratch. If a block has too many positions for sums of p v before the counts, the sums are at 1024
// once the levels have been read.
#include "kernels/cuda/attention/split/resident_lookup.cuh"
#include "kernels/cuda/attention/split/resident_posted.cuh"
#include "kernels/cuda/attention/split/resident_steps.cuh"
#include "kernels/cuda/attention/split/resident_words.cuh"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kSplitResidentThreads;

struct alignas(128) Shared {
  ResidentNumbers of_heads;
  int32_t listed_count;
  union {
    struct {
      uint32_t score_max[kScoreHeads][kResidentWarps];
      union {
        LookupTops tops;
        uint64_t candidates[kScoreHeads][kResidentWarps];
      };
    };
    ListedWeights listed;
  };
};
using Sums = int32_t[kScoreHeads][kLookupDim + 1];

// In the softmax, the exponentials take the region of the count table and up to kOverTable bytes of the region after
// it; the scales of V are in the rest of that region. The sums of p v fit at its end, after the scales of V, if a block
// has at most kMostBesideSums positions.
constexpr int kOverTable = 1024;
constexpr int kMostBesideSums = (kSplitLookupScaleBytes - kOverTable - static_cast<int>(sizeof(Sums))) / 4;
struct LookupOffsets {
  static constexpr int kTable = sizeof(Shared);
  static constexpr int kScales = kTable + kLookupTableBytes;
  static constexpr int kValueScales = kScales + kOverTable;
  static constexpr int kCounts = kScales + kSplitLookupScaleBytes;
  static constexpr int kSums = kCounts - static_cast<int>(sizeof(Sums));
};
static_assert(LookupOffsets::kTable == 1024 && LookupOffsets::kScales == 132096 && LookupOffsets::kCounts == 165888);
static_assert(LookupOffsets::kCounts == kSplitLookupBytes);
// Exponentials end before the scales of V begin, and the scales of V end before the counts begin.
static_assert(LookupOffsets::kTable + kScoreHeads * (kSplitLookupPositions + kSplitResidentPad) * sizeof(float) <=
              LookupOffsets::kValueScales);
static_assert(LookupOffsets::kValueScales + kSplitLookupPositions * sizeof(float) <= LookupOffsets::kCounts);
// The operands of listed weights end before the sums of p v begin.
static_assert(LookupOffsets::kValueScales + sizeof(ListedStage) <= LookupOffsets::kSums);
// Count rows may take the region of the scales and the thermometers' region after it.
static_assert(kLookupCountBytes <= kSplitLookupScaleBytes + kSplitTableBytes);

// The counts of q k at a block's positions, in shared memory: [heads][stride], 16 bits each. Unused if the scores are
// in scratch.
struct Counts {
  int16_t* at;
  int stride;
};

// Returns the score of a count: BipolarProduct times 1 / sqrt(head_dim). MakeScores, for the largest score, and
// ExponentialsOf both call it, so that their scores have equal bits.
__device__ __forceinline__ float ScoreOf(const SplitArgs& args, float count, float q_scale, float k_scale) {
  return ((count * args.qk.gain) * (q_scale * k_scale)) * args.attention.inv_sqrt;
}

// Converts two 16-bit counts to floats without conversion instructions: the last bits of a float with the exponent of
// 2^23 are an integer.
__device__ __forceinline__ float2 FloatsOf(uint32_t counts) {
  constexpr uint32_t kExponent = 0x4b000000u;  // exponent bits of 2^23
  constexpr float kOffset = 8388608.0f + 32768.0f;
  const uint32_t shifted = counts ^ 0x80008000u;
  return {BitsToFloat(__byte_perm(shifted, kExponent, 0x7610)) - kOffset,
          BitsToFloat(__byte_perm(shifted, kExponent, 0x7632)) - kOffset};
}

__device__ __forceinline__ int RoundUp(int x, int step) { return (x + step - 1) / step * step; }

__device__ __forceinline__ int DynamicSharedBytes() {
  int bytes;
  asm("mov.u32 %0, %dynamic_smem_size;" : "=r"(bytes));
  return bytes;
}

// Tests whether the row sees a local position: it sees local positions `first` to first + count - 1.
struct Seen {
  int first;
  int count;
  __device__ __forceinline__ bool operator()(int i) const {
    return static_cast<uint32_t>(i - first) < static_cast<uint32_t>(count);
  }
};

// The largest scores of this lane's two heads, LookupLane::Head() and Head() + 1.
struct Largest {
  float of[2];
};

// Returns the number of tiles of 16 keys that this warp takes.
__device__ __forceinline__ int LookupTiles(const Stripes& b) {
  constexpr int kStep = kResidentWarps * kLookupTile;
  return (b.count() - static_cast<int>(threadIdx.x >> 5) * kLookupTile + kStep - 1) / kStep;
}

// Computes q k of the block's positions by look-ups: writes counts to `counts` in shared memory, or scores to `scores`
// if they are in scratch. Returns the largest scores of this lane's two heads. Called by all threads.
__device__ __forceinline__ Largest MakeScores(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                              const Counts& counts, const Seen& seen, const LookupPlaces& places,
                                              const LookupRest& rest, const float* q_scales, LookupKeys& keys) {
  const KvView& kv = args.attention.kv;
  const int head = LookupLane::Head();
  const LookupOnes ones;
  float q_scale[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) q_scale[h] = q_scales[min(head + h, b.heads.count - 1)];
  const float least = BitsToFloat(0xff800000u);
  Largest largest{{least, least}};
  constexpr int kStep = kResidentWarps * kLookupTile;
  uint32_t to = SharedAddress(counts.at + head * counts.stride + LookupLane::Key());
  uint32_t to_next = counts.stride * sizeof(int16_t);
  Seen own{seen.first - LookupLane::Key(), seen.count};
  asm volatile("" : "+r"(to), "+r"(to_next), "+r"(own.first), "+r"(own.count));  // keeps the values in registers
  int i = static_cast<int>(threadIdx.x >> 5) * kLookupTile;
  int left = LookupTiles(b) - 1;  // tiles of this warp after the current one
  // The tile after the next two is prefetched into L2, and each part of the next tile is loaded into registers as soon
  // as that part of the current tile has been used.
  const auto step = [&] {
    const uint32_t last = keys.Advance(left);
    const uint32_t* from = keys.From();
    LookupSums sums;
    int32_t codes[4];
    rest.Begin(keys.k, sums, codes);
    const auto part = [&]<int e>() {
      rest.AddPart(e, keys.k[e], codes);
      CountPart<e>(keys.k[e], places, ones, sums);
      if (left > 0) keys.Load(from, e);
    };
    part.template operator()<0>();
    part.template operator()<1>();
    part.template operator()<2>();
    part.template operator()<3>();
    rest.End(codes, sums);
    int32_t count[2];
    TakeCounts(sums, count);
    const bool is_seen = own(i);
    float score[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      score[h] = is_seen ? ScoreOf(args, static_cast<float>(count[h]), q_scale[h], keys.scale) : least;
      largest.of[h] = fmaxf(largest.of[h], score[h]);
    }
    if (scores.in_shared) {
      StoreSharedShort(to + i * sizeof(int16_t), count[0]);
      StoreSharedShort(to + to_next + i * sizeof(int16_t), count[1]);
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (head + h < b.heads.count) scores.at[(head + h) * scores.stride + LookupLane::Key() + i] = score[h];
    }
    if (left > 0) keys.LoadScale();
    keys.Turn(last);
    --left;
  };
  const int end = b.count();
  while (i < end) {
    keys.places.Refill(kv, b);
    const int until = min(end, i + keys.places.Left() * kStep);
#pragma unroll 1
    for (; i < until; i += kStep) step();
  }
  return largest;
}

// Finds the largest score of each head over the blocks of the row, as ShareMaxima<true> does. Meanwhile, warps that
// exchange nothing copy the scales of the block's keys and values to shared memory; v_scales null: no copies. Called by
// all threads; ends with a barrier.
__device__ __forceinline__ void ShareLargest(const SplitArgs& args, const Stripes& b, Largest largest, float* k_scales,
                                             float* v_scales, Shared& s) {
  const KvView& kv = args.attention.kv;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  // The offsets of a thread's first kFirst copies are computed, with their page look-ups, before the barrier.
  constexpr int kFirst = 2;
  const int threads = kThreads - b.heads.count * 32;  // threads that exchange nothing
  const int first = (static_cast<int>(threadIdx.x) - b.heads.count * 32) * 4;
  const bool is_fetching = first >= 0 && v_scales != nullptr;
  int64_t at[kFirst];
#pragma unroll
  for (int n = 0; n < kFirst; ++n) at[n] = is_fetching ? FourScales(kv, b, first + n * threads * 4) : 0;
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
  } else if (is_fetching) {
    const auto copy = [&](int i, int64_t from) {
      if (i >= b.count()) return;
      CopyAsync16(SharedAddress(k_scales + i), kv.k_scales + from);
      CopyAsync16(SharedAddress(v_scales + i), kv.v_scales + from);
    };
#pragma unroll
    for (int n = 0; n < kFirst; ++n) copy(first + n * threads * 4, at[n]);
#pragma unroll 2
    for (int i = first + kFirst * threads * 4; i < b.count(); i += threads * 4) copy(i, FourScales(kv, b, i));
    WaitForAllCopies();
  }
  __syncthreads();
}

// Writes the exponentials of all heads, computed from the counts, and returns the warps' candidates for the largest
// weight. The key scales lie where the exponentials of the last head go; a thread reads the scales of its own positions
// before it writes there. Called by all threads.
__device__ __forceinline__ WarpCandidates ExponentialsOf(const SplitArgs& args, const Stripes& b, const Counts& counts,
                                                         const Seen& seen, const float* q_scales, const float* v_scales,
                                                         float* exponentials, int stride, Shared& s) {
  const float least = BitsToFloat(0xff800000u);
#pragma unroll 1
  for (int h = 0; h < b.heads.count; ++h) {
    const float q_scale = q_scales[h];
    const float largest = s.of_heads.largest[h];
    Candidate best;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) * 4; i < b.count(); i += kThreads * 4) {
      const float4 k = *reinterpret_cast<const float4*>(exponentials + (kScoreHeads - 1) * stride + i);
      const float4 v = *reinterpret_cast<const float4*>(v_scales + i);
      const uint2 four = *reinterpret_cast<const uint2*>(counts.at + h * counts.stride + i);
      const float2 low = FloatsOf(four.x);
      const float2 high = FloatsOf(four.y);
      const auto exponential = [&](int x, float count, float k_scale) {
        return SoftmaxExp((seen(i + x) ? ScoreOf(args, count, q_scale, k_scale) : least) - largest);
      };
      const float4 e = make_float4(exponential(0, low.x, k.x), exponential(1, low.y, k.y), exponential(2, high.x, k.z),
                                   exponential(3, high.y, k.w));
      *reinterpret_cast<float4*>(exponentials + h * stride + i) = e;
      best.Add(e.x, v.x);
      best.Add(e.y, v.y);
      best.Add(e.z, v.z);
      best.Add(e.w, v.w);
    }
    best.OverLanes();
    if ((threadIdx.x & 31) == 0) s.candidates[h][threadIdx.x >> 5] = best.Word();
  }
  return {s.candidates[0], kResidentWarps, 1, kResidentWarps};
}

// Adds p v of the block's positions to `sums`. With by_words it uses the first words of the values' streams
// (resident_words.cuh) and adds the listed weights; if the list is too short for them, or without by_words, it uses
// whole thermometers. before_sums: see AddValues. Called by all threads.
template <bool kDirect, bool kWords, typename BeforeSums>
__device__ __forceinline__ void AddProducts(const SplitArgs& args, const Stripes& b, const Scores& scores, Shared& s,
                                            uint8_t* shared_memory, bool by_words, WeightStreams& streams,
                                            uint8_t* weights, ValueGroups<kLookupDim>& values, Sums& sums,
                                            const BeforeSums& before_sums) {
  uint8_t* const tables = shared_memory + LookupOffsets::kCounts;
  auto* const thermometers = reinterpret_cast<uint4*>(tables);
  const auto multiply = [&] {
    Values<kDirect, true>(args, b, scores, streams, LaneTable(thermometers), values, sums, before_sums);
  };
  if constexpr (kWords) {
    const int listed = s.listed_count;
    if (by_words && listed <= ListedWeights::Most(b)) {
      auto& stage = *reinterpret_cast<ListedStage*>(shared_memory + LookupOffsets::kValueScales);
      AskForListed(args, b, s.listed, listed, stage);
      AddFirstWords<kLookupDim>(args, b, scores, SharedAddress(tables), values, sums, before_sums);
      AddListed<kLookupDim>(args, b, s.listed, listed, stage, sums);
    } else {
      if (by_words) {
        s.listed.PutBack(scores, ListedWeights::Most(b));
        FillThermometers<kThreads>(args.av, thermometers);
        StageStreams(args, b, weights);
        WaitForAllCopies();
        __syncthreads();
      }
      multiply();
    }
  } else {
    multiply();
  }
}

// Computes q k, softmax and p v of all rows of the launch. Grid: plan.blocks blocks, one per SM and all on the GPU at
// once; FindStripes says which row, heads and positions a block has. kDirect: ranks need no table (RanksBySum). kWords:
// p v by first words of streams (resident_words.cuh) if the scores are in shared memory and the table has all masks
// (HasWordsMasks).
template <bool kDirect, bool kWords>
__global__ void __launch_bounds__(kThreads, 1) SplitLookupKernel(const SplitArgs args) {
  extern __shared__ __align__(256) uint8_t shared_memory[];
  const bool is_posted = args.posted.q != nullptr;
  if (!is_posted) StartNext();
  Stripes b;
  if (!FindStripes(args, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), &b)) return;
  const int tid = static_cast<int>(threadIdx.x);
  // If the row is shallower than the launch provides for, shared memory has more room after the counts.
  const int positions = min(RoundUp(b.count(), kSplitResidentStep), args.resident_positions);
  const auto counts_bytes = static_cast<int>(SplitLookupCountBytes(positions));
  const bool by_words = kWords && b.count() <= positions && HasWordsMasks(args, b);
  const bool apart = !by_words && kSplitLookupBytes + counts_bytes + args.resident_bytes <= DynamicSharedBytes();
  const int stride = positions + kSplitResidentPad;
  auto& s = *reinterpret_cast<Shared*>(shared_memory);
  uint8_t* const table = shared_memory + LookupOffsets::kTable;
  uint8_t* const scales = shared_memory + LookupOffsets::kScales;
  uint8_t* const behind = shared_memory + LookupOffsets::kCounts;
  const Counts counts{reinterpret_cast<int16_t*>(behind), stride};
  uint8_t* const weights = behind + (apart ? counts_bytes : static_cast<int>(kSplitTableBytes));
  auto* const thermometers = reinterpret_cast<uint4*>(behind);
  // Sums of p v are after the scales of V if there is room, else in place of the levels of weights, once these have
  // been read.
  const bool sums_apart = positions <= kMostBesideSums;
  auto& sums = *reinterpret_cast<Sums*>(sums_apart ? shared_memory + LookupOffsets::kSums : table);
  const auto clear_sums = [&] {
    for (int i = tid; i < kScoreHeads * (kLookupDim + 1); i += kThreads) (&sums[0][0])[i] = 0;
  };
  auto* v_scales = reinterpret_cast<float*>(shared_memory + LookupOffsets::kValueScales);
  Scores scores{reinterpret_cast<float*>(table), stride, true};
  if (b.count() > args.resident_positions) {
    scores = ScratchScores(args, b);
    v_scales = nullptr;
  }
  const KvView& kv = args.attention.kv;
  const int warp = tid >> 5;
  const HeadWarps of = HeadWarpsOf(b.heads.count);
  const int unseen = b.Local(b.row.first);
  const Seen seen{unseen, b.Local(b.row.length) - unseen};
  Prefetch(kv, b);
  WeightStreams streams{};
  LookupKeys keys(kv, b, warp * kLookupTile);
  if (tid < kScoreHeads) s.tops.count[tid] = 0;
  if (kWords && tid == 0) s.listed_count = 0;
  const Queries queries = TakeQueries<kLookupDim>(args, b, table, s.of_heads.q_scales);
  CopyCountRows(args, b, queries, SharedAddress(scales));
  CommitCopies();
  LookupQueries q(b, queries);
  keys.Begin(LookupTiles(b));
  ClearWords(args, b);
  if (!is_posted && tid < b.heads.count) s.of_heads.q_scales[tid] = queries.scales[tid];
  if (apart) streams = StageStreams(args, b, weights);
  CommitCopies();
  const LookupPlaces places(SharedAddress(table));
  WaitForCopies<1>();  // count rows have arrived
  __syncthreads();
  FillCounts(scales, q, reinterpret_cast<uint32_t*>(table), s.tops);
  __syncthreads();
  const Largest largest =
      MakeScores(args, b, scores, counts, seen, places, LookupRest(s.tops), s.of_heads.q_scales, keys);
  ShareLargest(args, b, largest, scores.at + (kScoreHeads - 1) * stride, v_scales, s);
  if (is_posted) {
    StartNext();  // after the scores: earlier prefetches of the next kernel would delay this kernel's keys
    ClearPosted(args, b);
  }
  ValueGroups<kLookupDim> values(kv, b);
  if (sums_apart) clear_sums();
  Softmax(
      args, b, scores, of, v_scales, s.of_heads,
      [&] {
        return scores.in_shared
                   ? ExponentialsOf(args, b, counts, seen, s.of_heads.q_scales, v_scales, scores.at, stride, s)
                   : Exponentials(args, b, scores, of, v_scales, s.of_heads);
      },
      [&](int first, int end) {
        if (by_words) return FillFirstWords(args, b, behind, tid - first, end - first);
        constexpr int kFilling = kThreads - 2 * kScoreHeads * 32;
        FillThermometers<kFilling>(args.av, thermometers, tid - first);
        if (!apart) StageStreams(args, b, weights, tid - first, end - first);
      },
      [&](int i, uint32_t levels) {
        return by_words ? s.listed.Take(of.head, i, levels, ListedWeights::Most(b), s.listed_count) : levels;
      });
  if (!apart) streams = StagedStreams(args, b, weights);
  WaitForAllCopies();  // streams of weights have arrived
  __syncthreads();
  const auto before_sums = [&] {
    if (sums_apart) return;
    __syncthreads();  // the levels of weights have been read
    clear_sums();
    __syncthreads();
  };
  AddProducts<kDirect, kWords>(args, b, scores, s, shared_memory, by_words, streams, weights, values, sums,
                               before_sums);
  __syncthreads();
  WriteOutput<kLookupDim>(args, b, s.of_heads.largest, sums);
  ClearWeightWords(args, b);
}

template <bool kDirect, bool kWords>
void Launch(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args) {
  const auto shared = static_cast<size_t>(plan.shared_bytes);
  AllowShared(ctx, &SplitLookupKernel<kDirect, kWords>, shared);
  LaunchOverlapped(ctx, &SplitLookupKernel<kDirect, kWords>, dim3(static_cast<unsigned>(plan.blocks)), dim3(kThreads),
                   shared, args);
}

}  // namespace

void LaunchSplitLookup(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args) {
  if (plan.kernel == SplitKernel::kLookupWords) return Launch<true, true>(ctx, plan, args);
  RanksBySum(args.av) ? Launch<true, false>(ctx, plan, args) : Launch<false, false>(ctx, plan, args);
}

}  // namespace stoch::cuda
