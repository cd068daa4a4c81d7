// SPDX-License-Identifier: Apache-2.0
#include "research/golden/golden_check.h"

#include <algorithm>
#include <string>

#include "kernels/base/error.h"

namespace stoch {

void CheckGoldenOperands(const HostMatrix& a, const HostMatrix& b, std::span<const float> smooth) {
  if (a.rows < 1 || b.rows < 1 || a.cols < 1 || a.cols != b.cols) {
    throw InvalidInput("operands of " + std::to_string(a.cols) + " and " + std::to_string(b.cols) +
                       " channels: expected as many, and no empty matrix");
  }
  if (!smooth.empty() && static_cast<int64_t>(smooth.size()) != a.cols) {
    throw InvalidInput(std::to_string(smooth.size()) + " smoothing factors for " + std::to_string(a.cols) +
                       " channels");
  }
}

void CheckGoldenLengths(std::span<const int> lengths, int64_t rows, int64_t cols, const ScConfig& config) {
  if (lengths.empty()) return;
  const int64_t size = config.chunk_d > 0 ? std::min(config.chunk_d, cols) : cols;
  const int64_t chunks = (cols + size - 1) / size;
  const auto count = static_cast<int64_t>(lengths.size());
  if (count == rows || count == rows * chunks) return;
  throw InvalidInput(std::to_string(count) + " lengths for " + std::to_string(rows) + " rows of " +
                     std::to_string(chunks) + " chunks");
}

void CheckGoldenChannels(std::span<const int32_t> channels, int64_t cols) {
  int64_t before = -1;
  for (const int32_t channel : channels) {
    if (channel <= before || channel >= cols) {
      throw InvalidInput("protected channel " + std::to_string(channel) + ": allowed are 0.." +
                         std::to_string(cols - 1) + ", ascending");
    }
    before = channel;
  }
}

void CheckGoldenAttention(const HostMatrix& p, const HostMatrix& v, std::span<const int> lengths, bool is_int,
                          int64_t start) {
  const bool fits = p.rows > 0 && v.cols > 0 && p.cols == v.rows && start >= 0 && start < p.cols &&
                    p.rows <= p.cols - start && (is_int || static_cast<int64_t>(lengths.size()) == p.rows);
  if (!fits) {
    throw InvalidInput("p of " + std::to_string(p.rows) + " rows from position " + std::to_string(start) + ", v of " +
                       std::to_string(v.rows) + " positions and " + std::to_string(lengths.size()) +
                       " lengths do not fit together");
  }
}

void CheckGoldenStairs(std::span<const StaircaseBucket> buckets, size_t levels) {
  bool fits = levels > 0 && !buckets.empty();
  for (const StaircaseBucket& bucket : buckets) {
    const size_t bins = bucket.u_left.size();
    fits = fits && bins > 0 && bucket.errors.size() == bins && bucket.weights.size() == bins;
    for (const std::vector<double>& errors : bucket.errors) fits = fits && errors.size() == levels;
  }
  if (!fits) throw InvalidInput("u, errors and weights of a staircase do not fit together");
}

}  // namespace stoch
