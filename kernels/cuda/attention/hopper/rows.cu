// SPDX-License-Identifier: Apache-2.0
// Softmax of wide tiles: turns counts of q k into codes of probabilities, one warp per row.
//
// Two passes go over the 16-bit counts of a row. The first sums the exponentials with the bits that
// kernels/math/reduce.h defines, and notes the few positions whose weight p s_v (probability times value scale) may be
// the largest. The second only needs levels: it computes a score in two operations, its exponential by ex2.approx, and
// both quotients as one product, bounds the level from above and below, and computes the level exactly if the two
// bounds differ.
//
// If positions are dealt over devices, codes overwrite counts in memory (ReplacesScores): the code of position t takes
// a byte of the count of position t / 2, which has been copied to shared memory before (row_stages.cuh).
#include "kernels/cuda/attention/hopper/row_codes.cuh"
#include "kernels/cuda/attention/hopper/wide.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/lengths.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/tensor_core/operand.cuh"
#include "kernels/math/elementary.h"
#include "kernels/math/quantize.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {
namespace {

constexpr int kBlocksPerSm = 3;  // blocks per SM; leaves 80 registers a thread
static_assert(kRowStep == kRowLanes);
// Capacity of a row's list of candidates for the largest weight.
constexpr int kCandidates = 64;
// A product e s_v below kNearly times the largest product cannot belong to the largest weight (e / sum) s_v: rounding
// changes the order only of products that are closer than 2^-20.
constexpr float kNearly = 1.0f - 0x1p-20f;
// 1.5 * 2^23: a float plus kMagic is rounded to an integer, which stands in the low bits of the sum.
constexpr float kMagic = 12582912.0f;

// The row that a warp works on. Pointers are to position 0 of the sequence.
struct Row {
  const int16_t* counts;
  const float* k_scales;
  const float* v_scales;
  int first;   // first position that the row sees
  int length;  // the row's own position + 1
  float gain, q_scale, inv_sqrt, largest;
  uint32_t exponent;  // kExponent, hidden from the compiler, which would move a constant into a register at every use
  __device__ __forceinline__ bool Sees(int t) const { return t >= first && t < length; }
  // Whether it sees all, or some, of the positions t .. t + positions - 1.
  __device__ __forceinline__ bool SeesAll(int t, int positions) const { return t >= first && t + positions <= length; }
  __device__ __forceinline__ bool SeesSome(int t, int positions) const { return t + positions > first && t < length; }
};
constexpr uint32_t kExponent = 0x4b00;  // upper 16 bits of the float 2^23

// Counts and key scales of the kRowEach positions from t on.
struct Positions {
  uint4 counts;
  float k[kRowEach];
  __device__ Positions(const Row& row, int t) : counts(*reinterpret_cast<const uint4*>(row.counts + t)) {
    Load(row.k_scales + WideScale(t), k);
  }
  __device__ explicit Positions(const RowStages::Stage& step) : counts(*step.counts) { Load(step.k, k); }
  __device__ static void Load(const float* from, float (&to)[kRowEach]) {
    const float4 low = *reinterpret_cast<const float4*>(from);
    const float4 high = *reinterpret_cast<const float4*>(from + kKeyBlock / 2);
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
  }
  // Returns the count of position t + e as a float, made by byte permutation instead of a conversion.
  template <int e>
  __device__ __forceinline__ float Count(const Row& row) const {
    const uint32_t word = (e / 2 == 0   ? counts.x
                           : e / 2 == 1 ? counts.y
                           : e / 2 == 2 ? counts.z
                                        : counts.w) ^
                          0x80008000u;
    return __uint_as_float(__byte_perm(word, row.exponent, e % 2 == 0 ? 0x5410 : 0x5432)) - 8421376.0f;  // 2^23 + 2^15
  }
  // Returns the score of position t + e minus the row's largest score.
  template <int e>
  __device__ __forceinline__ float Below(const Row& row) const {
    const float score = ((Count<e>(row) * row.gain) * (row.q_scale * k[e])) * row.inv_sqrt;
    return score - row.largest;
  }
};

// Returns Exp(x) for x <= 0, with the same bits as Exp; for NaN a number above 1e30.
__device__ __forceinline__ float ExpBelow(float x) {
  const float shifted = x * 1.44269504f + kMagic;
  const float rest = ExpRest(x, shifted - kMagic);
  const float e = __uint_as_float(__float_as_uint(rest) + (__float_as_uint(shifted) << 23));
  return x < -87.0f ? 0.0f : e;
}

// The largest value of a warp, in every lane, by butterfly reduction (shfl_xor).
__device__ __forceinline__ float WarpMax(float value) {
#pragma unroll
  for (int s = 16; s > 0; s /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, s));
  return value;
}

