// SPDX-License-Identifier: Apache-2.0
// One row and query head of attention of any setting, by one block of kThreads threads. Included by attention.cu alone.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/device/block_softmax.cuh"
#include "kernels/cuda/device/lengths.cuh"
#include "kernels/cuda/device/quantizer.cuh"
#include "kernels/cuda/plain/counts.cuh"
#include "kernels/cuda/plain/formats.cuh"
#include "kernels/cuda/plain/gates.cuh"
#include "kernels/cuda/sc/format/hardware.h"
#include "kernels/math/gated.h"

namespace stoch::cuda::plain_attention {

inline constexpr int kThreads = kRowLanes;
inline constexpr int kMaxHeadDim = 256;
inline constexpr int kNearScores = 1024;  // positions of a row whose scores fit in shared memory
// Marks of a position that dilated attention skips: kSkipped in place of its probability and weight, kNotAdmitted in
// place of its code. No other position has them: its weight is never -0.0f.
inline constexpr float kSkipped = -0.0f;
inline constexpr uint32_t kNotAdmitted = 0xffffffffu;
inline constexpr int64_t kIntChunk = 128;  // positions of p v that share a scale in integers and in E4M3

// kWhole: one launch does all, if the stream length of a row's probabilities depends on that row alone. Otherwise one
// launch computes the metrics of all rows (kMetrics), and after the rule has picked lengths, another the outputs
// (kOutputs).
enum class Phase : uint8_t { kWhole, kMetrics, kOutputs };

// Arguments of PlainRowKernel.
struct RowArgs {
  AttentionArgs attention;
  DilatedPairs pairs;
  LengthView qk, av;
  HardwareView qk_hardware, av_hardware;
  uint64_t qk_site = 0, av_site = 0;  // ScSite::number of query head 0, which faults are drawn by
  // p v in integers or E4M3: every kIntChunk positions have a scale of their own.
  bool int_av = false;
  NonlinearView exp;  // function table that replaces Exp; if its size is 0, Exp itself is used
  Phase phase = Phase::kWhole;
  const uint8_t* q_codes = nullptr;  // codes of the queries [rows][num_heads][head_dim]
  const float* q_scales = nullptr;   // scales of the queries [rows][num_heads][KvView::key_scales]
  const uint8_t* q_slots = nullptr;  // [rows][num_heads] slots (indices of stream lengths) of the queries; null: slot 0
  // [rows][num_heads] slots of the probabilities: read in kOutputs, written in kWhole.
  uint8_t* p_slots = nullptr;
  // [rows][num_heads] metrics of the probabilities, by which a rule picks stream lengths; written in kMetrics.
  float* p_metrics = nullptr;
  // [rows of the launch][num_heads][stride], from position Row::begin on: scores, then probabilities, weights, codes.
  float* scores = nullptr;
  int64_t stride = 0;  // a multiple of 4
  int32_t first_row = 0;
};

// The count of codes a and b in dimension (in p v: position) dim, with the product's sign.
template <typename Count>
__device__ inline int32_t SignedCount(const LengthView& view, const LengthTable& table, int dim, int a, int b) {
  const bool sign_magnitude = view.code == ScCode::kSignMagnitude;
  const int level_mask = sign_magnitude ? 0x7f : 0xff;
  const int at = ((dim & table.mask_bits) * view.levels + (a & level_mask)) * view.levels + (b & level_mask);
  const auto count = static_cast<int32_t>(CountsOf<Count>(table)[at]);
  return sign_magnitude && ((a ^ b) & 0x80) != 0 ? -count : count;
}

// Whether the table is that of stream length 0, whose products are all 0.
__device__ inline bool IsPruned(const LengthTable& table) {
  return table.counts16 == nullptr && table.counts32 == nullptr;
}

// The accumulator of one output, fed dimension by dimension (in p v: position by position), with the adder,
// the register and the faults of `hardware`.
class PlainSum {
 public:
  // skipped: number of dimensions of the chunk before the first one that is added; they count as zeros.
  __device__ PlainSum(const LengthView& view, const LengthTable& table, const HardwareView& hardware, int64_t skipped)
      : view_(view), table_(table), hardware_(hardware), gates_(hardware.gates) {
    if (hardware.gates.steps != nullptr) gates_.Skip(static_cast<int>(skipped % hardware.gates.group));
    const int group = hardware.accumulator.acc_group;
    left_ = group == 0 ? 0 : group - static_cast<int>(skipped % group);
  }

