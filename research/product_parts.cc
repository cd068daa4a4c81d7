// SPDX-License-Identifier: Apache-2.0
#include "research/product_parts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/math/elementary.h"
#include "kernels/math/reduce.h"
#include "kernels/sc/sc_parameters.h"

namespace stoch {
namespace {

TensorView ViewOf(const Buffer& buffer, int64_t rows, int64_t cols) {
  return MakeView(buffer.data(), DType::kF32, buffer.device(), rows, cols);
}

HostMatrix Zeros(int64_t rows, int64_t cols) {
  return {rows, cols, std::vector<float>(static_cast<size_t>(rows * cols), 0.0f)};
}

HostMatrix Columns(const HostMatrix& x, int64_t first, int64_t count) {
  HostMatrix result{x.rows, count, {}};
  for (int64_t i = 0; i < x.rows; ++i) {
    result.values.insert(result.values.end(), x.row(i) + first, x.row(i) + first + count);
  }
  return result;
}

HostMatrix Transposed(const HostMatrix& x) {
  HostMatrix result = Zeros(x.cols, x.rows);
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t j = 0; j < x.cols; ++j) result.row(j)[i] = x.row(i)[j];
  }
  return result;
}

// The exact product of unipolar codes, which need a zero point: no integer arithmetic has that.
ScOperatorPtr AsymmetricProduct(const ScOperator& op) {
  auto result = std::make_shared<ScOperator>(op);
  result->config = WithIdealHardware(op.config);
  const int side = op.q_max + 1;
  result->levels = side;
  result->masks = 1;
  result->counts.clear();
  result->wide_counts.clear();
  for (int a = 0; a < side; ++a) {
    for (int b = 0; b < side; ++b) result->wide_counts.push_back(a * b);
  }
  result->max_count = op.q_max * op.q_max;
  result->gain = 1.0f;
  result->has_streams = false;
  result->streams_a.clear();
  result->ranks_b.clear();
  return result;
}

}  // namespace

ScOperatorPtr QuantizedOperator(const ScOperator& op) {
  if (op.code == ScCode::kAsymmetric) return AsymmetricProduct(op);
  if (IsNumberFormat(op.config.arith)) return std::make_shared<ScOperator>(op);  // sums are exact as they are
  int bits = 2;
  while ((1 << (bits - 1)) - 1 < op.q_max) ++bits;
  ScConfig config = WithIdealHardware(op.config);
  config.gate = ScGate::kEnabled;
  config.table.clear();
  config.multiplier = {};
  config.arith = static_cast<ScArith>(static_cast<int>(ScArith::kInt2) + bits - 2);
  auto result = std::make_shared<ScOperator>(*MakeScOperator(config));
  STOCH_CHECK(result->q_max == op.q_max);
  result->scale_floor = op.scale_floor;
  result->config.granularity = op.config.granularity;
  result->config.group_a = op.config.group_a;
  result->config.group_b = op.config.group_b;
  result->config.chunk_d = op.config.chunk_d;
  return result;
}

LinearSpec QuantizedSpec(const LinearSpec& spec) {
  if (spec.precision != Precision::kSc) return spec;
  LinearSpec result{spec.precision, QuantizedOperator(*spec.sc)};
  if (spec.extras == nullptr) return result;
  auto extras = std::make_shared<ScExtras>();
  extras->op = spec.extras->op;
  extras->protected_channels = spec.extras->protected_channels;
  extras->smooth = spec.extras->smooth;
  if (spec.extras->protected_op != nullptr) extras->protected_op = QuantizedOperator(*spec.extras->protected_op);
  if (!extras->protected_channels.empty() || !extras->smooth.empty()) result.extras = extras;
  return result;
}