// Returns, in every thread of the warp, the sum of all kRowLanes lanes, folded in the order of kernels/math/reduce.h.
// Thread l passes lanes 8 l .. 8 l + 7 in x.
__device__ __forceinline__ float FoldRow(float (&x)[kRowEach]) {
#pragma unroll
  for (int s = 16; s > 0; s /= 2) {
#pragma unroll
    for (int e = 0; e < kRowEach; ++e) x[e] = x[e] + __shfl_down_sync(~0u, x[e], s);
  }
#pragma unroll
  for (int s = kRowEach / 2; s > 0; s /= 2) {
#pragma unroll
    for (int e = 0; e < s; ++e) x[e] = x[e] + x[e + s];
  }
  return __shfl_sync(~0u, x[0], 0);
}

// List of (e, s_v), exponential and value scale, of the positions whose product e s_v may belong to the row's largest
// weight.
struct Candidates {
  float2* list;  // [kCandidates] (e, s_v) in shared memory of the warp
  // Candidates found so far; if more than kCandidates, the list is incomplete.
  int count = 0;
  float best = -1.0f;
  float bound = -1.0f;  // products up to this one cannot belong to the largest weight

  // Raises `best` and `bound` if the warp has a larger product, then lists the products above `bound`. largest: the
  // largest of this lane's products.
  __device__ __forceinline__ void Note(const float (&product)[kRowEach], const float (&e)[kRowEach],
                                       const float (&v)[kRowEach], float largest) {
    best = fmaxf(best, WarpMax(largest));
    bound = best * kNearly;
    const uint32_t below = (1u << (threadIdx.x % 32)) - 1;
#pragma unroll
    for (int i = 0; i < kRowEach; ++i) {
      const uint32_t here = __ballot_sync(~0u, product[i] > bound);
      const int place = count + __popc(here & below);
      if (product[i] > bound && place < kCandidates) list[place] = make_float2(e[i], v[i]);
      count += __popc(here);
    }
  }
  // Returns the largest weight (e / sum) s_v in every lane, or a negative number if the list is incomplete.
  __device__ float Largest(float sum) const {
    if (count > kCandidates) return -1.0f;
    __syncwarp();
    float largest = 0.0f;
    for (int i = static_cast<int>(threadIdx.x % 32); i < count; i += 32) {
      largest = fmaxf(largest, list[i].x / sum * list[i].y);
    }
    return WarpMax(largest);
  }
};

// First pass over a row: adds exponentials to the lanes of the softmax sum and notes candidates. kFull: the row sees
// all kRowEach positions of every lane.
struct FirstPass {
  float lanes[kRowEach] = {};
  Candidates candidates;

