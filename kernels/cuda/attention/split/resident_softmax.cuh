// SPDX-License-Identifier: Apache-2.0
// The softmax of the resident kernels: turns the scores of a block's positions (Stripes) into levels of weights, with
// exchanges between the blocks that share a row.
//
// A weight is (e / total) * v, with an exponential e and the scale v of a value. The scale of the levels needs the
// largest weight, and the pair (e, v) with the largest product e * v has it. So blocks find that pair while they
// compute exponentials, and exchange it together with the lane sums. If another pair has nearly the same product,
// rounding decides which weight is larger. Only in that case, all weights are computed to find the largest, which takes
// one more exchange (LargestWeights).
#pragma once

#include "kernels/cuda/attention/split/parts.cuh"
#include "kernels/cuda/attention/split/resident.cuh"
#include "kernels/cuda/device/exchange.cuh"
#include "kernels/math/divisor.h"
#include "kernels/math/reduce.h"
#include "kernels/math/softmax_exp.h"

namespace stoch::cuda {

// Per-head numbers of a block, in shared memory.
struct ResidentNumbers {
  // One word per warp: an OrderedWord or a Candidate; later one Candidate per head.
  uint64_t of_warps[kResidentWarps];
  float largest[kValueHeads];  // [heads] the largest score, later the largest weight
  float totals[kValueHeads];   // [heads] the sum of the exponentials
  float q_scales[kValueHeads];
};

// Reduces `word` (OrderedWord) over the lanes of warp h, which works on head h, and over the blocks of the row, and
// writes the maximum as a float to largest[h]. words: [items][kValueHeads], 0 before; the blocks exchange through them.
// Called by warps 0 to heads.count - 1. kFirst: the exchange is a release/acquire, so that everything this block wrote
// before its last barrier is visible to the other blocks of the row after their next barrier.
template <bool kFirst>
__device__ __forceinline__ void ExchangeMaximum(const Stripes& b, uint32_t word, uint32_t* words,
                                                float (&largest)[kValueHeads]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  word = __reduce_max_sync(0xffffffffu, word);
  if (b.ranks > 1) {
    if (lane == 0)
      kFirst ? PostLast(words + b.item * kValueHeads + warp, word) : Post(words + b.item * kValueHeads + warp, word);
    word = 0;
    if (lane < b.ranks) {
      const uint32_t* from = words + (b.item - b.rank + lane) * kValueHeads + warp;
      word = kFirst ? ReceiveLast(from) : Receive(from);
    }
    word = __reduce_max_sync(0xffffffffu, word);
  }
  if (lane == 0) largest[warp] = FromOrderedWord(word);
}

// Reduces `most` over the threads of each head (`of`) and over the blocks of the row, and writes the maxima to
// `largest`. words: as in ExchangeMaximum. kFirst: after the call, each block of the row sees everything that the other
// blocks wrote before the call. Called by all threads; ends with a barrier.
template <bool kFirst>
__device__ __forceinline__ void ShareMaxima(const Stripes& b, const HeadWarps& of, float most, uint32_t* words,
                                            uint64_t (&of_warps)[kResidentWarps], float (&largest)[kValueHeads]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  uint32_t word = __reduce_max_sync(0xffffffffu, OrderedWord(most));
  if (lane == 0) of_warps[warp] = word;
  __syncthreads();
  if (warp < b.heads.count) {  // these warps have of.head == warp
    word = lane < of.warps ? static_cast<uint32_t>(of_warps[warp + lane * (kResidentWarps / of.warps)]) : 0;
    ExchangeMaximum<kFirst>(b, word, words, largest);
  }
  __syncthreads();
}

// The pair (e, v) with the largest product among the pairs added so far, and the largest product of the others.
struct Candidate {
  // Product takes a smaller e, other than 0, as kLeastE. Then e / total is a normal number for any total up to 2^31, so
  // that each rounding has a bounded relative error, as kNearly assumes. Raising e cannot lower the pair's weight
  // e / total * v, so a pair that loses with the raised e does not have the largest weight; if it wins, IsOpen has all
  // weights computed.
  static constexpr float kLeastE = 0x1p-60f;
  static constexpr float kLeastProduct = 0x1p-60f;  // least product whose weight is surely a normal number
  // If a product is below kNearly times another one, its weight is not the larger of the two: a weight has two
  // roundings, a product one, and the multiplication by kNearly one, whose errors together are less than 8 * 2^-24.
  static constexpr float kNearly = 1.0f - 0x1p-20f;