  // Adds the product of codes a and b.
  __device__ void Add(int64_t dim, int a, int b) {
    if (view_.code == ScCode::kSignMagnitude) {
      negatives_ += ((a ^ b) & 0x80) != 0 ? 1 : 0;
    } else {
      negatives_ += (a < view_.q_max) != (b < view_.q_max) ? 1 : 0;
    }
    ++dims_;
    if (hardware_.gates.steps != nullptr) return gates_.Add(dim % hardware_.gates.masks, a, b);
    part_ += view_.wide ? SignedCount<int32_t>(view_, table_, static_cast<int>(dim), a, b)
                        : SignedCount<int16_t>(view_, table_, static_cast<int>(dim), a, b);
    if (hardware_.accumulator.acc_group == 0 || --left_ > 0) return;
    Clamp();
  }
  // The accumulator's value after faults. keys, column: what faults are drawn by.
  __device__ int32_t Finish(const ScAccumulatorView::Row& keys, uint64_t column) {
    int64_t acc = part_;
    if (hardware_.gates.steps != nullptr) {
      gates_.End();
      acc = gates_.total();
    } else if (hardware_.accumulator.acc_group > 0) {
      Clamp();
      acc = acc_;
    }
    const int64_t negatives = hardware_.accumulator.wants_negatives() ? negatives_ : 0;
    return hardware_.accumulator.Finish(acc, negatives, dims_, table_.stoc_len, keys, column);
  }

 private:
  __device__ void Clamp() {
    acc_ = hardware_.accumulator.Clamp(acc_ + part_);
    part_ = 0;
    left_ = hardware_.accumulator.acc_group;
  }

  const LengthView& view_;
  const LengthTable& table_;
  const HardwareView& hardware_;
  GateSum gates_;
  int64_t acc_ = 0;
  int32_t part_ = 0, negatives_ = 0;
  int64_t dims_ = 0;
  int left_;  // dimensions until the register clamps
};

// The row and head of a block, and where their data lies.
struct Row {
  const RowArgs& args;
  const AttentionArgs& a;
  const KvView& kv;
  AdmittedRow& admitted;  // in shared memory; filled by all threads
  int32_t row, head, kv_head;
  // The row sees positions [first_seen, visible); positions before first_seen have a score of -inf.
  int32_t visible;
  int32_t first_seen;
  // A multiple of kRowLanes at or before every position that the row sees; 0 unless attention is dilated.
  int32_t begin = 0;
  const int32_t* pages;
  float* scores;  // indexed by position, from `begin` on
  // Index of (row, head).
  int64_t vector;
  // The row's number that faults are drawn by.
  uint64_t fault_row;

