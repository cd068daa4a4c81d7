// SPDX-License-Identifier: Apache-2.0
// The products of attention that calibration takes samples of, against the readable definitions.
#include "research/calibrate/exact_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/math/random.h"
#include "kernels/registry.h"
#include "research/reference.h"

namespace stoch::test {
namespace {

constexpr int64_t kRows = 37, kHeads = 4, kKvHeads = 2, kHeadDim = 16;

bool Same(const std::vector<float>& a, const float* b) { return std::memcmp(a.data(), b, a.size() * 4) == 0; }

class ExactAttentionTest : public testing::Test {
 protected:
  ExactAttentionTest() {
    backend_ = OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr);
    KvCacheSpec spec;
    spec.num_layers = 1;
    spec.num_kv_heads = kKvHeads;
    spec.head_dim = kHeadDim;
    spec.num_pages = 1;
    cache_ = backend_->MakeKvCache(backend_->devices()[0], spec);
    const auto fill = [&](std::vector<float>* values, int64_t cols, uint64_t stream) {
      for (int64_t i = 0; i < kRows * cols; ++i) {
        values->push_back(RandomWeight(1, stream, static_cast<uint64_t>(i), 1.0f));
      }
      return MakeView(values->data(), DType::kF32, backend_->devices()[0], kRows, cols);
    };
    call_.q = fill(&q_, kHeads * kHeadDim, 1);
    call_.k = fill(&k_, kKvHeads * kHeadDim, 2);
    call_.v = fill(&v_, kKvHeads * kHeadDim, 3);
    call_.num_heads = kHeads;
    call_.cache = cache_.get();
    layout_.ids.assign(kRows, 0);
    layout_.sequences.push_back({0, kRows, 0, {}});
  }

  // One head's columns.
  static HostMatrix Head(const std::vector<float>& all, int64_t heads, int64_t head) {
    HostMatrix x{kRows, kHeadDim, {}};
    for (int64_t row = 0; row < kRows; ++row) {
      const float* from = all.data() + (row * heads + head) * kHeadDim;
      x.values.insert(x.values.end(), from, from + kHeadDim);
    }
    return x;
  }
  static ScConfig Config(int length) {
    ScConfig config;
    config.halve = true;
    config.stoc_len = length;
    return config;
  }

  std::shared_ptr<Backend> backend_;
  std::unique_ptr<KvCache> cache_;
  std::vector<float> q_, k_, v_;
  AttentionCall call_;
  PassLayout layout_;
};

TEST_F(ExactAttentionTest, StreamsAreTheReference) {
  const ExactAttention exact(call_, layout_);
  for (const int length : {128, 48}) {
    const ScConfig config = Config(length);
    const ExactAttention::Streams tokens(exact, {MakeScOperator(config)}, {MakeScOperator(config)},
                                         AttentionMode::kPerToken);
    const ExactAttention::Streams rows(exact, {MakeScOperator(config)}, {MakeScOperator(config)},
                                       AttentionMode::kPerRow);
    for (int64_t head = 0; head < kHeads; ++head) {
      const HostMatrix v = Head(v_, kKvHeads, head / 2);
      const HostMatrix scores = MultiplyReference(Head(q_, kHeads, head), Head(k_, kKvHeads, head / 2), config, {}).y;
      HostMatrix p{kRows, kRows, std::vector<float>(kRows * kRows, 0.0f)};
      for (int64_t row = 0; row < kRows; ++row) {
        EXPECT_TRUE(Same(tokens.Scores(head, row, 0), scores.row(row)));
        const std::vector<float> own = exact.Probabilities(exact.Scores(head, row), row);
        std::copy(own.begin(), own.end(), p.row(row));
      }
      HostMatrix channels{kHeadDim, kRows, {}};
      for (int64_t d = 0; d < kHeadDim; ++d) {
        for (int64_t t = 0; t < kRows; ++t) channels.values.push_back(v.row(t)[d]);
      }
      const HostMatrix by_token = PerTokenReference(p, v, config, {}, 0).y;
      const HostMatrix by_row = MultiplyReference(p, channels, config, {}).y;
      for (int64_t row = 0; row < kRows; ++row) {
        const std::span<const float> own(p.row(row), static_cast<size_t>(row + 1));
        EXPECT_TRUE(Same(tokens.Weighted(head, own, 0), by_token.row(row))) << head << " " << row;
        EXPECT_TRUE(Same(rows.Weighted(head, own, 0), by_row.row(row))) << head << " " << row;
      }
    }
  }
}

TEST_F(ExactAttentionTest, ExactIsSoftmaxOverWhatARowSees) {
  call_.window = 10;
  const ExactAttention exact(call_, layout_);
  EXPECT_EQ(exact.visible(3), 4);
  EXPECT_EQ(exact.visible(30), 10);
  const int64_t head = 3;
  const int64_t row = 30;
  const std::vector<float> p = exact.Probabilities(exact.Scores(head, row), row);
  const HostMatrix q = Head(q_, kHeads, head);
  const HostMatrix k = Head(k_, kKvHeads, 1);
  const HostMatrix v = Head(v_, kKvHeads, 1);
  std::vector<double> expected;
  double sum = 0;
  for (int64_t t = 0; t <= row; ++t) {
    double dot = 0;
    for (int64_t d = 0; d < kHeadDim; ++d) dot += static_cast<double>(q.row(row)[d]) * static_cast<double>(k.row(t)[d]);
    expected.push_back(t + 10 > row ? std::exp(dot / 4) : 0);
    sum += expected.back();
  }
  ASSERT_EQ(p.size(), 31u);
  for (size_t t = 0; t < p.size(); ++t) EXPECT_NEAR(p[t], expected[t] / sum, 1e-5) << t;
  const std::vector<float> y = exact.Weighted(head, p);
  for (size_t d = 0; d < y.size(); ++d) {
    double dot = 0;
    for (size_t t = 0; t < p.size(); ++t)
      dot += expected[t] / sum * static_cast<double>(v.row(static_cast<int64_t>(t))[d]);
    EXPECT_NEAR(y[d], dot, 1e-5) << d;
  }
}

}  // namespace
}  // namespace stoch::test
