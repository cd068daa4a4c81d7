// SPDX-License-Identifier: Apache-2.0
// Attention over the paged cache, in its four modes (AttentionCall in calls.h, docs/sc_arithmetic.md#6-in-the-model).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/cpu/context.h"
#include "kernels/cpu/kv_cache.h"
#include "kernels/stripes.h"

namespace stoch::cpu {

// Numbers of the operators of attention (ScSite).
inline constexpr int kQkOperator = 8;
inline constexpr int kAvOperator = 9;

// Gives the positions before `first` scores that no softmax sees (AttentionCall::window).
void HideScores(float* scores, int64_t first);

// A checked call, q and k rotated, k and v of the pass in the cache.
struct AttentionWork {
  const AttentionCall& call;
  const CpuKvCache& cache;
  std::vector<PassLayout::Sequence> sequences;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t page_tokens = 0;
  float scale = 0;  // 1 / sqrt(head_dim)
  // q as it was before AttentionCall::qk_smooth, [rows][heads][head_dim], where lengths go by it.
  const float* raw_q = nullptr;
  int64_t raw_q_step = 0;  // floats of a row

  const AttentionProduct& qk() const { return cache.qk(call.cache_layer); }
  const AttentionProduct& av() const { return cache.av(call.cache_layer); }

  // Where in the model the products of a head are. Requires: `head` counts from the call's first query or KV head.
  ScSite SiteOf(int op, int64_t head) const { return {.layer = call.site.layer, .op = op, .unit = head}; }
  ScSite QuerySite(int op, int64_t head) const { return SiteOf(op, call.first_head + head); }
  ScSite KeySite(int op, int64_t kv_head) const { return SiteOf(op, call.first_head / group() + kv_head); }
  const float* metric_q(int64_t row, int64_t head) const {
    return raw_q == nullptr ? q(row, head) : raw_q + row * raw_q_step + head * head_dim;
  }

  // Scaled scores to those that the softmax sees (AttentionCall::score_cap).
  void CapScores(float* scores, int64_t n) const;

  int64_t group() const { return num_heads / num_kv_heads; }  // query heads of a KV head
  // The first position that the row at `position` sees, and where the page of that begins.
  int64_t FirstSeen(int64_t position) const {
    return call.window > 0 ? std::max<int64_t>(0, position - call.window + 1) : 0;
  }
  int64_t FirstSeenPage(int64_t position) const { return FirstSeen(position) / page_tokens * page_tokens; }
  const float* q(int64_t row, int64_t head) const {
    return call.q.ptr<const float>() + row * call.q.step(0) + head * head_dim;
  }
  float* out(int64_t row, int64_t head) const {
    return call.out.ptr<float>() + row * call.out.step(0) + head * head_dim;
  }
  int64_t slab(const PassLayout::Sequence& sequence, int64_t position, int64_t kv_head) const {
    return cache.Slab(call.cache_layer, sequence.pages[static_cast<size_t>(position / page_tokens)], kv_head);
  }
};

// Rows of one sequence that a thread takes together, with one KV head.
struct AttentionTile {
  const PassLayout::Sequence* sequence = nullptr;
  int64_t kv_head = 0;
  int64_t first_row = 0;  // row of the pass
  int64_t num_rows = 0;
  int64_t first_position = 0;                                   // position of first_row
  int64_t window() const { return first_position + num_rows; }  // positions its last row sees
};

// The tiles of a pass by who computes them: one thread each, or all threads together, over ranges of its positions,
// where a tile of a deep context would keep one thread busy after the others have nothing left.
struct AttentionTiles {
  std::vector<AttentionTile> whole;
  std::vector<AttentionTile> shared;
};
AttentionTiles MakeTiles(const AttentionWork& work, int64_t rows_per_tile, int threads);

// One of the query rows that a tile has: the rows of a pass times the query heads of a KV head.
struct AttentionTileRow {
  size_t tile = 0;
  int64_t n = 0;
};

// Positions of one shared tile that one thread takes: whole pages, but for the window's end.
struct AttentionRange {
  size_t tile = 0;  // index in AttentionTiles::shared
  int64_t begin = 0;
  int64_t end = 0;
};
std::vector<AttentionRange> CutPositions(const AttentionWork& work, const std::vector<AttentionTile>& tiles,
                                         int threads);

// Lengths of the rows of one product of a pass, dispatched a sequence at a time: the metric of each (row, query head)
// becomes a slot of its operator.
class AttentionSlots {
 public:
  AttentionSlots(const AttentionWork& work, const AttentionProduct& product, std::string_view op);

  bool mixed() const { return product_.rule() != nullptr; }
  // Whether a slot depends on its own row alone.
  bool alone() const { return !mixed() || product_.rule()->normalise == ScNormalise::kFixed; }
  // `x` is the row's operand; with `alone` its slot is there at once.
  void Observe(int64_t row, int64_t head, const float* x, int64_t n);
  // Observes and dispatches every query of the pass.
  void ObserveQueries();
  // Dispatches every row of a sequence, or of the pass. Requires: all were observed; not alone().
  void Dispatch(const PassLayout::Sequence& sequence);
  void Dispatch();
  uint8_t slot(int64_t row, int64_t head) const {
    return slots_.empty() ? uint8_t{0} : slots_[static_cast<size_t>(row * work_.num_heads + head)];
  }
  const ScLookup* lookup(int64_t row, int64_t head) const { return product_.by_slot[slot(row, head)].get(); }
  // Shows lengths to the observer.
  void Report(Context& context) const;

 private:
  uint8_t SlotOf(int level) const;

  const AttentionWork& work_;
  const AttentionProduct& product_;
  std::string_view op_;
  std::vector<float> metrics_;  // [rows][heads]
  std::vector<uint8_t> slots_;
};

// Rotates q and k of every row in place and reports NaN and infinity. The rope table is of the stripe's positions.
// Leaves Context::raw_q, dense rows as of call.q, or empty where no length goes by it.
void RotateAll(Context& context, const AttentionWork& work, const Stripe& stripe = {});
// Takes k and v of every row into the cache, as the mode keeps them.
void Append(Context& context, const AttentionWork& work);
float ScoreScale(const KvCacheSpec& spec);  // 1 / sqrt(head_dim)

void AttendExact(Context& context, const AttentionWork& work);
void AttendPerToken(Context& context, const AttentionWork& work);
void AttendDilated(Context& context, const AttentionWork& work);  // kPerToken of the positions that pairs admit
void AttendWindow(Context& context, const AttentionWork& work);   // kPerHead and kPerRow

// kPerToken: quantizes k and v of every row of the pass into the cache.
void AppendPerToken(Context& context, const AttentionWork& work);

}  // namespace stoch::cpu
