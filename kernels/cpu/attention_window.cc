// The published attention modes: a pass quantizes its whole window at once, future positions included.
#include <algorithm>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/sc_product.h"
#include "kernels/cpu/softmax.h"

namespace stoch::cpu {
namespace {

// Quantizes `rows` contiguous rows of floats as side a of `lookup`'s operator. False if NaN or infinity was met.
bool QuantizeRows(Context& context, const ScLookup& lookup, const float* x, int64_t stride, int64_t rows,
                  int64_t cols) {
  const ScOperator& op = *lookup.op;
  const ScChunks chunks(op, cols);
  const ScQuantizer quantizer(context.pool, context.simd, op, chunks, ScopesOf(op, ScOperand::kA, 1, rows), rows,
                              [&](int64_t row, float*) { return x + row * stride; });
  context.rows.Resize(lookup, chunks, rows, chunks.size);
  bool finite = true;
  for (int64_t i = 0; i < rows; ++i) {
    finite = quantizer.Quantize(i, x + i * stride, context.rows.row(i)) && finite;
    context.rows.Derive(lookup, i);
  }
  return finite;
}

// One KV head's k as side b of qk [window, head_dim] and v^T as side b of av [head_dim, window].
struct Window {
  ScBlocks k;
  ScBlocks v;
};

bool PackWindow(Context& context, const AttentionWork& work, const PassLayout::Sequence& sequence, int64_t kv_head,
                Window* window) {
  const int64_t positions = sequence.start_position + sequence.num_rows;
  const auto k_row = [&](int64_t t, float*) -> const float* {
    return work.cache.k_values(work.slab(sequence, t, kv_head)) + t % work.page_tokens * work.head_dim;
  };
  const auto v_channel = [&](int64_t d, float* scratch) -> const float* {
    for (int64_t t = 0; t < positions; ++t) {
      scratch[t] = work.cache.v_values(work.slab(sequence, t, kv_head))[t % work.page_tokens * work.head_dim + d];
    }
    return scratch;
  };
  const ScOperator& qk = *work.cache.qk().op;
  const ScOperator& av = *work.cache.av().op;
  const int64_t bad_k = PackBlocks(context.pool, context.simd, qk, ScopesOf(qk, ScOperand::kB, 1, positions), positions,
                                   work.head_dim, k_row, &window->k);
  const int64_t bad_v = PackBlocks(context.pool, context.simd, av, ScopesOf(av, ScOperand::kB, 1, work.head_dim),
                                   work.head_dim, positions, v_channel, &window->v);
  return bad_k < 0 && bad_v < 0;
}

bool AttendHead(Context& context, const AttentionWork& work, const PassLayout::Sequence& sequence, int64_t head,
                const Window& window, std::vector<float>* scores) {
  const int64_t rows = sequence.num_rows;
  const int64_t positions = window.k.rows;
  scores->resize(static_cast<size_t>(rows * positions));
  bool finite = QuantizeRows(context, work.cache.qk(), work.q(sequence.first_row, head), work.call.q.step(0), rows,
                             work.head_dim);
  const ScTarget qk{&window.k, scores->data(), positions, 1, false};
  ScProduct(context.pool, context.simd, work.cache.qk(), context.rows, 0, rows, {&qk, 1});

  context.pool.ParallelFor(rows, [&](int64_t i, int) {
    float* row = scores->data() + i * positions;
    const int64_t visible = sequence.start_position + i + 1;
    for (int64_t t = 0; t < visible; ++t) row[t] = row[t] * work.scale;
    Softmax(context.simd, row, visible);
    std::fill(row + visible, row + positions, 0.0f);
  });

  finite = QuantizeRows(context, work.cache.av(), scores->data(), positions, rows, positions) && finite;
  const ScTarget av{&window.v, work.out(sequence.first_row, head), work.call.out.step(0), 1, false};
  ScProduct(context.pool, context.simd, work.cache.av(), context.rows, 0, rows, {&av, 1});
  return finite;
}

}  // namespace

void AttendWindow(Context& context, const AttentionWork& work) {
  bool finite = true;
  std::vector<float> scores;
  for (const PassLayout::Sequence& sequence : work.sequences) {
    for (int64_t kv_head = 0; kv_head < work.num_kv_heads; ++kv_head) {
      Window window;
      finite = PackWindow(context, work, sequence, kv_head, &window) && finite;
      for (int64_t g = 0; g < work.group(); ++g) {
        finite = AttendHead(context, work, sequence, kv_head * work.group() + g, window, &scores) && finite;
      }
    }
  }
  if (!finite) context.finite.Report(work.cache.device(), work.call.site, "the window or its probabilities");
}

}  // namespace stoch::cpu