HostMatrix ProductRunner::Linear(const WeightSource& source, const LinearSpec& spec, const HostMatrix& x) const {
  const std::unique_ptr<LinearWeight> weight = backend_.MakeLinear(device_, {&source, 1}, spec);
  HostMatrix y = Zeros(x.rows, source.rows);
  const Buffer from = backend_.Allocate(device_, static_cast<int64_t>(x.values.size() * sizeof(float)));
  const Buffer to = backend_.Allocate(device_, static_cast<int64_t>(y.values.size() * sizeof(float)));
  LinearCall call;
  call.site = {-1, "profile"};
  call.x = ViewOf(from, x.rows, x.cols);
  call.weights = {weight.get()};
  call.outs = {ViewOf(to, y.rows, y.cols)};
  backend_.CopyFromHost(call.x, x.values.data());
  backend_.Linear(call);
  backend_.CopyToHost(y.values.data(), call.outs[0]);
  backend_.CheckFinite(device_);
  return y;
}

HostMatrix ProductRunner::Exact(const HostMatrix& a, const HostMatrix& b) const {
  WeightSource source;
  source.name = "an operand";
  source.rows = b.rows;
  source.cols = b.cols;
  source.host = b.values.data();
  return Linear(source, {}, a);
}

HostMatrix ProductRunner::Matmul(const HostMatrix& a, const HostMatrix& b, const ScOperatorPtr& op,
                                 const ScExtras* extras, std::span<const int> lengths) const {
  HostMatrix y = Zeros(a.rows, b.rows);
  const auto copy = [&](const HostMatrix& x) {
    Buffer buffer = backend_.Allocate(device_, static_cast<int64_t>(x.values.size() * sizeof(float)));
    backend_.CopyFromHost(ViewOf(buffer, x.rows, x.cols), x.values.data());
    return buffer;
  };
  const Buffer left = copy(a);
  const Buffer right = copy(b);
  const Buffer to = backend_.Allocate(device_, static_cast<int64_t>(y.values.size() * sizeof(float)));
  const TensorView out = ViewOf(to, y.rows, y.cols);
  if (extras != nullptr) {
    backend_.ScMixedMatmul(ViewOf(left, a.rows, a.cols), ViewOf(right, b.rows, b.cols), op, *extras, lengths, out);
  } else {
    // A scale for a head is one for a slice of three axes.
    const bool by_head = op->config.granularity == ScGranularity::kPerHead;
    const auto view = [&](const Buffer& buffer, int64_t rows, int64_t cols) {
      return by_head ? MakeView(buffer.data(), DType::kF32, buffer.device(), 1, rows, cols)
                     : ViewOf(buffer, rows, cols);
    };
    backend_.ScMatmul(view(left, a.rows, a.cols), view(right, b.rows, b.cols), *op, view(to, y.rows, y.cols));
  }
  backend_.CopyToHost(y.values.data(), out);
  backend_.CheckFinite(device_);
  return y;
}

AttentionParts::AttentionParts(const ProductRunner& runner, const DecoderConfig& config, const ScModelConfig& sc,
                               KvCacheSpec::Products products)
    : runner_(runner),
      config_(config),
      mode_(sc.attention),
      dilated_(sc.DilatedPairs()),
      products_(std::move(products)) {
  const ScConfig& qk = products_.qk->config;
  if (mode_ != AttentionMode::kPerToken || qk.chunk_d == 0 || qk.arith == ScArith::kMxInt8) return;
  auto whole = std::make_shared<ScOperator>(*products_.qk);  // a query is one chunk there
  whole->config.chunk_d = 0;
  products_.qk = whole;
}

std::vector<AttentionParts::Head> AttentionParts::Cut(const AttentionOperands& operands) const {
  const int64_t dim = config_.head_dim;
  const int64_t group = config_.num_attention_heads / config_.num_key_value_heads;
  std::vector<Head> heads;
  for (int64_t head = 0; head < config_.num_attention_heads; ++head) {
    heads.push_back({Columns(operands.q, head * dim, dim),
                     Columns(operands.k, head / group * dim, dim),
                     Columns(operands.v, head / group * dim, dim),
                     {}});
  }
  return heads;
}