  template <bool kFull>
  __device__ __forceinline__ void Add(const Row& row, int t, const RowStages::Stage& step) {
    float e[kRowEach];
    float v[kRowEach];
    float product[kRowEach];
    float largest = -1.0f;
    const Positions at(step);
    Positions::Load(step.v, v);
    Unroll([&](auto i) {
      e[i] = ExpBelow(at.template Below<i>(row));
      product[i] = e[i] * v[i];
      if (!kFull && !row.Sees(t + i)) product[i] = -1.0f;
      if (kFull || row.Sees(t + i)) lanes[i] = lanes[i] + e[i];
      largest = fmaxf(largest, product[i]);
    });
    if (__any_sync(~0u, largest > candidates.bound)) candidates.Note(product, e, v, largest);
  }
  template <typename F>
  static __device__ __forceinline__ void Unroll(const F& f) {
    f(std::integral_constant<int, 0>()), f(std::integral_constant<int, 1>()), f(std::integral_constant<int, 2>());
    f(std::integral_constant<int, 3>()), f(std::integral_constant<int, 4>()), f(std::integral_constant<int, 5>());
    f(std::integral_constant<int, 6>()), f(std::integral_constant<int, 7>());
  }
};

// Returns the row's largest weight by computing every weight; called if the list of candidates cannot tell.
__device__ __noinline__ float LargestWeight(const Row& row, float sum) {
  float largest = 0.0f;
  const int begin = row.first / kRowStep * kRowStep;
  for (int t = begin + static_cast<int>(threadIdx.x % 32) * kRowEach; t < row.length; t += kRowStep) {
    const Positions at(row, t);
    FirstPass::Unroll([&](auto i) {
      if (!row.Sees(t + i)) return;
      const float p = ExpBelow(at.template Below<i>(row)) / sum;
      largest = fmaxf(largest, p * row.v_scales[WideScale(t + i)]);
    });
  }
  return WarpMax(largest);
}

// The metric by which a rule picks the stream length of a row of probabilities (largest magnitude, L2 norm or their
// ratio, times a sign; kernels/sc/sc_lengths.h).
__device__ __forceinline__ float MetricOf(const LengthView& rule, const Row& row, float sum) {
  // The largest exponential is exp(0) = 1.
  const float largest = 1.0f / sum;
  if (rule.metric == ScMetric::kAmax) return SignedMetric(rule, largest, 0.0f);
  float squares[kRowEach] = {};
  const int begin = row.first / kRowStep * kRowStep;
  for (int t = begin + static_cast<int>(threadIdx.x % 32) * kRowEach; t < row.length; t += kRowStep) {
    const Positions at(row, t);
    FirstPass::Unroll([&](auto i) {
      if (!row.Sees(t + i)) return;
      const float p = ExpBelow(at.template Below<i>(row)) / sum;
      squares[i] = Fma(p, p, squares[i]);
    });
  }
  return SignedMetric(rule, largest, Sqrt(FoldRow(squares)));
}

// Second pass over a row: computes levels from counts.
struct Quantizer {
  float sum;
  float scale;
  int q_max;
  float factor;      // about 1 / (sum * scale)
  float more, less;  // 1 + d and 1 - d, where d exceeds the relative error of `level` in Bounds
  bool exact;        // Bounds does not hold for these numbers, so every level is computed exactly
  float per_count;   // count * k_scale * per_count is about score * log2(e)
  float largest;     // the row's largest score * log2(e)