  // near: [kNearScores] shared memory, which replaces RowArgs::scores if all positions fit.
  __device__ Row(const RowArgs& row_args, AdmittedRow& admitted_row, float* near)
      : args(row_args), a(row_args.attention), kv(row_args.attention.kv), admitted(admitted_row) {
    row = args.first_row + static_cast<int32_t>(blockIdx.y);
    head = static_cast<int32_t>(blockIdx.x);
    kv_head = head / a.group;
    const PassRow info = a.pass.rows[row];
    visible = info.position + 1;
    first_seen = a.window > 0 ? max(0, visible - a.window) : 0;
    pages = a.pass.pages + static_cast<int64_t>(info.sequence) * a.pass.max_pages;
    scores = args.scores + (static_cast<int64_t>(blockIdx.y) * a.num_heads + head) * args.stride;
    vector = static_cast<int64_t>(row) * a.num_heads + head;
    fault_row = FaultRow(a.pass.sequences[info.sequence].number, info.position);
    if (args.pairs.count > 0) {
      admitted.Find(args.pairs, head, info.position, first_seen);
      __syncthreads();
      begin = min(admitted.Begin(), info.position) / kRowLanes * kRowLanes;
    }
    scores = (visible - begin <= kNearScores ? near : scores) - begin;
  }
  __device__ int32_t page(int64_t t) const { return pages[t >> kv.page_shift]; }
  __device__ int slot(int64_t t) const { return static_cast<int>(t) & (kv.page_tokens - 1); }
  __device__ float* out() const { return a.out + row * a.out_stride + static_cast<int64_t>(head) * kv.head_dim; }
  // Key of the random numbers of this row and head for one kind of fault.
  __device__ uint64_t KeyOf(uint64_t seed, FaultKind kind, uint64_t site) const {
    return RandomBits(SiteKey(seed, kind, site + static_cast<uint64_t>(head)), 0, fault_row);
  }
  __device__ ScAccumulatorView::Row KeysOf(const HardwareView& hardware, uint64_t site) const {
    return {KeyOf(hardware.seed, FaultKind::kProduct, site), KeyOf(hardware.seed, FaultKind::kAcc, site)};
  }
  // The code of position t's weight as it is read, with faults.
  __device__ uint8_t ReadWeight(uint8_t code, int64_t t) const {
    const HardwareView& hardware = args.av_hardware;
    if (!hardware.activation.any() || t < first_seen) return code;
    int level = 0;
    return hardware.activation.ReadCode(code, KeyOf(hardware.seed, FaultKind::kActivation, args.av_site),
                                        static_cast<uint64_t>(t), &level);
  }
  // The codes of dimensions 4 i to 4 i + 3 of the key at position t.
  __device__ uint32_t key(int32_t page, int64_t t, int i) const {
    return kv.k_words[kv.KWord(page, kv_head, i, slot(t))];
  }
  // The code of dimension dim of the value at position t.
  __device__ int value(int64_t t, int dim) const {
    const auto* v = reinterpret_cast<const uint8_t*>(kv.v_words);
    return v[kv.VWord(page(t), kv_head, slot(t) / 4, dim) * 4 + slot(t) % 4];
  }
  // The weight (number to quantize): the probability of position t times the value's scale. In a window of a ring only
  // pages from the first admitted position on have scales.
  __device__ float weight(int64_t t) const {
    const float p = scores[t];
    return p == 0.0f ? p : p * kv.v_scales[kv.Scale(page(t), kv_head, slot(t))];
  }
};

// Words of codes that a thread loads before it looks the first one up.
constexpr int kWordsInFlight = 8;

// Byte i of a word of four codes.
__device__ inline int CodeOf(uint32_t word, int i) { return static_cast<int>(word >> 8 * i & 0xff); }

// The sum of the counts of q and the key at position t. q: codes [head_dim], 4-byte aligned.
template <typename Count>
__device__ inline int32_t SumKey(const Row& r, const LengthTable& table, const uint8_t* q, int32_t page, int64_t t) {
  const int words = r.kv.head_dim / 4;
  const auto* q_words = reinterpret_cast<const uint32_t*>(q);
  int32_t acc = 0;
  const auto add = [&](int i, uint32_t word) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      acc += SignedCount<Count>(r.args.qk, table, 4 * i + j, CodeOf(q_words[i], j), CodeOf(word, j));
    }
  };
  int first = 0;
  for (; first + kWordsInFlight <= words; first += kWordsInFlight) {
    uint32_t word[kWordsInFlight];
#pragma unroll
    for (int i = 0; i < kWordsInFlight; ++i) word[i] = r.key(page, t, first + i);
#pragma unroll
    for (int i = 0; i < kWordsInFlight; ++i) add(first + i, word[i]);
  }
  for (; first < words; ++first) add(first, r.key(page, t, first));
  return acc;
}