AttentionParts::Visible AttentionParts::Seen(const AttentionOperands& operands, int64_t row) const {
  const int64_t first = operands.window > 0 ? std::max<int64_t>(0, row + 1 - operands.window) : 0;
  return {first, row + 1 - first};
}

std::vector<std::vector<int>> AttentionParts::Lengths(const ScExtrasPtr& extras, const std::vector<Head>& heads,
                                                      const std::function<Visible(int64_t row)>& visible,
                                                      bool of_scores) const {
  if (extras == nullptr || extras->lengths == nullptr) return {};
  const ScLengthRule& rule = *extras->lengths;
  std::vector<std::vector<float>> metrics(heads.size());
  std::vector<float> all;
  for (size_t h = 0; h < heads.size(); ++h) {
    const HostMatrix& rows = of_scores ? heads[h].scores : heads[h].q;
    for (int64_t row = 0; row < rows.rows; ++row) {
      const int64_t n = of_scores ? visible(row).first + visible(row).count : rows.cols;
      metrics[h].push_back(ScRowMetric(rule.metric, rule.sign, rows.row(row), n));
    }
    all.insert(all.end(), metrics[h].begin(), metrics[h].end());
  }
  std::vector<std::vector<int>> lengths(heads.size());
  const bool by_head = rule.scope == ScLengthScope::kFractions;
  const std::vector<int> together = by_head ? std::vector<int>{} : ScRowLevels(rule, all);
  for (size_t h = 0; h < heads.size(); ++h) {
    const std::vector<int> own = by_head ? ScRowLevels(rule, metrics[h]) : std::vector<int>{};
    for (size_t row = 0; row < metrics[h].size(); ++row) {
      lengths[h].push_back(rule.Length(by_head ? own[row] : together[h * metrics[h].size() + row], 0));
    }
  }
  return lengths;
}

HostMatrix AttentionParts::ScoresOf(const Head& head, std::span<const int> lengths) const {
  if (mode_ == AttentionMode::kExact) return runner_.Exact(head.q, head.k);
  return runner_.Matmul(head.q, head.k, products_.qk, products_.qk_extras.get(), lengths);
}

HostMatrix AttentionParts::ValuesOf(const Head& head, std::span<const int> lengths) const {
  switch (mode_) {
    case AttentionMode::kExact: return runner_.Exact(head.scores, Transposed(head.v));
    case AttentionMode::kPerToken: return PerTokenReference(head.scores, head.v, products_.av->config, lengths, 0).y;
    case AttentionMode::kPerHead:
    case AttentionMode::kPerRow:
      return runner_.Matmul(head.scores, Transposed(head.v), products_.av, products_.av_extras.get(), lengths);
  }
  STOCH_CHECK(false);
}

int AttentionParts::Times(const AttentionOperands& operands, int64_t head, int64_t row, int64_t t) const {
  if (t < Seen(operands, row).first || t > row) return 0;
  return dilated_.empty() ? 1 : TimesAdmitted(dilated_, head, row, t);
}

// Scores to probabilities, as the backends do it.
void AttentionParts::Softmax(const AttentionOperands& operands, int64_t head, HostMatrix* scores) const {
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
  for (int64_t row = 0; row < scores->rows; ++row) {
    float* s = scores->row(row);
    float largest = -std::numeric_limits<float>::infinity();
    for (int64_t t = 0; t <= row; ++t) {
      s[t] = s[t] * scale;
      if (Times(operands, head, row, t) > 0) largest = std::max(largest, s[t]);
    }
    float lanes[kRowLanes] = {};
    for (int64_t t = 0; t <= row; ++t) {
      const int times = Times(operands, head, row, t);
      s[t] = times == 0 ? 0.0f : static_cast<float>(times) * Exp(s[t] - largest);
      lanes[t % kRowLanes] = lanes[t % kRowLanes] + s[t];
    }
    const float sum = FoldLanes<kRowLanes>(lanes);
    for (int64_t t = 0; t <= row; ++t) s[t] = sum == 0.0f ? 0.0f : s[t] / sum;  // 0: it sees nothing
    std::fill(s + row + 1, s + scores->cols, 0.0f);
  }
}