  __device__ Quantizer(const Row& row, float sum_, float scale_, int q_max_, float v_max)
      : sum(sum_), scale(scale_), q_max(q_max_), factor(1.0f / (sum_ * scale_)) {
    constexpr float kLog2E = 1.44269504f;
    per_count = row.gain * row.q_scale * (row.inv_sqrt * kLog2E);
    largest = row.largest * kLog2E;
    // docs/numerics.md#levels-by-fast-units derives d: 2^-18 if no exponential below e^-25 gives a level above 0, else
    // 2^-16, plus 2^-20 times the largest magnitude of a score that counts. Such a score is at most 25 (else 88) below
    // the largest score.
    const bool is_near = v_max * factor * 1.4e-11f < 0.25f;
    const float d = (is_near ? 0x1p-18f : 0x1p-16f) + (fabsf(row.largest) + (is_near ? 25.0f : 88.0f)) * 0x1p-20f;
    exact = !(factor > 1e-30f && factor < 1e30f && v_max * factor < 1e25f && d < 0x1p-8f);
    more = 1.0f + d;
    less = 1.0f - d;
  }
  // Returns the level, computed as it is defined. below: the score minus the row's largest; v: the value's scale.
  __device__ __forceinline__ uint32_t Exact(float below, float v) const {
    return static_cast<uint32_t>(BipolarLevel(ExpBelow(below) / sum * v, scale, q_max));
  }
  // Sets *high and *low to an upper and a lower bound of the level, each in the low bits of a float's word (kMagic). If
  // they are equal, they are the level.
  __device__ __forceinline__ void Bounds(float count, float k, float v, uint32_t* high, uint32_t* low) const {
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(Fma(count * per_count, k, -largest)));
    const float level = e * (v * factor);
    *high = __float_as_uint(Fma(level, more, kMagic));
    *low = __float_as_uint(Fma(level, less, kMagic));
  }
};

// Returns the ranks of kRowEach levels at the stream length of `table`, for positions from t on (a multiple of
// kRowEach). packed: the same levels, a byte each.
__device__ __forceinline__ uint2 RanksOf(const RankTable& table, const uint32_t (&level)[kRowEach], const uint2& packed,
                                         int t) {
  if (table.ranks == nullptr) return make_uint2(DirectRanks<4>(packed.x).packed, DirectRanks<4>(packed.y).packed);
  static_assert(kRankMasks % kRowEach == 0);
  const uint2 classes = __ldg(reinterpret_cast<const uint2*>(table.class_of + (t & (kRankMasks - 1))));
  uint32_t ranks[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kRowEach; ++i) {
    const uint32_t row = (i < 4 ? classes.x : classes.y) >> (8 * (i % 4)) & 0xff;
    const uint32_t rank = __ldg(table.ranks + row * RankTable::kLevels + (level[i] & 0x7f));
    ranks[i / 4] |= rank << (8 * (i % 4));
  }
  return make_uint2(ranks[0], ranks[1]);
}

// Returns the codes of kRowEach positions from t on, 0 at positions that the row does not see. kFull: the row sees all
// of them. kMixed: codes are ranks.
template <bool kFull, bool kMixed>
__device__ __forceinline__ uint2 Codes(const Row& row, const Quantizer& quantizer, const RankTable& table, int t,
                                       const RowStages::Stage& step) {
  const Positions at(step);
  float v[kRowEach];
  Positions::Load(step.v, v);
  uint32_t level[kRowEach];
  uint32_t apart = quantizer.exact ? ~0u : 0u;
  uint32_t low[kRowEach];
  FirstPass::Unroll([&](auto i) {
    quantizer.Bounds(at.template Count<i>(row), at.k[i], v[i], &level[i], &low[i]);
    apart |= level[i] ^ low[i];
  });
  if (apart != 0) {
    FirstPass::Unroll([&](auto i) {
      if (quantizer.exact || level[i] != low[i]) level[i] = quantizer.Exact(at.template Below<i>(row), v[i]);
    });
  }
  if constexpr (!kFull) {
#pragma unroll
    for (int i = 0; i < kRowEach; ++i) {
      if (!row.Sees(t + i)) level[i] = 0;
    }
  }
  const auto pack = [&](int i) {
    return __byte_perm(__byte_perm(level[i], level[i + 1], 0x0040), __byte_perm(level[i + 2], level[i + 3], 0x0040),
                       0x5410);
  };
  const uint2 packed = make_uint2(pack(0), pack(4));
  if constexpr (kMixed) return (packed.x | packed.y) == 0 ? packed : RanksOf(table, level, packed, t);
  return packed;
}

