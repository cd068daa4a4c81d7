// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/softmax.h"
#include "kernels/math/reduce.h"

namespace stoch::cpu {
namespace {

constexpr int64_t kRowsPerTile = 4;
// Channels of the output that one thread takes where threads share a tile: a cache line.
constexpr int64_t kSharedChannels = 16;

// Every query row n = row * group + head of group of a tile.
struct TileState {
  std::vector<float> q;              // [rows * group][head_dim]
  std::vector<float> scores;         // [rows * group][window]
  std::vector<const float*> v_rows;  // [window]
};

class Exact {
 public:
  Exact(const Simd& simd, const AttentionWork& work) : simd_(simd), work_(work), group_(work.group()) {}

  int64_t lefts(const AttentionTile& tile) const { return tile.num_rows * group_; }

  void Prepare(const AttentionTile& tile, TileState* state) const {
    const int64_t window = tile.window();
    state->q.resize(static_cast<size_t>(lefts(tile) * work_.head_dim));
    for (int64_t n = 0; n < lefts(tile); ++n) {
      const float* q = work_.q(tile.first_row + n / group_, Head(tile, n));
      std::copy(q, q + work_.head_dim, state->q.data() + n * work_.head_dim);
    }
    state->scores.resize(static_cast<size_t>(lefts(tile) * window));
    state->v_rows.resize(static_cast<size_t>(window));
    for (int64_t t = 0; t < window; ++t) {
      const int64_t slab = work_.slab(*tile.sequence, t, tile.kv_head);
      state->v_rows[static_cast<size_t>(t)] = work_.cache.v_values(slab) + t % work_.page_tokens * work_.head_dim;
    }
  }

  // Scores of every query row against positions [begin, end), whole pages but for the window's end.
  void Score(const AttentionTile& tile, int64_t begin, int64_t end, TileState* state) const {
    for (int64_t t = begin; t < end; t += work_.page_tokens) {
      const int64_t slab = work_.slab(*tile.sequence, t, tile.kv_head);
      const ExactRows k{work_.cache.k_values(slab), work_.head_dim, DType::kF32};
      simd_.dot_rows(state->q.data(), work_.head_dim, lefts(tile), k, std::min(work_.page_tokens, end - t),
                     work_.head_dim, state->scores.data() + t, tile.window(), false);
    }
  }

  void Probabilities(const AttentionTile& tile, int64_t n, TileState* state) const {
    float* scores = state->scores.data() + n * tile.window();
    const int64_t visible = Visible(tile, n);
    const int64_t first = work_.FirstSeen(visible - 1);
    HideScores(scores, first);
    for (int64_t t = first; t < visible; ++t) scores[t] = scores[t] * work_.scale;
    work_.CapScores(scores + first, visible - first);
    Softmax(simd_, scores, visible, work_.call.exp_table);
  }

  // Channels [first, first + count) of the output of row n.
  void Weigh(const AttentionTile& tile, int64_t n, int64_t first, int64_t count, const TileState& state,
             std::vector<const float*>* columns) const {
    // From a multiple of the lanes of a dot product, so that every position keeps its lane.
    const int64_t begin = work_.FirstSeen(Visible(tile, n) - 1) / kDotLanes * kDotLanes;
    const int64_t seen = Visible(tile, n) - begin;
    columns->resize(static_cast<size_t>(seen));
    for (size_t t = 0; t < columns->size(); ++t) (*columns)[t] = state.v_rows[static_cast<size_t>(begin) + t] + first;
    simd_.weighted_sum(state.scores.data() + n * tile.window() + begin, seen, columns->data(), count,
                       work_.out(tile.first_row + n / group_, Head(tile, n)) + first);
  }

 private:
  int64_t Visible(const AttentionTile& tile, int64_t n) const { return tile.first_position + n / group_ + 1; }
  int64_t Head(const AttentionTile& tile, int64_t n) const { return tile.kv_head * group_ + n % group_; }

  const Simd& simd_;
  const AttentionWork& work_;
  int64_t group_;
};

// All threads do each step of all tiles: scores by positions, probabilities by rows, and sums of p v, whose order is
// the contract's, by rows and channels.
void AttendShared(Context& context, const Exact& steps, const AttentionWork& work,
                  const std::vector<AttentionTile>& tiles) {
  std::vector<TileState> states(tiles.size());
  std::vector<AttentionTileRow> rows;
  for (size_t i = 0; i < tiles.size(); ++i) {
    steps.Prepare(tiles[i], &states[i]);
    for (int64_t n = 0; n < steps.lefts(tiles[i]); ++n) rows.push_back({i, n});
  }
  const std::vector<AttentionRange> ranges = CutPositions(work, tiles, context.pool.size());
  context.pool.ParallelFor(static_cast<int64_t>(ranges.size()), [&](int64_t i, int) {
    const AttentionRange& range = ranges[static_cast<size_t>(i)];
    steps.Score(tiles[range.tile], range.begin, range.end, &states[range.tile]);
  });
  context.pool.ParallelFor(static_cast<int64_t>(rows.size()), [&](int64_t i, int) {
    const AttentionTileRow& row = rows[static_cast<size_t>(i)];
    steps.Probabilities(tiles[row.tile], row.n, &states[row.tile]);
  });
  std::vector<std::vector<const float*>> columns(static_cast<size_t>(context.pool.size()));
  const int64_t parts = (work.head_dim + kSharedChannels - 1) / kSharedChannels;
  context.pool.ParallelFor(static_cast<int64_t>(rows.size()) * parts, [&](int64_t i, int thread) {
    const AttentionTileRow& row = rows[static_cast<size_t>(i / parts)];
    const int64_t first = i % parts * kSharedChannels;
    steps.Weigh(tiles[row.tile], row.n, first, std::min(kSharedChannels, work.head_dim - first), states[row.tile],
                &columns[static_cast<size_t>(thread)]);
  });
}

}  // namespace

void AttendExact(Context& context, const AttentionWork& work) {
  const AttentionTiles tiles = MakeTiles(work, kRowsPerTile, context.pool.size());
  const Exact steps(context.simd, work);
  if (!tiles.shared.empty()) AttendShared(context, steps, work, tiles.shared);
  struct Scratch {
    TileState state;
    std::vector<const float*> columns;
  };
  std::vector<Scratch> scratches(static_cast<size_t>(context.pool.size()));
  context.pool.ParallelFor(static_cast<int64_t>(tiles.whole.size()), [&](int64_t i, int thread) {
    const AttentionTile& tile = tiles.whole[static_cast<size_t>(i)];
    Scratch& s = scratches[static_cast<size_t>(thread)];
    steps.Prepare(tile, &s.state);
    steps.Score(tile, work.FirstSeenPage(tile.first_position), tile.window(), &s.state);
    for (int64_t n = 0; n < steps.lefts(tile); ++n) {
      steps.Probabilities(tile, n, &s.state);
      steps.Weigh(tile, n, 0, work.head_dim, s.state, &s.columns);
    }
  });
}

}  // namespace stoch::cpu
