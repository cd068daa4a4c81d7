// SPDX-License-Identifier: Apache-2.0
#include <span>
#include <vector>

#include "kernels/cpu/attention.h"

namespace stoch::cpu {

AttentionSlots::AttentionSlots(const AttentionWork& work, const AttentionProduct& product, std::string_view op)
    : work_(work), product_(product), op_(op) {
  if (!mixed()) return;
  const auto size = static_cast<size_t>(work.call.q.dim(0) * work.num_heads);
  slots_.resize(size);
  if (!alone()) metrics_.resize(size);
}

uint8_t AttentionSlots::SlotOf(int level) const {
  return static_cast<uint8_t>(product_.extras->Slot(product_.rule()->Length(level, 0)));
}

void AttentionSlots::Observe(int64_t row, int64_t head, const float* x, int64_t n) {
  if (!mixed()) return;
  const ScLengthRule& rule = *product_.rule();
  const float metric = ScRowMetric(rule.metric, rule.sign, x, n);
  const auto at = static_cast<size_t>(row * work_.num_heads + head);
  if (alone()) {
    slots_[at] = SlotOf(ScRowLevels(rule, {&metric, 1})[0]);
  } else {
    metrics_[at] = metric;
  }
}

void AttentionSlots::ObserveQueries() {
  if (!mixed()) return;
  for (int64_t row = 0; row < work_.call.q.dim(0); ++row) {
    for (int64_t head = 0; head < work_.num_heads; ++head)
      Observe(row, head, work_.metric_q(row, head), work_.head_dim);
  }
  if (!alone()) Dispatch();
}

void AttentionSlots::Dispatch() {
  for (const PassLayout::Sequence& sequence : work_.sequences) Dispatch(sequence);
}

void AttentionSlots::Dispatch(const PassLayout::Sequence& sequence) {
  const ScLengthRule& rule = *product_.rule();
  const auto heads = static_cast<size_t>(work_.num_heads);
  const auto first = static_cast<size_t>(sequence.first_row) * heads;
  const size_t count = static_cast<size_t>(sequence.num_rows) * heads;
  if (rule.scope != ScLengthScope::kFractions) {
    const std::vector<int> levels = ScRowLevels(rule, std::span(metrics_).subspan(first, count));
    for (size_t i = 0; i < count; ++i) slots_[first + i] = SlotOf(levels[i]);
    return;
  }
  for (size_t head = 0; head < heads; ++head) {  // fractions are of the rows of a head
    std::vector<float> own;
    for (size_t i = head; i < count; i += heads) own.push_back(metrics_[first + i]);
    const std::vector<int> levels = ScRowLevels(rule, own);
    for (size_t i = 0; i < levels.size(); ++i) slots_[first + head + i * heads] = SlotOf(levels[i]);
  }
}

void AttentionSlots::Report(Context& context) const {
  if (context.observer == nullptr || !mixed()) return;
  for (const PassLayout::Sequence& sequence : work_.sequences) {
    const int64_t window = sequence.start_position + sequence.num_rows;
    for (int64_t head = 0; head < work_.num_heads; ++head) {
      std::vector<int> lengths;
      for (int64_t i = 0; i < sequence.num_rows; ++i) {
        const ScLookup* one = lookup(sequence.first_row + i, head);
        lengths.push_back(one == nullptr ? 0 : one->op->config.stoc_len);
      }
      ScLengthRecord record;
      record.site = work_.call.site;
      record.op = op_;
      record.unit = head;
      record.rows = sequence.num_rows;
      record.in_features = op_ == "qk" ? work_.head_dim : window;
      record.out_features = op_ == "qk" ? window : work_.head_dim;
      record.chunk = record.in_features;
      record.lengths = lengths;
      record.first_position = sequence.start_position;
      context.observer->OnLengths(record);
    }
  }
}

}  // namespace stoch::cpu
