// SPDX-License-Identifier: Apache-2.0
#include "research/calibrate/exact_attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/math/elementary.h"
#include "kernels/math/quantize.h"
#include "kernels/math/reduce.h"
#include "research/calibrate/scales.h"
#include "research/reference.h"

namespace stoch {

ExactAttention::ExactAttention(const AttentionCall& call, const PassLayout& layout)
    : call_(call),
      rows_(static_cast<int64_t>(layout.ids.size())),
      heads_(call.num_heads),
      kv_heads_(call.cache->spec().num_kv_heads),
      head_dim_(call.cache->spec().head_dim),
      window_(call.window) {
  STOCH_CHECK(layout.sequences.size() == 1 && layout.sequences[0].start_position == 0);
}

const float* ExactAttention::Query(int64_t head, int64_t row) const {
  return call_.q.ptr<const float>() + row * call_.q.step(0) + head * head_dim_;
}
const float* ExactAttention::Key(int64_t head, int64_t position) const {
  return call_.k.ptr<const float>() + position * call_.k.step(0) + head / group() * head_dim_;
}
const float* ExactAttention::Value(int64_t head, int64_t position) const {
  return call_.v.ptr<const float>() + position * call_.v.step(0) + head / group() * head_dim_;
}

std::vector<float> ExactAttention::Scores(int64_t head, int64_t row) const {
  std::vector<float> scores(static_cast<size_t>(row + 1), 0.0f);
  for (int64_t t = first(row); t <= row; ++t) {
    scores[static_cast<size_t>(t)] = ExactDot(Query(head, row), Key(head, t), head_dim_);
  }
  return scores;
}

std::vector<float> ExactAttention::Probabilities(std::span<const float> scores, int64_t row) const {
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim_)));
  std::vector<float> p(scores.size(), 0.0f);
  float max = scores[static_cast<size_t>(first(row))] * scale;
  for (auto t = static_cast<size_t>(first(row)); t < p.size(); ++t) max = std::max(max, scores[t] * scale);
  float lanes[kRowLanes] = {};
  for (auto t = static_cast<size_t>(first(row)); t < p.size(); ++t) {
    p[t] = Exp(scores[t] * scale - max);
    lanes[t % kRowLanes] = lanes[t % kRowLanes] + p[t];
  }
  const float sum = FoldLanes<kRowLanes>(lanes);
  for (float& value : p) value = value / sum;
  return p;
}

std::vector<float> ExactAttention::Weighted(int64_t head, std::span<const float> p) const {
  std::vector<float> y;
  for (int64_t d = 0; d < head_dim_; ++d) {
    float lanes[kDotLanes] = {};
    for (size_t t = 0; t < p.size(); ++t) {
      lanes[t % kDotLanes] = Fma(p[t], Value(head, static_cast<int64_t>(t))[d], lanes[t % kDotLanes]);
    }
    y.push_back(FoldLanes<kDotLanes>(lanes));
  }
  return y;
}

void ExactAttention::Streams::Add(const ScOperator& op, const float* x, int64_t n, Codes* codes) {
  float max = 0.0f;
  for (int64_t i = 0; i < n; ++i) max = std::max(max, std::abs(x[i]));
  const float scale = BipolarScale(max, op.q_max, op.scale_floor);
  codes->size = n;
  codes->scales.push_back(scale);
  for (int64_t i = 0; i < n; ++i) codes->levels.push_back(static_cast<int16_t>(BipolarLevel(x[i], scale, op.q_max)));
}

ExactAttention::Streams::Streams(const ExactAttention& exact, std::vector<ScOperatorPtr> qk,
                                 std::vector<ScOperatorPtr> av, AttentionMode mode)
    : exact_(exact), qk_(std::move(qk)), av_(std::move(av)), mode_(mode) {
  STOCH_CHECK(mode == AttentionMode::kPerToken || mode == AttentionMode::kPerRow);
  STOCH_CHECK(!qk_.empty() && qk_.front() != nullptr && !av_.empty() && av_.front() != nullptr);
  for (int64_t kv_head = 0; kv_head < exact.kv_heads_; ++kv_head) {
    const int64_t head = kv_head * exact.group();
    Codes& keys = keys_.emplace_back();
    Codes& values = values_.emplace_back();
    for (int64_t t = 0; t < exact.rows_; ++t) Add(*qk_.front(), exact.Key(head, t), exact.head_dim_, &keys);
    if (mode == AttentionMode::kPerToken) {
      for (int64_t t = 0; t < exact.rows_; ++t) Add(*av_.front(), exact.Value(head, t), exact.head_dim_, &values);
      continue;
    }
    for (int64_t d = 0; d < exact.head_dim_; ++d) {
      std::vector<float> channel;
      for (int64_t t = 0; t < exact.rows_; ++t) channel.push_back(exact.Value(head, t)[d]);
      Add(*av_.front(), channel.data(), exact.rows_, &values);
    }
  }
}

std::vector<float> ExactAttention::Streams::Scores(int64_t head, int64_t row, size_t length) const {
  std::vector<float> y(static_cast<size_t>(row + 1), 0.0f);
  const ScOperator* op = qk_[length].get();
  if (op == nullptr) return y;
  Codes query;
  Add(*op, exact_.Query(head, row), exact_.head_dim_, &query);
  const Codes& keys = keys_[static_cast<size_t>(head / exact_.group())];
  for (int64_t t = exact_.first(row); t <= row; ++t) {
    const int16_t* key = keys.levels.data() + t * keys.size;
    int32_t acc = 0;
    for (int64_t d = 0; d < exact_.head_dim_; ++d)
      acc += SignedCount(*op, d, query.levels[static_cast<size_t>(d)], key[d]);
    y[static_cast<size_t>(t)] = BipolarProduct(acc, op->gain, query.scales[0], keys.scales[static_cast<size_t>(t)]);
  }
  return y;
}

std::vector<float> ExactAttention::Streams::Weighted(int64_t head, std::span<const float> p, size_t length) const {
  std::vector<float> y(static_cast<size_t>(exact_.head_dim_), 0.0f);
  const ScOperator* op = av_[length].get();
  if (op == nullptr) return y;
  const Codes& values = values_[static_cast<size_t>(head / exact_.group())];
  std::vector<int32_t> acc(y.size(), 0);
  Codes weights;
  if (mode_ == AttentionMode::kPerToken) {
    std::vector<float> scaled;
    for (size_t t = 0; t < p.size(); ++t) scaled.push_back(p[t] * values.scales[t]);
    Add(*op, scaled.data(), static_cast<int64_t>(scaled.size()), &weights);
    for (size_t t = 0; t < p.size(); ++t) {
      const int16_t* value = values.levels.data() + static_cast<int64_t>(t) * values.size;
      for (size_t d = 0; d < acc.size(); ++d) {
        acc[d] += SignedCount(*op, static_cast<int64_t>(t), weights.levels[t], value[d]);
      }
    }
    for (size_t d = 0; d < acc.size(); ++d) y[d] = (static_cast<float>(acc[d]) * op->gain) * weights.scales[0];
    return y;
  }
  Add(*op, p.data(), static_cast<int64_t>(p.size()), &weights);
  for (size_t d = 0; d < acc.size(); ++d) {
    const int16_t* value = values.levels.data() + static_cast<int64_t>(d) * values.size;
    for (size_t t = 0; t < p.size(); ++t) {
      acc[d] += SignedCount(*op, static_cast<int64_t>(t), weights.levels[t], value[t]);
    }
    y[d] = BipolarProduct(acc[d], op->gain, weights.scales[0], values.scales[d]);
  }
  return y;
}

}  // namespace stoch
