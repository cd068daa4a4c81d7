#include "kernels/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/cpu/linear_weight.h"
#include "kernels/cpu/pass.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/views.h"
#include "kernels/math/elementary.h"
#include "kernels/spec_check.h"

namespace stoch::cpu {
namespace {

// A tile of fewer positions takes a thread some 20 us (4 query heads of 64 channels), not much more than the barriers.
constexpr int64_t kSharedPositions = 512;

void CheckSequences(const AttentionCall& call, const CpuKvCache& cache, const PassLayout& layout,
                    const std::string& op) {
  const KvCacheSpec& spec = cache.spec();
  for (const PassLayout::Sequence& sequence : layout.sequences) {
    const int64_t end = static_cast<int64_t>(sequence.start_position) + sequence.num_rows;
    const int64_t room = static_cast<int64_t>(sequence.pages.size()) * spec.page_tokens;
    if (end > room) {
      Reject(op, "a sequence ends at position " + std::to_string(end) + ", its pages hold " + std::to_string(room));
    }
    if (end > call.rope.dim(0)) {
      Reject(op, "a sequence ends at position " + std::to_string(end) + ", the rope table has " +
                     std::to_string(call.rope.dim(0)));
    }
    for (const int32_t page : sequence.pages) {
      if (page < 0 || page >= spec.num_pages) {
        Reject(op, "page " + std::to_string(page) + ", expected below " + std::to_string(spec.num_pages));
      }
    }
    if (spec.mode != AttentionMode::kExact) CheckAccumulator(*spec.av, end, op);
  }
}

void CheckCall(const AttentionCall& call, const CpuKvCache& cache, const PassLayout& layout) {
  const std::string op(call.site.op);
  const Device device = cache.device();
  const KvCacheSpec& spec = cache.spec();
  const int64_t rows = static_cast<int64_t>(layout.ids.size());
  if (call.pass->device() != device) Reject(op, "the pass is not on " + DeviceName(device));
  if (call.num_heads < 1 || call.num_heads % spec.num_kv_heads != 0) {
    Reject(op, std::to_string(call.num_heads) + " heads, expected a multiple of " + std::to_string(spec.num_kv_heads));
  }
  if (call.cache_layer < 0 || call.cache_layer >= spec.num_layers) {
    Reject(op,
           "cache layer " + std::to_string(call.cache_layer) + ", expected below " + std::to_string(spec.num_layers));
  }
  const int64_t q_cols = static_cast<int64_t>(call.num_heads) * spec.head_dim;
  const int64_t kv_cols = static_cast<int64_t>(spec.num_kv_heads) * spec.head_dim;
  RequireView(op, "q", call.q, device, DType::kF32, {rows, q_cols});
  RequireView(op, "k", call.k, device, DType::kF32, {rows, kv_cols});
  RequireView(op, "v", call.v, device, DType::kF32, {rows, kv_cols});
  RequireView(op, "rope", call.rope, device, DType::kF32, {kAnySize, spec.head_dim});
  RequireView(op, "out", call.out, device, DType::kF32, {rows, q_cols});
  for (const TensorView* in : {&call.q, &call.k, &call.v}) RequireDisjoint(op, call.out, *in);
  CheckSequences(call, cache, layout, op);
}

// Rotates q and k of every row in place and looks for NaN and infinity.
void RotateAll(Context& context, const AttentionWork& work) {
  const AttentionCall& call = work.call;
  std::atomic<bool> finite{true};
  for (const PassLayout::Sequence& sequence : work.sequences) {
    context.pool.ParallelFor(sequence.num_rows, [&](int64_t i, int) {
      const int64_t row = sequence.first_row + i;
      const float* angles = call.rope.ptr<const float>() + (sequence.start_position + i) * call.rope.step(0);
      float* q = call.q.ptr<float>() + row * call.q.step(0);
      float* k = call.k.ptr<float>() + row * call.k.step(0);
      const float* v = call.v.ptr<const float>() + row * call.v.step(0);
      Rope(q, work.num_heads, work.head_dim, angles);
      Rope(k, work.num_kv_heads, work.head_dim, angles);
      const uint32_t bits =
          std::max({context.simd.max_abs_bits(q, call.q.dim(1)), context.simd.max_abs_bits(k, call.k.dim(1)),
                    context.simd.max_abs_bits(v, call.v.dim(1))});
      if (!IsFinite(BitsToFloat(bits))) finite.store(false, std::memory_order_relaxed);
    });
  }
  if (!finite.load()) context.finite.Report(work.cache.device(), call.site, "q, k or v");
}

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

}  // namespace

AttentionTiles MakeTiles(const AttentionWork& work, int64_t rows_per_tile, int threads) {
  std::vector<AttentionTile> tiles;
  int64_t total = 0;  // rows times positions
  const auto cost = [](const AttentionTile& tile) { return tile.num_rows * tile.window(); };
  for (const PassLayout::Sequence& sequence : work.sequences) {
    // Late rows see most positions: first, so that the threads end together.
    for (int64_t end = sequence.num_rows; end > 0; end -= std::min(end, rows_per_tile)) {
      const int64_t begin = std::max<int64_t>(0, end - rows_per_tile);
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
  for (const AttentionTile& tile : tiles) pages += (tile.window() + work.page_tokens - 1) / work.page_tokens;
  constexpr int64_t kRangesPerThread = 4;
  const int64_t step = std::max<int64_t>(1, pages / (kRangesPerThread * threads)) * work.page_tokens;
  std::vector<AttentionRange> ranges;
  for (size_t i = 0; i < tiles.size(); ++i) {
    const int64_t window = tiles[i].window();
    for (int64_t begin = 0; begin < window; begin += step) ranges.push_back({i, begin, std::min(begin + step, window)});
  }
  return ranges;
}

void Attention(Context& context, const AttentionCall& call) {
  if (call.cache == nullptr || call.pass == nullptr) Reject(call.site.op, "needs a cache and a pass");
  const CpuKvCache& cache = static_cast<const CpuKvCache&>(*call.cache);
  const PassLayout& layout = LayoutOf(*call.pass);
  CheckCall(call, cache, layout);

  const KvCacheSpec& spec = cache.spec();
  const float scale = static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(spec.head_dim)));
  const AttentionWork work{
      call, cache, layout.sequences, call.num_heads, spec.num_kv_heads, spec.head_dim, spec.page_tokens, scale};
  RotateAll(context, work);
  if (spec.mode == AttentionMode::kPerToken) {
    AppendPerToken(context, work);
    AttendPerToken(context, work);
    return;
  }
  AppendValues(context, work);
  if (spec.mode == AttentionMode::kExact) {
    AttendExact(context, work);
  } else {
    AttendWindow(context, work);
  }
}

}  // namespace stoch::cpu
