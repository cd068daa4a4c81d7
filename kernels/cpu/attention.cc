// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "kernels/call_check.h"
#include "kernels/cpu/linear_weight.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/pass.h"
#include "kernels/cpu/rope.h"
#include "kernels/math/elementary.h"
#include "kernels/math/gated.h"

namespace stoch::cpu {
namespace {

// A tile of fewer positions takes a thread some 20 us (4 query heads of 64 channels), not much more than the barriers.
constexpr int64_t kSharedPositions = 512;

void AppendValues(Context& context, const AttentionWork& work) {
  const size_t head_bytes = static_cast<size_t>(work.head_dim) * sizeof(float);
  for (const PassLayout::Sequence& sequence : work.sequences) {
    context.pool.ParallelFor(sequence.num_rows, [&](int64_t i, int) {
      const int64_t row = sequence.first_row + i;
      const int64_t position = sequence.start_position + i;
      const int64_t at = position % work.page_tokens * work.head_dim;
      for (int64_t h = 0; h < work.num_kv_heads; ++h) {
        const int64_t slab = work.slab(sequence, position, h);
        const int64_t col = h * work.head_dim;
        memcpy(work.cache.k_values(slab) + at, work.call.k.ptr<float>() + row * work.call.k.step(0) + col, head_bytes);
        memcpy(work.cache.v_values(slab) + at, work.call.v.ptr<float>() + row * work.call.v.step(0) + col, head_bytes);
      }
    });
  }
}

// q / s and k * s of one row, s of each KV head.
void SmoothHeads(const AttentionWork& work, float* q, float* k) {
  const auto* smooth = work.call.qk_smooth.ptr<const float>();
  for (int64_t head = 0; head < work.num_heads; ++head) {
    const float* s = smooth + head / work.group() * work.head_dim;
    for (int64_t d = 0; d < work.head_dim; ++d) q[head * work.head_dim + d] = q[head * work.head_dim + d] / s[d];
  }
  for (int64_t i = 0; i < work.num_kv_heads * work.head_dim; ++i) k[i] = k[i] * smooth[i];
}

}  // namespace

void RotateAll(Context& context, const AttentionWork& work, const Stripe& stripe) {
  const AttentionCall& call = work.call;
  const bool smooths = call.qk_smooth.data != nullptr;
  const bool keeps_q = smooths && work.qk().rule() != nullptr;
  context.raw_q.resize(static_cast<size_t>(keeps_q ? call.q.dim(0) * call.q.dim(1) : 0));
  std::atomic<bool> finite{true}, is_smooth{true};
  for (const PassLayout::Sequence& sequence : work.sequences) {
    context.pool.ParallelFor(sequence.num_rows, [&](int64_t i, int) {
      const int64_t row = sequence.first_row + i;
      const int64_t rope_row = stripe.Below(sequence.start_position + i);
      const float* angles = call.rope.ptr<const float>() + rope_row * call.rope.step(0);
      float* q = call.q.ptr<float>() + row * call.q.step(0);
      float* k = call.k.ptr<float>() + row * call.k.step(0);
      const float* v = call.v.ptr<const float>() + row * call.v.step(0);
      Rope(q, work.num_heads, work.head_dim, angles);
      Rope(k, work.num_kv_heads, work.head_dim, angles);
      const uint32_t bits =
          std::max({context.simd.max_abs_bits(q, call.q.dim(1)), context.simd.max_abs_bits(k, call.k.dim(1)),
                    context.simd.max_abs_bits(v, call.v.dim(1))});
      if (!IsFinite(BitsToFloat(bits))) finite.store(false, std::memory_order_relaxed);
      if (!smooths) return;
      if (keeps_q) std::copy_n(q, call.q.dim(1), context.raw_q.data() + row * call.q.dim(1));
      SmoothHeads(work, q, k);
      const uint32_t smoothed =
          std::max(context.simd.max_abs_bits(q, call.q.dim(1)), context.simd.max_abs_bits(k, call.k.dim(1)));
      if (!IsFinite(BitsToFloat(smoothed))) is_smooth.store(false, std::memory_order_relaxed);
    });
  }
  if (finite.load() && !is_smooth.load()) {
    context.finite.Report(work.cache.device(), {call.site.layer, "qk"}, "q / s or k * s");
  }
  if (!finite.load()) context.finite.Report(work.cache.device(), call.site, "q, k or v");
}

void Append(Context& context, const AttentionWork& work) {
  if (work.cache.spec().mode == AttentionMode::kPerToken) return AppendPerToken(context, work);
  AppendValues(context, work);
}

float ScoreScale(const KvCacheSpec& spec) {
  return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(spec.head_dim)));
}