  float e = 0.0f;
  float v = 1.0f;
  float product = 0.0f;
  float second = 0.0f;  // the largest product of other pairs; Word() keeps only whether it is nearly `product`

  Candidate() = default;
  __device__ __forceinline__ explicit Candidate(uint64_t word)
      : e(BitsToFloat(static_cast<uint32_t>(word))), v(BitsToFloat(static_cast<uint32_t>(word >> 32) & 0x7fffffffu)) {
    product = Product(e, v);
    second = (word >> 63) != 0 ? product : 0.0f;
  }
  // Returns the candidate as a word that is not 0, for an exchange.
  __device__ __forceinline__ uint64_t Word() const {
    // flag in the sign bit of v, which is not negative
    const uint32_t is_near = second >= product * kNearly ? 0x80000000u : 0u;
    return static_cast<uint64_t>(FloatToBits(v) | is_near) << 32 | FloatToBits(e);
  }
  // Whether another pair may have the largest weight, so that all weights must be computed.
  __device__ __forceinline__ static bool IsOpen(uint64_t word) {
    const Candidate at(word);
    return at.second > 0.0f || !(at.e >= kLeastE && at.product >= kLeastProduct);
  }
  // Returns e * v, and 0 for e = 0, whatever v is: e is 0 for positions that the row does not see.
  __device__ __forceinline__ static float Product(float e, float v) { return e > 0.0f ? fmaxf(e, kLeastE) * v : 0.0f; }

  __device__ __forceinline__ void Add(float other_e, float other_v) {
    const float other = Product(other_e, other_v);
    if (other_e != e || other_v != v) second = fmaxf(second, fminf(product, other));
    const bool is_larger = other > product;
    e = is_larger ? other_e : e;
    v = is_larger ? other_v : v;
    product = fmaxf(product, other);
  }
  // Combines the candidates of all lanes of a warp; every lane gets the result.
  __device__ __forceinline__ void OverLanes() {
    constexpr uint32_t kAll = 0xffffffffu;
    const uint32_t largest = __reduce_max_sync(kAll, FloatToBits(product));
    const int lane = __ffs(static_cast<int>(__ballot_sync(kAll, FloatToBits(product) == largest))) - 1;
    const float best_e = __shfl_sync(kAll, e, lane);
    const float best_v = __shfl_sync(kAll, v, lane);
    const float other = e == best_e && v == best_v ? second : product;
    second = BitsToFloat(__reduce_max_sync(kAll, FloatToBits(other)));
    e = best_e;
    v = best_v;
    product = BitsToFloat(largest);
  }
};

// Words of args.flags, 0 between kernels, through which blocks exchange. WeightWords: the largest weights,
// [items][kValueHeads]. CandidateWords: the candidates of the block's row and heads, [heads][ranks].
__device__ __forceinline__ uint32_t* WeightWords(const SplitArgs& args) { return args.flags + gridDim.x * kValueHeads; }
__device__ __forceinline__ uint64_t* CandidateWords(const SplitArgs& args, const Stripes& b) {
  return reinterpret_cast<uint64_t*>(args.flags + 2 * gridDim.x * kValueHeads) + (b.item - b.rank) * kValueHeads;
}

// Where the block's warps have stored their candidates (Candidate::Word) in shared memory: `warps` per head, from words
// + head * head_step on, warp_step words apart.
struct WarpCandidates {
  const uint64_t* words;
  int head_step;
  int warp_step;
  int warps;
};

// Combines the candidates of a head over the block's warps and over the blocks of the row, and writes the result to
// s.of_warps[head]. Returns Candidate::IsOpen of the result. Called by all lanes of one warp.
__device__ __forceinline__ bool ShareCandidate(const SplitArgs& args, const Stripes& b, const WarpCandidates& of_warps,
                                               int head, ResidentNumbers& s) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  Candidate best;
  if (lane < of_warps.warps) best = Candidate(of_warps.words[head * of_warps.head_step + lane * of_warps.warp_step]);
  best.OverLanes();
  if (b.ranks > 1) {
    uint64_t* words = CandidateWords(args, b) + head * b.ranks;
    if (lane == 0) Post(words + b.rank, best.Word());
    best = lane < b.ranks ? Candidate(Receive(words + lane)) : Candidate();
    best.OverLanes();
  }
  const uint64_t word = best.Word();
  if (lane == 0) s.of_warps[head] = word;
  return Candidate::IsOpen(word);
}

