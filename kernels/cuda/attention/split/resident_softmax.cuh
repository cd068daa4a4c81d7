// SPDX-License-Identifier: Apache-2.0
// The softmax of resident blocks: from the scores of a stripe to levels of its weights, and what the blocks of a row
// hand to each other for it.
//
// The scale of the levels needs the largest weight (e / total) v, of an exponential e and the scale v of a value. The
// pair (e, v) with the largest product e v has it, so blocks find that pair while they make the exponentials, and hand
// it over together with the lane sums. If another pair has nearly the same product, roundings decide which weight is
// larger: only then all weights are computed for their maximum, which takes an exchange of its own (LargestWeights).
#pragma once

#include "kernels/cuda/attention/split/parts.cuh"
#include "kernels/cuda/attention/split/resident.cuh"
#include "kernels/cuda/device/exchange.cuh"
#include "kernels/math/divisor.h"
#include "kernels/math/reduce.h"
#include "kernels/math/softmax_exp.h"

namespace stoch::cuda {

// Numbers of a block's heads.
struct ResidentNumbers {
  uint64_t of_warps[kResidentWarps];  // ordered words, or candidates; then those of heads
  float largest[kValueHeads];         // score, then weight
  float totals[kValueHeads];
  float q_scales[kValueHeads];
};

// The larger of the words of warp h's lanes, which are of head h, over lanes and, through `words`, [items][kValueHeads],
// over blocks, into largest[h]. kFirst: what this block wrote before its last barrier is visible to the others of the row
// after their next one.
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

// The larger of a head's numbers over threads and, through `words`, [items][kValueHeads], over blocks, into `largest`.
// kFirst: what this block wrote before is visible to the others of the row after this, and theirs to it.
// Contains barriers of the block, the last thing in it.
template <bool kFirst>
__device__ __forceinline__ void ShareMaxima(const Stripes& b, const HeadWarps& of, float most, uint32_t* words,
                                            uint64_t (&of_warps)[kResidentWarps], float (&largest)[kValueHeads]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  uint32_t word = __reduce_max_sync(0xffffffffu, OrderedWord(most));
  if (lane == 0) of_warps[warp] = word;
  __syncthreads();
  if (warp < b.heads.count) {  // of.head is warp
    word = lane < of.warps ? static_cast<uint32_t>(of_warps[warp + lane * (kResidentWarps / of.warps)]) : 0;
    ExchangeMaximum<kFirst>(b, word, words, largest);
  }
  __syncthreads();
}

// The pair with the largest product, and how close other pairs come to it.
struct Candidate {
  // A smaller e counts as this one, whose quotient by any total up to 2^31 is a normal number. That is enough: a weight
  // does not shrink where e grows.
  static constexpr float kLeastE = 0x1p-60f;
  static constexpr float kLeastProduct = 0x1p-60f;  // of a pair whose weight is a normal number
  // A product below kNearly times another belongs to the smaller weight: a weight is two roundings away from the exact
  // product over the total, a computed product one, and kNearly one more, in all less than 8 * 2^-24.
  static constexpr float kNearly = 1.0f - 0x1p-20f;

  float e = 0.0f;
  float v = 1.0f;
  float product = 0.0f;
  float second = 0.0f;  // the largest product of other pairs; a word keeps whether it is nearly `product`

  Candidate() = default;
  __device__ __forceinline__ explicit Candidate(uint64_t word)
      : e(BitsToFloat(static_cast<uint32_t>(word))), v(BitsToFloat(static_cast<uint32_t>(word >> 32) & 0x7fffffffu)) {
    product = Product(e, v);
    second = (word >> 63) != 0 ? product : 0.0f;
  }
  // As a word that is not 0.
  __device__ __forceinline__ uint64_t Word() const {
    const uint32_t is_near = second >= product * kNearly ? 0x80000000u : 0u;  // in the place of the sign of v
    return static_cast<uint64_t>(FloatToBits(v) | is_near) << 32 | FloatToBits(e);
  }
  // Whether it is open which pair has the largest weight.
  __device__ __forceinline__ static bool IsOpen(uint64_t word) {
    const Candidate at(word);
    return at.second > 0.0f || !(at.e >= kLeastE && at.product >= kLeastProduct);
  }
  // 0 for e = 0, whatever v is: positions that are not seen.
  __device__ __forceinline__ static float Product(float e, float v) { return e > 0.0f ? fmaxf(e, kLeastE) * v : 0.0f; }