// The accumulator of the products of q and the key at position t. kHardware: the product may have faults, adders made
// of gates or a narrow register.
template <bool kHardware>
__device__ inline int32_t Product(const Row& r, const LengthTable& table, const uint8_t* q, int32_t page, int64_t t) {
  if constexpr (kHardware) {
    if (r.args.qk_hardware.finishes) {
      PlainSum sum(r.args.qk, table, r.args.qk_hardware, 0);
      for (int d = 0; d < r.kv.head_dim; ++d) {
        sum.Add(d, q[d], CodeOf(r.key(page, t, d / 4), d % 4));
      }
      return sum.Finish(r.KeysOf(r.args.qk_hardware, r.args.qk_site), FaultColumn(0, t));
    }
  }
  return r.args.qk.wide ? SumKey<int32_t>(r, table, q, page, t) : SumKey<int16_t>(r, table, q, page, t);
}

// Returns the score q k at position t in a number format (E4M3 or MXINT8), scaled to a real number.
__device__ inline float FormatScore(const Row& r, const uint8_t* q, int32_t page, int64_t t) {
  const int blocks = r.kv.key_scales;
  const int size = blocks == 1 ? r.kv.head_dim : static_cast<int>(kMxBlock);
  const float* q_scales = r.args.q_scales + r.vector * blocks;
  const float* k_scales = r.kv.k_scales + r.kv.Scale(page, r.kv_head, r.slot(t)) * blocks;
  float y = 0.0f;
  for (int c = 0; c < blocks; ++c) {
    FormatSum sum(r.args.qk.arith);
    for (int d = c * size; d < min((c + 1) * size, r.kv.head_dim); d += 4) {
      const uint32_t word = r.key(page, t, d / 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum.Add(q[d + i], static_cast<uint8_t>(word >> 8 * i));
    }
    y = y + sum.Value(q_scales[c], k_scales[c]);
  }
  return y;
}

// Writes the scores of the row, -inf at positions that the row does not see. All threads of the block.
template <bool kHardware>
__device__ inline void Score(const Row& r, const uint8_t* q) {
  const LengthTable table = r.args.qk.tables[r.args.q_slots == nullptr ? 0 : r.args.q_slots[r.vector]];
  const bool is_format = IsNumberFormat(r.args.qk.arith);
  const float q_scale = r.args.q_scales[r.vector * r.kv.key_scales];
  const auto score_of = [&](int64_t t) {
    float score = 0.0f;
    if (is_format) {
      score = FormatScore(r, q, r.page(t), t) * r.a.inv_sqrt;
    } else {
      const int32_t page = r.page(t);
      const float k_scale = r.kv.k_scales[r.kv.Scale(page, r.kv_head, r.slot(t))];
      const int32_t acc = IsPruned(table) ? 0 : Product<kHardware>(r, table, q, page, t);
      score = BipolarProduct(acc, table.gain, q_scale, k_scale) * r.a.inv_sqrt;
    }
    return r.a.score_cap > 0.0f ? SoftCap(score, r.a.score_cap) : score;
  };
  const bool is_dilated = r.args.pairs.count > 0;
  for (int64_t t = r.begin + threadIdx.x; t < r.visible; t += kThreads) {
    r.scores[t] = is_dilated || t < r.first_seen ? BitsToFloat(0xff800000u) : score_of(t);
  }
  if (!is_dilated) return;
  __syncthreads();
  for (int pair = 0; pair < r.admitted.count; ++pair) {
    const int64_t step = r.admitted.dilation[pair];
    for (int64_t t = r.admitted.first[pair] + threadIdx.x * step; t < r.visible; t += kThreads * step) {
      if (!r.admitted.IsTaken(pair, static_cast<int>(t))) r.scores[t] = score_of(t);
    }
  }
}

// Turns the scores into probabilities, kSkipped where dilated attention skips the position; false if the row sees no
// position.
__device__ inline bool Softmax(const Row& r, float* shared) {
  const float largest = BlockLargest(r.scores, r.begin, r.visible, shared);
  if (r.args.pairs.count > 0 && largest == BitsToFloat(0xff800000u)) return false;
  const float sum = BlockSoftmax(r.scores, r.begin, r.visible, largest, shared, [&](int t, float x) {
    const float e = r.args.exp.size > 0 ? r.args.exp.ExpAt(x) : Exp(x);
    if (r.args.pairs.count == 0) return e;
    const int times = r.admitted.Times(t);
    return times == 0 ? kSkipped : static_cast<float>(times) * e + 0.0f;  // + 0.0f: an e of -0.0f is not kSkipped
  });
  if (threadIdx.x == 0 && !IsFinite(sum)) r.a.reporter.Report();
  __syncthreads();
  return true;
}

// SumValues for hardware that takes positions in order: a thread per dimension adds positions [begin, end), which are
// chunk c.
__device__ inline int32_t FinishValues(const Row& r, const LengthTable& table, int64_t begin, int64_t end, int64_t c) {
  const int dim = static_cast<int>(threadIdx.x);
  if (dim >= r.kv.head_dim || IsPruned(table)) return 0;
  const HardwareView& hardware = r.args.av_hardware;
  const int64_t first = max(begin, static_cast<int64_t>(r.first_seen));
  if (first >= end) return 0;
  PlainSum sum(r.args.av, table, hardware, first - begin);
  for (int64_t t = first; t < end; ++t) sum.Add(t, static_cast<int>(FloatToBits(r.scores[t])), r.value(t, dim));
  return sum.Finish(r.KeysOf(hardware, r.args.av_site), FaultColumn(c, dim));
}

// The sum of the counts of p v in dimension dim over every `stride`-th group of four positions from `first` to `end`.
// first: a multiple of 4.
template <typename Count>
__device__ inline int32_t SumValue(const Row& r, const LengthTable& table, int64_t first, int64_t end, int stride,
                                   int dim) {
  constexpr int kGroups = kWordsInFlight / 2;
  int32_t acc = 0;
  for (; first < end; first += kGroups * stride) {
    alignas(16) uint32_t p[kGroups][4];
    uint32_t word[kGroups];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int64_t t = first + i * stride;
#pragma unroll
      for (int j = 0; j < 4; ++j) p[i][j] = kNotAdmitted;
      if (t < end) *reinterpret_cast<uint4*>(p[i]) = *reinterpret_cast<const uint4*>(r.scores + t);
#pragma unroll
      for (int j = 1; j < 4; ++j) p[i][j] = t + j < end ? p[i][j] : kNotAdmitted;
      const bool is_admitted = (p[i][0] & p[i][1] & p[i][2] & p[i][3]) != kNotAdmitted;
      word[i] = is_admitted ? r.kv.v_words[r.kv.VWord(r.page(t), r.kv_head, r.slot(t) / 4, dim)] : 0;
    }
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        // Skipped positions are looked up too, and not added: without a branch all lookups are in flight together.
        const bool skips = p[i][j] == kNotAdmitted;
        const int code = skips ? 0 : static_cast<int>(p[i][j]);
        const int at = static_cast<int>(first) + i * stride + j;
        const int32_t count = SignedCount<Count>(r.args.av, table, at, code, CodeOf(word[i], j));
        acc += skips ? 0 : count;
      }
    }
  }
  return acc;
}

