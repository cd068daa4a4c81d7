// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/exact_product.h"

#include <algorithm>
#include <vector>

namespace stoch::cpu {
namespace {

// A thread keeps a panel of weight rows in its L2 while it walks the rows of x: of whole tiles of Simd::dot_rows.
constexpr int64_t kPanelBytes = 256 * 1024;
constexpr int64_t kPanelRows = 24;
// Decoded rows that meet few rows of x are used once, so that they had better be in L1 still.
constexpr int64_t kFewX = 4;
constexpr int64_t kFewBytes = 24 * 1024;

ExactRows Advance(const ExactRows& w, int64_t rows) {
  const int64_t bytes = rows * w.stride * static_cast<int64_t>(DTypeSize(w.dtype));
  return {static_cast<const char*>(w.data) + bytes, w.stride, w.dtype};
}

}  // namespace

void ExactProduct(ThreadPool& pool, const Simd& simd, const float* x, int64_t x_stride, int64_t num_x, int64_t cols,
                  std::span<const ExactTarget> targets) {
  struct Item {
    const ExactTarget* target;
    int64_t first;
    int64_t count;
  };
  std::vector<Item> items;
  for (const ExactTarget& target : targets) {
    const int64_t row_bytes = cols * static_cast<int64_t>(DTypeSize(target.w.dtype));
    const int64_t most = kPanelBytes / row_bytes / kPanelRows * kPanelRows;
    const int64_t panel = target.decoded != nullptr ? kPanelRows : std::max(kPanelRows, most);
    for (int64_t first = 0; first < target.num_rows; first += panel) {
      items.push_back({&target, first, std::min(panel, target.num_rows - first)});
    }
  }
  std::vector<std::vector<float>> decoded(static_cast<size_t>(pool.size()));
  pool.ParallelFor(static_cast<int64_t>(items.size()), [&](int64_t i, int thread) {
    const Item& item = items[static_cast<size_t>(i)];
    const ExactTarget& target = *item.target;
    const auto multiply = [&](const ExactRows& rows, int64_t first, int64_t count) {
      simd.dot_rows(x, x_stride, num_x, rows, count, cols, target.out + first, target.out_stride, target.add);
    };
    if (target.decoded == nullptr) return multiply(Advance(target.w, item.first), item.first, item.count);
    std::vector<float>& panel = decoded[static_cast<size_t>(thread)];
    panel.resize(static_cast<size_t>(kPanelRows * cols));
    const int64_t some =
        num_x > kFewX ? kPanelRows
                      : std::clamp<int64_t>(kFewBytes / (cols * static_cast<int64_t>(sizeof(float))), 1, kPanelRows);
    for (int64_t done = 0; done < item.count; done += some) {
      const int64_t first = item.first + done, count = std::min(some, item.count - done);
      target.decoded->decoder->Decode(target.decoded->first + first * cols, count * cols, panel.data());
      multiply({panel.data(), cols, DType::kF32}, first, count);
    }
  });
}

}  // namespace stoch::cpu