  __device__ __forceinline__ void Add(float other_e, float other_v) {
    const float other = Product(other_e, other_v);
    if (other_e != e || other_v != v) second = fmaxf(second, fminf(product, other));
    const bool is_larger = other > product;
    e = is_larger ? other_e : e;
    v = is_larger ? other_v : v;
    product = fmaxf(product, other);
  }
  // That of all lanes, to all of them.
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

// Words of args.flags, of largest weights, [items][kValueHeads]; and of candidates of the block's row and heads,
// [heads][ranks].
__device__ __forceinline__ uint32_t* WeightWords(const SplitArgs& args) { return args.flags + gridDim.x * kValueHeads; }
__device__ __forceinline__ uint64_t* CandidateWords(const SplitArgs& args, const Stripes& b) {
  return reinterpret_cast<uint64_t*>(args.flags + 2 * gridDim.x * kValueHeads) + (b.item - b.rank) * kValueHeads;
}

// Words of the candidates of a block's warps: of a head, `warps` from words + head * head_step on, warp_step apart.
struct WarpCandidates {
  const uint64_t* words;
  int head_step;
  int warp_step;
  int warps;
};

// The candidate of a head over the block's warps and the blocks of the row, into s.of_warps[head], by one warp. Returns
// whether it is open.
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

// The sums of the stripe's lanes to every block of the row.
__device__ __forceinline__ void PostLaneSums(const Stripes& b, const Scores& scores, uint32_t* sums) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < b.heads.count << b.shift; i += kSplitResidentThreads) {
    const int head = i >> b.shift;
    const int of_stripe = i & (b.stripe() - 1);
    const float* e = scores.at + head * scores.stride + of_stripe;
    const int units = b.row.units();
    float sum = 0.0f;
#pragma unroll 8
    for (int u = 0; u < units; ++u) sum = sum + e[u << b.shift];  // 0 where there is no position
    Post(sums + head * kRowLanes + (b.rank << b.shift) + of_stripe, SumWord(sum));
  }
}

// The total of a head's lane sums, in lane 0. All lanes of a warp.
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

// Exponentials in the place of scores, and the candidates of warps. Requires: s.largest of the scores.
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

// Totals and candidates over the blocks of the row. Returns whether any head's candidate is open, the same in all of these
// blocks. waiting(first, end): called by the threads that have nothing to receive. Contains barriers of the block, the
// first and the last thing in it.
template <typename Waiting>
__device__ __forceinline__ bool ShareTotals(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                            const WarpCandidates& of_warps, ResidentNumbers& s,
                                            const Waiting& waiting) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  __syncthreads();
  auto* sums = reinterpret_cast<uint32_t*>(args.scratch.lane_sums) + HeadIndex(args, b.row, b.heads.first) * kRowLanes;
  PostLaneSums(b, scores, sums);
  // Totals by the first warps and candidates by the last, side by side.
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

// The largest weights by computing all of them. Contains barriers of the block, the last thing in it.
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

// Levels of weights e / total * v of a head, without divisions.
class WeightLevels {
 public:
  __device__ __forceinline__ WeightLevels(float total, float scale, int q_max)
      : total_(total), scale_(scale), q_max_(static_cast<float>(q_max)), nearly_half_(scale * 0.4f) {}
  // Whether Of may be called.
  __device__ __forceinline__ bool IsExact() const { return total_.IsExact() && scale_.IsExact(); }
  // Those of four weights, a byte each; false where they may be others: a smaller e than divisors take, which counts as 0,
  // has a weight all the same. Positions that are not seen have e = 0, whatever v is.
  __device__ __forceinline__ bool Of(const float4& e, const float4& v, uint32_t* levels) const {
    bool is_sure = true;
    const uint32_t low = __byte_perm(Level(e.x, v.x, &is_sure), Level(e.y, v.y, &is_sure), 0x0040);
    const uint32_t high = __byte_perm(Level(e.z, v.z, &is_sure), Level(e.w, v.w, &is_sure), 0x0040);
    *levels = __byte_perm(low, high, 0x5410);
    return is_sure;
  }

 private:
  // In the last byte. Adding kShift rounds to an integer, as Rint does.
  __device__ __forceinline__ uint32_t Level(float e, float v, bool* is_sure) const {
    constexpr float kShift = 8388608.0f;  // 2^23
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

// The levels of four weights, a byte each, in the place of the first exponential, as take(i, levels) returns them of local
// positions i to i + 3. Largest weights, unless LargestWeights found them, are those of the candidates; s.largest has them
// after the next barrier.
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

// Levels of weights in the place of exponentials, which exponentials() makes. waiting: of ShareTotals; take: of QuantizeStripe.
// A barrier is to follow.
template <typename MakeExponentials, typename Waiting, typename Take>
__device__ __forceinline__ void Softmax(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                        const HeadWarps& of, const float* v_scales, ResidentNumbers& s,
                                        const MakeExponentials& exponentials, const Waiting& waiting,
                                        const Take& take) {
  const auto run = [&] {
    const bool is_open = ShareTotals(args, b, scores, exponentials(), s, waiting);
    // Every block of the row has seen the largest scores.
    if (static_cast<int>(threadIdx.x) < b.heads.count) args.flags[b.item * kValueHeads + threadIdx.x] = 0;
    if (is_open) LargestWeights(args, b, scores, of, v_scales, s);
    QuantizeStripe(args, b, scores, of, v_scales, is_open, s, take);
  };
  if (scores.in_shared) {
    // Loads from shared memory are then compiled as such.
    __builtin_assume(__isShared(scores.at));
    __builtin_assume(__isShared(v_scales));
    run();
  } else {
    run();
  }
}

}  // namespace stoch::cuda