// Adds the block's exponentials within each lane of the softmax sum (position mod kRowLanes), and posts the lane sums
// to `sums`, [heads][kRowLanes], where all blocks of the row read them. Called by all threads.
__device__ __forceinline__ void PostLaneSums(const Stripes& b, const Scores& scores, uint32_t* sums) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < b.heads.count << b.shift; i += kSplitResidentThreads) {
    const int head = i >> b.shift;
    const int of_stripe = i & (b.stripe() - 1);
    const float* e = scores.at + head * scores.stride + of_stripe;
    const int units = b.row.units();
    float sum = 0.0f;
#pragma unroll 8
    for (int u = 0; u < units; ++u) sum = sum + e[u << b.shift];  // a missing position has an exponential of 0
    Post(sums + head * kRowLanes + (b.rank << b.shift) + of_stripe, SumWord(sum));
  }
}

// Waits for the kRowLanes lane sums of a head and returns their total in lane 0, folded as kernels/math/reduce.h says.
// Called by all lanes of a warp.
__device__ __forceinline__ float ReceiveTotal(const uint32_t* sums) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  float value[kRowLanes / 32];
  uint32_t words[kRowLanes / 32] = {};
  ReceiveAll(sums + lane, 32, words);
#pragma unroll
  for (int w = 0; w < kRowLanes / 32; ++w) value[w] = FromSumWord(words[w]);
#pragma unroll
  for (int x = kRowLanes / 64; x > 0; x /= 2) {
#pragma unroll
    for (int w = 0; w < x; ++w) value[w] = value[w] + value[w + x];
  }
  float total = value[0];
  __syncwarp();
#pragma unroll
  for (int x = 16; x > 0; x /= 2) total = total + __shfl_down_sync(0xffffffffu, total, x);
  return total;
}

// Replaces scores by exponentials, and returns the candidates of the block's warps. Requires: s.largest has the largest
// scores. Called by all threads.
__device__ __forceinline__ WarpCandidates Exponentials(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                                       const HeadWarps& of, const float* v_scales, ResidentNumbers& s) {
  const KvView& kv = args.attention.kv;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  if (of.head < b.heads.count) {
    const float largest = s.largest[of.head];
    Candidate best;
    ForQuads(of, b.count(), [&](int i) {
      const float4 v = LoadScales(kv, kv.v_scales, v_scales, b, i);
      auto& at = *reinterpret_cast<float4*>(scores.at + of.head * scores.stride + i);
      const float4 score = at;
      const float4 e = make_float4(SoftmaxExp(score.x - largest), SoftmaxExp(score.y - largest),
                                   SoftmaxExp(score.z - largest), SoftmaxExp(score.w - largest));
      at = e;
      best.Add(e.x, v.x);
      best.Add(e.y, v.y);
      best.Add(e.z, v.z);
      best.Add(e.w, v.w);
    });
    best.OverLanes();
    if (lane == 0) s.of_warps[warp] = best.Word();
  }
  return {s.of_warps, 1, kResidentWarps / of.warps, of.warps};
}