// Runs both passes for the block's rows, one warp per row, and writes the codes and scale of the probabilities, the
// lists, and in kMixed the stream length. needed: flags in shared memory, which RowCodes sets.
template <bool kMixed>
__device__ __forceinline__ void WriteRows(const WideArgs& args, const QueryTile& tile, RowStages::Shared& shared,
                                          float2* candidates, uint32_t* needed) {
  const AttentionArgs& a = args.attention;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int tile_row = static_cast<int>(blockIdx.x) * kRowWarps + static_cast<int>(threadIdx.x / 32);
  const int round_head = static_cast<int>(blockIdx.y);
  const int kv_head = round_head / a.group;
  const int64_t row_index = args.FirstRow(static_cast<int>(blockIdx.z), round_head) + tile_row;
  const int begin = FirstKept(a, tile.PositionOf(0));
  const int padded = (tile.length() + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  const int64_t packed = args.FirstPosition(kv_head, tile);
  const int head = args.first_kv_head * a.group + round_head;
  // Rows past the tile's last get codes of 0, because p v multiplies all kQueryTile rows.
  const bool is_row = tile_row < tile.num_rows;
  Row row{};
  row.counts = args.scores + args.RowAt(row_index, tile);
  row.k_scales = args.k_scales + packed;
  row.v_scales = args.v_scales + packed;
  const int64_t vector = int64_t{tile.first_row + tile_row} * a.num_heads + head;
  if (is_row) {
    const int position = tile.PositionOf(tile_row);
    row.first = FirstSeen(a, position);
    row.length = position + 1;
    row.gain = kMixed ? args.lengths.qk_ranks[args.lengths.q_slots[vector]].gain : args.qk.gain;
    row.q_scale = args.q.scales[vector];
    row.inv_sqrt = a.inv_sqrt;
    row.largest = FromOrderedBits(args.row_max[row_index]);
  }
  // Hides the constant from the compiler: a scale is not negative, so its sign bit adds 0.
  row.exponent = kExponent | __float_as_uint(row.q_scale) >> 31;
  RowStages stages(shared, row.counts, row.k_scales, row.v_scales, begin, padded);

  FirstPass first;
  first.candidates.list = candidates;
  for (int at = begin; at < padded; at += RowStages::kPositions) {
    RowStages::Stage step = stages.Next(false);
    if (row.SeesAll(at, RowStages::kPositions)) {
#pragma unroll 1
      for (const float* const end = step.k + RowStages::kPositions; step.k != end; step.Advance()) {
        first.Add<true>(row, 0, step);
      }
    } else {
#pragma unroll 1
      for (int t = at; t < at + RowStages::kPositions; t += kRowStep, step.Advance()) {
        if (row.SeesSome(t, kRowStep)) first.Add<false>(row, t + lane * kRowEach, step);
      }
    }
  }
  const float sum = FoldRow(first.lanes);
  if (is_row && lane == 0 && !(sum < 1e30f)) a.reporter.Report();  // a score was not finite: its exponential is > 1e30

  // With a scale of V >= 1e20 the largest weight may be that of a subnormal probability, whose error kNearly does not
  // cover.
  const float v_max = __uint_as_float(args.v_max[kv_head]);
  float p_max = v_max < 1e20f ? first.candidates.Largest(sum) : -1.0f;
  if (p_max < 0.0f) p_max = LargestWeight(row, sum);
  const float p_scale = BipolarScale(p_max, args.av.q_max);
  if (is_row && lane == 0) args.p_scales[row_index] = p_scale;
  RankTable table;
  if constexpr (kMixed) {
    if (is_row) {
      const LengthView& rule = args.lengths.av_rule;
      const uint8_t slot =
          rule.has_rule ? SlotOfLevel(rule, FixedLevel(rule, MetricOf(rule, row, sum)), 0) : uint8_t{0};
      if (lane == 0) args.lengths.p_slots[vector] = slot;
      table = args.lengths.av_ranks[slot];
    }
  }

  const Quantizer quantizer(row, sum, p_scale, args.av.q_max, v_max);
  // Ranks above 32 are past the first word (32 cycles). With streams of two words a level is about twice its rank.
  const uint32_t add = args.av.stream_words == 2 ? 0x40404040u : 0x5f5f5f5fu;
  RowCodes row_codes(args.lists != nullptr ? args.lists + row_index * kWideListed : nullptr, needed, begin, add);
  uint8_t* const to = args.CodesAt(row_index, tile);
  for (int at = begin; at < padded; at += RowStages::kPositions) {
    // When Next returns, the counts up to these positions are in shared memory, so codes may overwrite counts in memory
    // (ReplacesScores).
    RowStages::Stage step = stages.Next(at + RowStages::kPositions >= padded);
    int t = at + lane * kRowEach;
    if (row.SeesAll(at, RowStages::kPositions)) {
#pragma unroll 1
      for (const float* const end = step.k + RowStages::kPositions; step.k != end; step.Advance(), t += kRowStep) {
        *reinterpret_cast<uint2*>(to + t) = row_codes.Take(t, Codes<true, kMixed>(row, quantizer, table, t, step));
      }
    } else {
#pragma unroll 1
      for (int first_of = at; first_of < at + RowStages::kPositions;
           first_of += kRowStep, t += kRowStep, step.Advance()) {
        uint2 codes{0, 0};
        if (row.SeesSome(first_of, kRowStep)) {
          if (t < row.length) codes = Codes<false, kMixed>(row, quantizer, table, t, step);
          codes = row_codes.Take(t, codes);
        }
        if (t < padded) *reinterpret_cast<uint2*>(to + t) = codes;
      }
    }
  }
  if (is_row && args.lists != nullptr && lane == 0) args.listed[row_index] = row_codes.count();
}

// Turns counts into codes (WriteRows). Launched with a block per (kRowWarps rows of a tile, head of the round, tile), a
// warp per row. The block collects the flags of its rows in shared memory, then ors them into args.needed.
template <bool kMixed>
__global__ void __launch_bounds__(kRowWarps * 32, kBlocksPerSm) WideSoftmaxKernel(const WideArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ RowStages::Shared shared[];  // one RowStages::Shared, followed by needed [stride / kWideValues]
  __shared__ float2 candidates[kRowWarps][kCandidates];
  auto* const needed = reinterpret_cast<uint32_t*>(shared + 1);
  const QueryTile tile = args.tiles[blockIdx.z];
  const auto words = static_cast<int>(args.stride / kWideValues);
  const uint32_t begin = args.lists == nullptr ? kSomeCode | kAllWords : 0;
  for (int i = static_cast<int>(threadIdx.x); i < words; i += kRowWarps * 32) needed[i] = begin;
  WriteRows<kMixed>(args, tile, *shared, candidates[threadIdx.x / 32], needed);
  __syncthreads();
  uint32_t* const to = args.NeededOf(args.FirstRow(static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y)));
  for (int i = static_cast<int>(threadIdx.x); i < words; i += kRowWarps * 32) {
    if (needed[i] != 0) atomicOr(to + i, needed[i]);
  }
#endif
}

}  // namespace

void LaunchWideSoftmax(DeviceContext& ctx, const WideArgs& args) {
  const dim3 grid(kQueryTile / kRowWarps, static_cast<unsigned>(args.kv_heads * args.attention.group),
                  static_cast<unsigned>(args.num_tiles));
  auto* kernel = args.is_mixed ? &WideSoftmaxKernel<true> : &WideSoftmaxKernel<false>;
  const auto shared = sizeof(RowStages::Shared) + static_cast<size_t>(args.stride / kWideValues) * sizeof(uint32_t);
  AllowShared(ctx, kernel, shared);
  kernel<<<grid, kRowWarps * 32, shared, ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("WideSoftmaxKernel");
}

}  // namespace stoch::cuda