// The sum of the counts of p v over positions [begin, end), whose codes of p are in `scores`. Threads below head_dim
// return the sum of their dimension, other threads 0. sums: [kThreads] shared memory.
__device__ inline int32_t SumValues(const Row& r, const LengthTable& table, int64_t begin, int64_t end, int32_t* sums) {
  const int head_dim = r.kv.head_dim;
  const int groups = kThreads / head_dim;
  const int group = static_cast<int>(threadIdx.x) / head_dim;
  const int dim = static_cast<int>(threadIdx.x) % head_dim;
  // Whole pages before the window are skipped, not single positions, as on the CPU.
  const int64_t from = max(begin, static_cast<int64_t>(r.first_seen) >> r.kv.page_shift << r.kv.page_shift);
  int32_t acc = 0;
  if (group < groups && !IsPruned(table)) {
    acc = r.args.av.wide ? SumValue<int32_t>(r, table, from + 4 * group, end, 4 * groups, dim)
                         : SumValue<int16_t>(r, table, from + 4 * group, end, 4 * groups, dim);
  }
  __syncthreads();
  sums[threadIdx.x] = acc;
  __syncthreads();
  int32_t total = 0;
  if (static_cast<int>(threadIdx.x) < head_dim) {
    for (int g = 0; g < groups; ++g) total += sums[g * head_dim + dim];
  }
  return total;
}