// Exchanges lane sums and candidates with the blocks of the row: s.totals gets the total of each head, s.of_warps the
// candidate of each head. Returns whether any head's candidate is open, with an equal answer in all blocks of the row.
// waiting(first, end): called meanwhile by threads [first, end), which have nothing to receive. Called by all threads;
// begins and ends with a barrier.
template <typename Waiting>
__device__ __forceinline__ bool ShareTotals(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                            const WarpCandidates& of_warps, ResidentNumbers& s,
                                            const Waiting& waiting) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  __syncthreads();
  auto* sums = reinterpret_cast<uint32_t*>(args.scratch.lane_sums) + HeadIndex(args, b.row, b.heads.first) * kRowLanes;
  PostLaneSums(b, scores, sums);
  // The first warps receive totals while the last warps exchange candidates.
  const int head = kResidentWarps - 1 - warp;
  static_assert(kResidentWarps >= 2 * kValueHeads);
  bool is_open = false;
  if (warp < b.heads.count) {
    const float total = ReceiveTotal(sums + warp * kRowLanes);
    if (lane == 0) {
      s.totals[warp] = total;
      if (!IsFinite(total)) args.attention.reporter.Report();
    }
  } else if (head < b.heads.count) {
    is_open = ShareCandidate(args, b, of_warps, head, s);
  } else {
    waiting(b.heads.count * 32, kSplitResidentThreads - b.heads.count * 32);
  }
  return __syncthreads_or(is_open ? 1 : 0) != 0;
}

// Computes all weights and writes the largest one of each head, over the blocks of the row, to s.largest. Called by all
// threads; ends with a barrier.
__device__ __forceinline__ void LargestWeights(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                               const HeadWarps& of, const float* v_scales, ResidentNumbers& s) {
  const KvView& kv = args.attention.kv;
  float most = 0.0f;
  if (of.head < b.heads.count) {
    const float total = s.totals[of.head];
    ForQuads(of, b.count(), [&](int i) {
      const float4 v = LoadScales(kv, kv.v_scales, v_scales, b, i);
      const float4 e = *reinterpret_cast<const float4*>(scores.at + of.head * scores.stride + i);
      const float weight[4] = {e.x / total * v.x, e.y / total * v.y, e.z / total * v.z, e.w / total * v.w};
      const int seen = b.row.length - b.Token(i);
#pragma unroll
      for (int x = 0; x < 4; ++x) most = x < seen ? fmaxf(most, weight[x]) : most;
    });
  }
  ShareMaxima<false>(b, of, most, WeightWords(args), s.of_warps, s.largest);
}

// Computes the levels of the weights e / total * v of a head without divisions (Divisor).
class WeightLevels {
 public:
  __device__ __forceinline__ WeightLevels(float total, float scale, int q_max)
      : total_(total), scale_(scale), q_max_(static_cast<float>(q_max)), nearly_half_(scale * 0.4f) {}
  // Whether total and scale are in the range for which Divisor is exact. Requirement of Of().
  __device__ __forceinline__ bool IsExact() const { return total_.IsExact() && scale_.IsExact(); }
  // Writes the levels of four weights to *levels, a byte each. Returns false if a level may be wrong: an e below
  // Divisor::kLeast counts as 0, although its weight may be large enough for another level. Positions that the row does
  // not see have e = 0, whatever v is.
  __device__ __forceinline__ bool Of(const float4& e, const float4& v, uint32_t* levels) const {
    bool is_sure = true;
    const uint32_t low = __byte_perm(Level(e.x, v.x, &is_sure), Level(e.y, v.y, &is_sure), 0x0040);
    const uint32_t high = __byte_perm(Level(e.z, v.z, &is_sure), Level(e.w, v.w, &is_sure), 0x0040);
    *levels = __byte_perm(low, high, 0x5410);
    return is_sure;
  }

