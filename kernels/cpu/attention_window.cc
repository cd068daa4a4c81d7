// SPDX-License-Identifier: Apache-2.0
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
  const ScOperator& qk = work.qk().op();
  const ScOperator& av = work.av().op();
  const int64_t bad_k = PackBlocks(context.pool, context.simd, qk, ScopesOf(qk, ScOperand::kB, 1, positions), positions,
                                   work.head_dim, k_row, &window->k);
  const int64_t bad_v = PackBlocks(context.pool, context.simd, av, ScopesOf(av, ScOperand::kB, 1, work.head_dim),
                                   work.head_dim, positions, v_channel, &window->v);
  return bad_k < 0 && bad_v < 0;
}

// Slots of a head's rows; empty where all run at one length.
std::vector<uint8_t> SlotsOf(const AttentionSlots& slots, const PassLayout::Sequence& sequence, int64_t head) {
  std::vector<uint8_t> result;
  if (!slots.mixed()) return result;
  for (int64_t i = 0; i < sequence.num_rows; ++i) result.push_back(slots.slot(sequence.first_row + i, head));
  return result;
}

// One head of one sequence on its way from queries to outputs.
struct Head {
  const PassLayout::Sequence& sequence;
  int64_t head;
  const Window& window;
};

// Probabilities [rows][positions], 0 where a row does not see.
bool Score(Context& context, const AttentionWork& work, const Head& at, const AttentionSlots& q_slots,
           AttentionSlots* p_slots, std::vector<float>* scores) {
  const int64_t rows = at.sequence.num_rows;
  const int64_t positions = at.window.k.rows;
  scores->resize(static_cast<size_t>(rows * positions));
  const bool finite = QuantizeRows(context, *work.qk().lookup, work.q(at.sequence.first_row, at.head),
                                   work.call.q.step(0), rows, work.head_dim);
  const ScHardwareUse use{work.qk().hardware.get(), {}};
  const ScTarget qk{&at.window.k, scores->data(), positions, 1, false, work.qk().accumulates() ? &use : nullptr};
  const std::vector<uint8_t> slots = SlotsOf(q_slots, at.sequence, at.head);
  ScProduct(context.pool, context.simd, {work.qk().by_slot, slots, 1}, context.rows, 0, rows, {&qk, 1});

  context.pool.ParallelFor(rows, [&](int64_t i, int) {
    float* row = scores->data() + i * positions;
    const int64_t visible = at.sequence.start_position + i + 1;
    const int64_t first = work.FirstSeen(visible - 1);
    HideScores(row, first);
    for (int64_t t = first; t < visible; ++t) row[t] = row[t] * work.scale;
    work.CapScores(row + first, visible - first);
    Softmax(context.simd, row, visible, work.call.exp_table);
    std::fill(row + visible, row + positions, 0.0f);
    p_slots->Observe(at.sequence.first_row + i, at.head, row, visible);
  });
  return finite;
}

bool AddValues(Context& context, const AttentionWork& work, const Head& at, const AttentionSlots& p_slots,
               const std::vector<float>& scores) {
  const int64_t rows = at.sequence.num_rows;
  const int64_t positions = at.window.k.rows;
  const bool finite = QuantizeRows(context, *work.av().lookup, scores.data(), positions, rows, positions);
  const ScHardwareUse use{work.av().hardware.get(), {}};
  const ScTarget av{&at.window.v, work.out(at.sequence.first_row, at.head), work.call.out.step(0), 1,
                    false,        work.av().accumulates() ? &use : nullptr};
  const std::vector<uint8_t> slots = SlotsOf(p_slots, at.sequence, at.head);
  ScProduct(context.pool, context.simd, {work.av().by_slot, slots, 1}, context.rows, 0, rows, {&av, 1});
  return finite;
}

}  // namespace

void AttendWindow(Context& context, const AttentionWork& work) {
  bool finite = true;
  AttentionSlots q_slots(work, work.qk(), "qk");
  AttentionSlots p_slots(work, work.av(), "av");
  q_slots.ObserveQueries();
  for (const PassLayout::Sequence& sequence : work.sequences) {
    std::vector<Window> windows(static_cast<size_t>(work.num_kv_heads));
    for (int64_t h = 0; h < work.num_kv_heads; ++h) {
      finite = PackWindow(context, work, sequence, h, &windows[static_cast<size_t>(h)]) && finite;
    }
    const auto head_at = [&](int64_t head) {
      return Head{sequence, head, windows[static_cast<size_t>(head / work.group())]};
    };
    // Lengths that depend on each other need the probabilities of all heads.
    std::vector<std::vector<float>> scores(static_cast<size_t>(p_slots.alone() ? 1 : work.num_heads));
    for (int64_t head = 0; head < work.num_heads; ++head) {
      std::vector<float>& own = scores[p_slots.alone() ? 0 : static_cast<size_t>(head)];
      finite = Score(context, work, head_at(head), q_slots, &p_slots, &own) && finite;
      if (p_slots.alone()) finite = AddValues(context, work, head_at(head), p_slots, own) && finite;
    }
    if (p_slots.alone()) continue;
    p_slots.Dispatch(sequence);
    for (int64_t head = 0; head < work.num_heads; ++head) {
      finite = AddValues(context, work, head_at(head), p_slots, scores[static_cast<size_t>(head)]) && finite;
    }
  }
  q_slots.Report(context);
  p_slots.Report(context);
  if (!finite) context.finite.Report(work.cache.device(), work.call.site, "the window or its probabilities");
}

}  // namespace stoch::cpu
