#include <algorithm>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/softmax.h"

namespace stoch::cpu {
namespace {

constexpr int64_t kRowsPerTile = 4;

struct Scratch {
  std::vector<float> scores;         // [rows][window]
  std::vector<const float*> v_rows;  // [window]
};

void AttendTile(const Simd& simd, const AttentionWork& work, const AttentionTile& tile, Scratch* scratch) {
  const int64_t window = tile.window();
  scratch->scores.resize(static_cast<size_t>(tile.num_rows * window));
  scratch->v_rows.resize(static_cast<size_t>(window));
  for (int64_t t = 0; t < window; ++t) {
    const int64_t slab = work.slab(*tile.sequence, t, tile.kv_head);
    scratch->v_rows[static_cast<size_t>(t)] = work.cache.v_values(slab) + t % work.page_tokens * work.head_dim;
  }
  for (int64_t g = 0; g < work.group(); ++g) {
    const int64_t head = tile.kv_head * work.group() + g;
    for (int64_t t = 0; t < window; t += work.page_tokens) {
      const int64_t slab = work.slab(*tile.sequence, t, tile.kv_head);
      const ExactRows k{work.cache.k_values(slab), work.head_dim, DType::kF32};
      simd.dot_rows(work.q(tile.first_row, head), work.call.q.step(0), tile.num_rows, k,
                    std::min(work.page_tokens, window - t), work.head_dim, scratch->scores.data() + t, window, false);
    }
    for (int64_t i = 0; i < tile.num_rows; ++i) {
      float* scores = scratch->scores.data() + i * window;
      const int64_t visible = tile.first_position + i + 1;
      for (int64_t t = 0; t < visible; ++t) scores[t] = scores[t] * work.scale;
      Softmax(simd, scores, visible);
      simd.weighted_sum(scores, visible, scratch->v_rows.data(), work.head_dim, work.out(tile.first_row + i, head));
    }
  }
}

}  // namespace

void AttendExact(Context& context, const AttentionWork& work) {
  const std::vector<AttentionTile> tiles = MakeTiles(work, kRowsPerTile);
  std::vector<Scratch> scratches(static_cast<size_t>(context.pool.size()));
  context.pool.ParallelFor(static_cast<int64_t>(tiles.size()), [&](int64_t i, int thread) {
    AttendTile(context.simd, work, tiles[static_cast<size_t>(i)], &scratches[static_cast<size_t>(thread)]);
  });
}

}  // namespace stoch::cpu