 private:
  // Returns the level in the lowest byte. Adding kShift rounds to an integer as Rint does.
  __device__ __forceinline__ uint32_t Level(float e, float v, bool* is_sure) const {
    constexpr float kShift = 8388608.0f;  // 2^23, from where on a float is an integer
    const float weight = total_.Quotient(e) * v;
    const bool is_none = e < Divisor::kLeast;
    if (is_none && weight > nearly_half_) *is_sure = false;
    return FloatToBits(is_none ? kShift : fminf(scale_.Quotient(weight), q_max_) + kShift);
  }

  Divisor total_;
  Divisor scale_;
  float q_max_;
  float nearly_half_;
};

// Quantizes the weights of the block's positions. For each four local positions i to i + 3, packs their levels into a
// word, a byte each, passes it to take(i, levels), and stores what that returns in place of the exponential of position
// i. is_open: the largest weight of each head is in s.largest (LargestWeights found it); else it is computed from the
// head's candidate here, and s.largest has it after the next barrier. Called by all threads.
template <typename Take>
__device__ __forceinline__ void QuantizeStripe(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                               const HeadWarps& of, const float* v_scales, bool is_open,
                                               ResidentNumbers& s, const Take& take) {
  if (of.head >= b.heads.count) return;
  const KvView& kv = args.attention.kv;
  const float total = s.totals[of.head];
  float largest;
  if (is_open) {
    largest = s.largest[of.head];
  } else {
    const Candidate best(s.of_warps[of.head]);
    largest = best.e / total * best.v;
    if (of.warp == 0 && (threadIdx.x & 31) == 0) s.largest[of.head] = largest;
  }
  const float scale = BipolarScale(largest, args.av.q_max);
  const WeightLevels levels_of(total, scale, args.av.q_max);
  const bool is_exact = levels_of.IsExact();
  ForQuads(of, b.count(), [&](int i) {
    const float4 v = LoadScales(kv, kv.v_scales, v_scales, b, i);
    float* at = scores.at + of.head * scores.stride + i;
    const float4 e = *reinterpret_cast<const float4*>(at);
    uint32_t levels;
    if (!(is_exact && levels_of.Of(e, v, &levels))) {
      const float4 weight = make_float4(e.x / total * v.x, e.y / total * v.y, e.z / total * v.z, e.w / total * v.w);
      levels = QuantizeWeights(args, b.row, b.Token(i), weight, scale);
    }
    *reinterpret_cast<uint32_t*>(at) = take(i, levels);
  });
}

// Turns the scores of a block into the levels of its weights. exponentials(): replaces scores by exponentials and
// returns the candidates of the warps; waiting: see ShareTotals; take: see QuantizeStripe. Called by all threads; the
// caller puts a barrier after it.
template <typename MakeExponentials, typename Waiting, typename Take>
__device__ __forceinline__ void Softmax(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                        const HeadWarps& of, const float* v_scales, ResidentNumbers& s,
                                        const MakeExponentials& exponentials, const Waiting& waiting,
                                        const Take& take) {
  const auto run = [&] {
    const bool is_open = ShareTotals(args, b, scores, exponentials(), s, waiting);
    // ShareTotals received lane sums, which a block of the row posts only after it has read the exchanged largest
    // scores. So the words of the largest scores can be 0 again.
    if (static_cast<int>(threadIdx.x) < b.heads.count) args.flags[b.item * kValueHeads + threadIdx.x] = 0;
    if (is_open) LargestWeights(args, b, scores, of, v_scales, s);
    QuantizeStripe(args, b, scores, of, v_scales, is_open, s, take);
  };
  if (scores.in_shared) {
    // Tells the compiler to load from shared memory instead of generic addresses.
    __builtin_assume(__isShared(scores.at));
    __builtin_assume(__isShared(v_scales));
    run();
  } else {
    run();
  }
}

}  // namespace stoch::cuda