void AttentionWork::CapScores(float* scores, int64_t n) const {
  if (call.score_cap <= 0) return;
  for (int64_t i = 0; i < n; ++i) scores[i] = stoch::SoftCap(scores[i], call.score_cap);
}

void HideScores(float* scores, int64_t first) {
  std::fill(scores, scores + first, -std::numeric_limits<float>::infinity());
}

AttentionTiles MakeTiles(const AttentionWork& work, int64_t rows_per_tile, int threads) {
  std::vector<AttentionTile> tiles;
  int64_t total = 0;  // rows times positions
  const auto cost = [](const AttentionTile& tile) { return tile.num_rows * tile.window(); };
  const std::vector<int32_t>& outputs = LayoutOf(*work.call.pass).output_rows;
  const auto wanted = [&](int64_t first, int64_t count) {
    if (!work.call.only_outputs) return true;
    const auto output = std::lower_bound(outputs.begin(), outputs.end(), first);
    return output != outputs.end() && *output < first + count;
  };
  for (const PassLayout::Sequence& sequence : work.sequences) {
    // Late rows see most positions: first, so that the threads end together.
    for (int64_t end = sequence.num_rows; end > 0; end -= std::min(end, rows_per_tile)) {
      const int64_t begin = std::max<int64_t>(0, end - rows_per_tile);
      if (!wanted(sequence.first_row + begin, end - begin)) continue;
      for (int64_t h = 0; h < work.num_kv_heads; ++h) {
        tiles.push_back({&sequence, h, sequence.first_row + begin, end - begin, sequence.start_position + begin});
        total += cost(tiles.back());
      }
    }
  }
  // A tile of more than half of a thread's fair share is shared, if it is worth the barriers.
  AttentionTiles result;
  for (const AttentionTile& tile : tiles) {
    const bool shared = threads > 1 && tile.window() >= kSharedPositions && cost(tile) > total / (2 * threads);
    (shared ? result.shared : result.whole).push_back(tile);
  }
  return result;
}

std::vector<AttentionRange> CutPositions(const AttentionWork& work, const std::vector<AttentionTile>& tiles,
                                         int threads) {
  int64_t pages = 0;
  const auto first = [&work](const AttentionTile& tile) { return work.FirstSeenPage(tile.first_position); };
  for (const AttentionTile& tile : tiles) {
    pages += (tile.window() - first(tile) + work.page_tokens - 1) / work.page_tokens;
  }
  constexpr int64_t kRangesPerThread = 4;
  const int64_t step = std::max<int64_t>(1, pages / (kRangesPerThread * threads)) * work.page_tokens;
  std::vector<AttentionRange> ranges;
  for (size_t i = 0; i < tiles.size(); ++i) {
    const int64_t window = tiles[i].window();
    for (int64_t begin = first(tiles[i]); begin < window; begin += step)
      ranges.push_back({i, begin, std::min(begin + step, window)});
  }
  return ranges;
}

void Attention(Context& context, const AttentionCall& call) {
  CheckAttentionHandles(call);
  const CpuKvCache& cache = static_cast<const CpuKvCache&>(*call.cache);
  const PassLayout& layout = LayoutOf(*call.pass);
  CheckAttention(call, static_cast<int64_t>(layout.ids.size()));
  for (const PassLayout::Sequence& sequence : layout.sequences) {
    CheckAttentionSequence(call, static_cast<int64_t>(sequence.start_position) + sequence.num_rows,
                           static_cast<int64_t>(sequence.pages.size()));
    for (const int32_t page : sequence.pages) CheckAttentionPage(call, page);
  }

  if (call.norm != nullptr) NormHeads(context, *call.norm);
  const KvCacheSpec& spec = cache.spec();
  AttentionWork work{call,
                     cache,
                     layout.sequences,
                     call.num_heads,
                     spec.num_kv_heads,
                     spec.head_dim,
                     spec.page_tokens,
                     ScoreScale(spec)};
  RotateAll(context, work);
  if (!context.raw_q.empty()) {
    work.raw_q = context.raw_q.data();
    work.raw_q_step = call.q.dim(1);
  }
  if (context.observer != nullptr) context.observer->OnAttention(call, layout);
  Append(context, work);
  switch (spec.mode) {
    case AttentionMode::kExact: return AttendExact(context, work);
    case AttentionMode::kPerToken:
      return call.dilated.empty() ? AttendPerToken(context, work) : AttendDilated(context, work);
    case AttentionMode::kPerHead:
    case AttentionMode::kPerRow: return AttendWindow(context, work);
  }
}

}  // namespace stoch::cpu
