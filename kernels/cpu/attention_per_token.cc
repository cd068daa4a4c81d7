// Attention with k and v quantized once, when they enter the cache: causal, append-only, chunk-invariant.
#include <algorithm>
#include <atomic>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/softmax.h"
#include "kernels/math/quantize.h"

namespace stoch::cpu {
namespace {

constexpr int64_t kRowsPerTile = 4;

ScChunks OneChunk(int64_t dims) {
  ScChunks chunks;
  chunks.cols = dims;
  chunks.size = dims;
  chunks.count = 1;
  return chunks;
}

// Quantizes rows one by one, each its own scope.
class RowQuantizer {
 public:
  RowQuantizer(Context& context, const ScLookup& lookup, int64_t dims)
      : quantizer_(context.pool, context.simd, *lookup.op, OneChunk(dims), ScScopes{1, 1}, 1, nullptr) {}
  bool operator()(const float* x, uint8_t* codes, float* scale) const {
    return quantizer_.Quantize(0, x, {codes, scale, nullptr, nullptr});
  }
  bool operator()(const float* x, const ScQuantizer::Row& out) const { return quantizer_.Quantize(0, x, out); }

 private:
  ScQuantizer quantizer_;
};

struct Scratch {
  ScRows q;                     // [rows * group, head_dim]
  ScRows p;                     // [1, visible positions]
  std::vector<float> scores;    // [rows * group][window rounded up to pages of blocks]
  std::vector<float> weighted;  // [window]: p * scale of v
  std::vector<int32_t> acc;     // [rows * group][64]
};

// Scores of every query row of the tile against every position of its window.
void ScoreTile(Context& context, const AttentionWork& work, const AttentionTile& tile, int64_t stride, Scratch* s) {
  const ScLookup& lookup = work.cache.qk();
  const int64_t lefts = tile.num_rows * work.group();
  const RowQuantizer quantize(context, lookup, work.head_dim);
  s->q.Resize(lookup, OneChunk(work.head_dim), lefts, work.head_dim);
  std::vector<ScLeft> left(static_cast<size_t>(lefts));
  for (int64_t n = 0; n < lefts; ++n) {
    quantize(work.q(tile.first_row + n / work.group(), tile.kv_head * work.group() + n % work.group()), s->q.row(n));
    s->q.Derive(lookup, n);
    left[static_cast<size_t>(n)] = s->q.Left(n, 0);
  }
  s->acc.resize(static_cast<size_t>(lefts * kBlockRows));
  for (int64_t page = 0; page < tile.window(); page += work.page_tokens) {
    const int64_t slab = work.slab(*tile.sequence, page, tile.kv_head);
    const int64_t page_end = std::min(page + work.page_tokens, tile.window());
    for (int64_t t = page; t < page_end; t += kBlockRows) {
      const int64_t block_bytes = work.head_dim * kBlockRows;
      const uint8_t* codes = work.cache.k_codes(slab) + (t - page) / kBlockRows * block_bytes;
      context.simd.sc_block(lookup.table(), left.data(), lefts, 0, work.head_dim, codes, block_bytes, 1, s->acc.data());
      const float* k_scales = work.cache.k_scales(slab) + (t - page);
      for (int64_t n = 0; n < lefts; ++n) {
        const int32_t* acc = s->acc.data() + n * kBlockRows;
        float* scores = s->scores.data() + n * stride + t;
        const float q_scale = s->q.scale(n, 0);
        for (int64_t i = 0; i < std::min<int64_t>(kBlockRows, page_end - t); ++i) {
          scores[i] = BipolarProduct(acc[i], lookup.op->gain, q_scale, k_scales[i]) * work.scale;
        }
      }
    }
  }
}

// Output of one query row from its probabilities. False if NaN or infinity was met.
bool WeighValues(Context& context, const AttentionWork& work, const AttentionTile& tile, const float* p,
                 int64_t visible, Scratch* s, float* out) {
  const ScLookup& lookup = work.cache.av();
  s->weighted.resize(static_cast<size_t>(visible));
  for (int64_t page = 0; page < visible; page += work.page_tokens) {
    const float* v_scales = work.cache.v_scales(work.slab(*tile.sequence, page, tile.kv_head));
    const int64_t end = std::min(page + work.page_tokens, visible);
    for (int64_t t = page; t < end; ++t) s->weighted[static_cast<size_t>(t)] = p[t] * v_scales[t - page];
  }
  const RowQuantizer quantize(context, lookup, visible);
  s->p.Resize(lookup, OneChunk(visible), 1, work.page_tokens);
  const bool finite = quantize(s->weighted.data(), s->p.row(0));
  s->p.Derive(lookup, 0);

  for (int64_t block = 0; block < work.cache.channel_blocks(); ++block) {
    int32_t sums[kBlockRows] = {};
    for (int64_t page = 0; page < visible; page += work.page_tokens) {
      const ScLeft left = s->p.Left(0, page);
      const uint8_t* codes =
          work.cache.v_codes(work.slab(*tile.sequence, page, tile.kv_head)) + block * work.page_tokens * kBlockRows;
      int32_t acc[kBlockRows];
      context.simd.sc_block(lookup.table(), &left, 1, page, std::min(work.page_tokens, visible - page), codes, 0, 1,
                            acc);
      for (int i = 0; i < kBlockRows; ++i) sums[i] += acc[i];
    }
    const int64_t first = block * kBlockRows;
    for (int64_t i = 0; i < std::min<int64_t>(kBlockRows, work.head_dim - first); ++i) {
      out[first + i] = (static_cast<float>(sums[i]) * lookup.op->gain) * s->p.scale(0, 0);
    }
  }
  return finite;
}

}  // namespace

void AppendPerToken(Context& context, const AttentionWork& work) {
  const RowQuantizer quantize_k(context, work.cache.qk(), work.head_dim);
  const RowQuantizer quantize_v(context, work.cache.av(), work.head_dim);
  for (const PassLayout::Sequence& sequence : work.sequences) {
    // Rows of one block of positions interleave in memory, so a thread takes a head.
    context.pool.ParallelFor(work.num_kv_heads, [&](int64_t h, int) {
      std::vector<uint8_t> codes(static_cast<size_t>(work.head_dim));
      for (int64_t i = 0; i < sequence.num_rows; ++i) {
        const int64_t row = sequence.first_row + i;
        const int64_t position = sequence.start_position + i;
        const int64_t slab = work.slab(sequence, position, h);
        const int64_t at = position % work.page_tokens;
        const int64_t col = h * work.head_dim;
        quantize_k(work.call.k.ptr<const float>() + row * work.call.k.step(0) + col, codes.data(),
                   work.cache.k_scales(slab) + at);
        uint8_t* k = work.cache.k_codes(slab) + at / kBlockRows * work.head_dim * kBlockRows + at % kBlockRows;
        for (int64_t d = 0; d < work.head_dim; ++d) k[d * kBlockRows] = codes[static_cast<size_t>(d)];

        quantize_v(work.call.v.ptr<const float>() + row * work.call.v.step(0) + col, codes.data(),
                   work.cache.v_scales(slab) + at);
        for (int64_t d = 0; d < work.head_dim; ++d) {
          work.cache.v_codes(slab)[(d / kBlockRows * work.page_tokens + at) * kBlockRows + d % kBlockRows] =
              codes[static_cast<size_t>(d)];
        }
      }
    });
  }
}

void AttendPerToken(Context& context, const AttentionWork& work) {
  const std::vector<AttentionTile> tiles = MakeTiles(work, kRowsPerTile);
  std::vector<Scratch> scratches(static_cast<size_t>(context.pool.size()));
  std::atomic<bool> finite{true};
  context.pool.ParallelFor(static_cast<int64_t>(tiles.size()), [&](int64_t i, int thread) {
    const AttentionTile& tile = tiles[static_cast<size_t>(i)];
    Scratch& scratch = scratches[static_cast<size_t>(thread)];
    const int64_t stride = tile.window();
    scratch.scores.resize(static_cast<size_t>(tile.num_rows * work.group() * stride));
    ScoreTile(context, work, tile, stride, &scratch);
    for (int64_t n = 0; n < tile.num_rows * work.group(); ++n) {
      const int64_t row = n / work.group();
      const int64_t visible = tile.first_position + row + 1;
      float* p = scratch.scores.data() + n * stride;
      Softmax(context.simd, p, visible);
      float* out = work.out(tile.first_row + row, tile.kv_head * work.group() + n % work.group());
      if (!WeighValues(context, work, tile, p, visible, &scratch, out)) {
        finite.store(false, std::memory_order_relaxed);
      }
    }
  });
  if (!finite.load()) context.finite.Report(work.cache.device(), work.call.site, "the probabilities");
}

}  // namespace stoch::cpu