ProductParts AttentionParts::Compact(const AttentionOperands& operands, int64_t head, const ProductParts& parts,
                                     std::vector<int64_t>* counts) const {
  ProductParts result = parts;
  counts->assign(static_cast<size_t>(parts.y.rows), 0);
  for (int64_t row = 0; row < parts.y.rows; ++row) {
    int64_t& count = (*counts)[static_cast<size_t>(row)];
    for (int64_t t = 0; t <= row; ++t) {
      if (Times(operands, head, row, t) == 0) continue;
      for (HostMatrix* m : {&result.y, &result.z, &result.v}) {
        if (!m->values.empty()) m->row(row)[count] = m->row(row)[t];
      }
      ++count;
    }
  }
  return result;
}

void AttentionParts::Run(const AttentionOperands& exact, const AttentionOperands& configured, bool split,
                         const Receiver& receive) const {
  const auto seen = [&](int64_t row) { return Seen(exact, row); };
  const auto channels = [&](int64_t) { return Visible{0, config_.head_dim}; };
  const bool is_sc = mode_ != AttentionMode::kExact;
  std::vector<Head> right = Cut(exact);
  std::vector<Head> left = Cut(configured);
  const std::vector<std::vector<int>> q_lengths = Lengths(products_.qk_extras, left, seen, false);
  const ScOperatorPtr z_qk = is_sc && split ? QuantizedOperator(*products_.qk) : nullptr;
  for (size_t h = 0; h < left.size(); ++h) {
    ProductParts parts;
    parts.y = runner_.Exact(right[h].q, right[h].k);
    parts.v = ScoresOf(left[h], q_lengths.empty() ? std::span<const int>{} : std::span<const int>(q_lengths[h]));
    if (split) parts.z = is_sc ? runner_.Matmul(right[h].q, right[h].k, z_qk, nullptr, {}) : parts.y;
    const auto head = static_cast<int64_t>(h);
    if (dilated_.empty()) {
      receive(ScOperatorId::kQk, head, parts, seen);
    } else {
      std::vector<int64_t> counts;
      const ProductParts admitted = Compact(exact, head, parts, &counts);
      receive(ScOperatorId::kQk, head, admitted, [&](int64_t row) {
        return Visible{0, counts[static_cast<size_t>(row)]};
      });
    }
    right[h].scores = std::move(parts.y);
    Softmax(exact, head, &right[h].scores);
    // Operands of the exact forward alone: errors of scores are not those of values.
    left[h].scores = split ? right[h].scores : std::move(parts.v);
    if (!split) Softmax(configured, head, &left[h].scores);
  }
  const std::vector<std::vector<int>> p_lengths = Lengths(products_.av_extras, left, seen, true);
  const ScOperatorPtr z_av = is_sc && split ? QuantizedOperator(*products_.av) : nullptr;
  for (size_t h = 0; h < left.size(); ++h) {
    ProductParts parts;
    const HostMatrix channels_of_v = Transposed(right[h].v);
    parts.y = runner_.Exact(right[h].scores, channels_of_v);
    parts.v = ValuesOf(left[h], p_lengths.empty() ? std::span<const int>{} : std::span<const int>(p_lengths[h]));
    if (split) {
      parts.z = !is_sc ? parts.y
                : mode_ == AttentionMode::kPerToken
                    ? PerTokenQuantized(right[h].scores, right[h].v, products_.av->config, 0)
                    : runner_.Matmul(right[h].scores, channels_of_v, z_av, nullptr, {});
    }
    receive(ScOperatorId::kAv, static_cast<int64_t>(h), parts, channels);
  }
}

}  // namespace stoch