// The sum of p v over positions [begin, end) in E4M3, a thread per dimension.
__device__ inline FormatSum SumFormatValues(const Row& r, int64_t begin, int64_t end) {
  FormatSum sum(r.args.av.arith);
  const int dim = static_cast<int>(threadIdx.x);
  if (dim >= r.kv.head_dim) return sum;
  for (int64_t t = max(begin, static_cast<int64_t>(r.first_seen)); t < end; ++t) {
    sum.Add(static_cast<uint8_t>(FloatToBits(r.scores[t])), static_cast<uint8_t>(r.value(t, dim)));
  }
  return sum;
}

// Quantizes the weights (probabilities times value scales), chunk by chunk, multiplies with the values and writes the
// output.
template <bool kHardware>
__device__ inline void Output(const Row& r, const LengthTable& table, float* shared, int32_t* sums) {
  const ScopeParams params{r.args.av.code, r.args.av.q_max, r.args.av.scale_floor};
  const int64_t chunk = r.args.int_av ? kIntChunk : r.visible;
  float y = 0.0f;
  for (int64_t begin = r.begin; begin < r.visible; begin += chunk) {
    const int64_t end = min(begin + chunk, static_cast<int64_t>(r.visible));
    float largest = 0.0f;
    for (int64_t t = begin + threadIdx.x; t < end; t += kThreads) {
      const float weight = r.weight(t);
      r.scores[t] = weight;
      largest = fmaxf(largest, BitsToFloat(FloatToBits(weight) & 0x7fffffffu));
    }
    Extremes e;
    e.max_abs_bits = FloatToBits(BlockMax(largest, shared));
    const PlainScope scope(params, r.args.av.arith, e);
    if (threadIdx.x == 0 && !scope.finite) r.a.reporter.Report();
    for (int64_t t = begin + threadIdx.x; t < end; t += kThreads) {
      const float weight = r.scores[t];
      uint32_t code = scope.Code(params, weight);
      if constexpr (kHardware) code = r.ReadWeight(static_cast<uint8_t>(code), t);
      if (r.args.pairs.count > 0 && FloatToBits(weight) == FloatToBits(kSkipped)) code = kNotAdmitted;
      r.scores[t] = BitsToFloat(code);
    }
    __syncthreads();
    if (IsNumberFormat(r.args.av.arith)) {
      y = y + SumFormatValues(r, begin, end).Value(scope.scale, 1.0f);
      continue;
    }
    const bool finishes = kHardware && r.args.av_hardware.finishes;
    const int32_t sum =
        finishes ? FinishValues(r, table, begin, end, begin / chunk) : SumValues(r, table, begin, end, sums);
    y = r.args.int_av ? y + static_cast<float>(sum) * scope.scale
                      : (static_cast<float>(sum) * table.gain) * scope.scale;
  }
  if (static_cast<int>(threadIdx.x) >= r.kv.head_dim) return;
  r.out()[threadIdx.x] = y;
}

}  // namespace stoch::cuda::plain_attention
