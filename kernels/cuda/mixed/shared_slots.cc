// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/mixed/shared_slots.h"

#include <array>
#include <vector>

#include "kernels/base/check.h"

namespace stoch::cuda {
namespace {

bool IsSameRule(const ScLengthRule& a, const ScLengthRule& b) {
  return a.scope == b.scope && a.normalise == b.normalise && a.metric == b.metric && a.sign == b.sign &&
         a.thresholds == b.thresholds && a.levels == b.levels && a.lo == b.lo && a.hi == b.hi &&
         a.escapes == b.escapes && a.escape_threshold == b.escape_threshold && a.escape_len == b.escape_len &&
         a.fractions == b.fractions && a.chunk_bands == b.chunk_bands && a.ladders == b.ladders;
}

}  // namespace

bool SharesSlots(const MixedTask& a, const MixedTask& b) {
  if (a.weight->rest.operators != b.weight->rest.operators) return false;
  const ScLengthRule* x = a.spec->extras == nullptr ? nullptr : a.spec->extras->lengths.get();
  const ScLengthRule* y = b.spec->extras == nullptr ? nullptr : b.spec->extras->lengths.get();
  return x == y || (x != nullptr && y != nullptr && IsSameRule(*x, *y));
}

void ForSharedSlots(std::span<const MixedTask> tasks, const std::function<void(const SlotGroup&)>& launch) {
  STOCH_CHECK(!tasks.empty() && tasks.size() <= kMaxScTasks);
  std::array<bool, kMaxScTasks> done{};
  for (size_t first = 0; first < tasks.size(); ++first) {
    if (done[first]) continue;
    std::vector<ScLinearTask> products;
    std::vector<int64_t> out_features;
    for (size_t i = first; i < tasks.size(); ++i) {
      if (done[i] || !SharesSlots(tasks[first], tasks[i])) continue;
      done[i] = true;
      products.push_back({tasks[i].weight->rest.view, tasks[i].out});
      out_features.push_back(tasks[i].weight->rest.view.rows);
    }
    launch({first, products, out_features});
  }
}

}  // namespace stoch::cuda
