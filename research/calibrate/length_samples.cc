// SPDX-License-Identifier: Apache-2.0
#include "research/calibrate/length_samples.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "kernels/base/error.h"
#include "kernels/base/parallel_for.h"
#include "kernels/expert_site.h"
#include "research/calibrate/exact_attention.h"
#include "research/calibrate/scales.h"
#include "research/rsum.h"

namespace stoch {
namespace {

constexpr int64_t kRowSamples = 64;
constexpr int64_t kAttentionSamples = 128;
constexpr int64_t kParts = 128;  // LengthSamples::stands_for counts 128ths

// 128ths of a row that one of `samples` of `rows` stands for. Whole, since `samples` is all of them, or 64 or 128.
double StandsFor(int64_t rows, int64_t samples) {
  const int64_t parts = rows * kParts / samples;
  return static_cast<double>(parts);
}

// The metric of a row, or those that it is chosen of.
struct RowMetrics {
  float one = 0;
  std::array<float, 3> candidates = {};
};

RowMetrics MetricsOf(const LengthCalibration& calibration, const float* x, int64_t n) {
  RowMetrics metrics;
  if (calibration.metric == kAutoMetric) {
    for (size_t i = 0; i < metrics.candidates.size(); ++i) {
      metrics.candidates[i] = ScRowMetric(static_cast<ScMetric>(i), 1.0f, x, n);
    }
    return metrics;
  }
  const ScMetric metric = calibration.metric == "l2"      ? ScMetric::kL2
                          : calibration.metric == "crest" ? ScMetric::kCrest
                                                          : ScMetric::kAmax;
  metrics.one = ScRowMetric(metric, static_cast<float>(calibration.sign), x, n);
  return metrics;
}

void Add(const LengthCalibration& calibration, const RowMetrics& metrics, LengthSamples* to) {
  to->metrics.push_back(metrics.one);
  if (calibration.metric != kAutoMetric) return;
  for (size_t i = 0; i < metrics.candidates.size(); ++i) to->candidates[i].push_back(metrics.candidates[i]);
}

double SquaredDistance(const float* a, const float* b, int64_t n) {
  return RSum(n, [&](int64_t i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    return d * d;
  });
}

// ||v - y|| / ||y||, or 0 of a row of zeros.
double RelativeError(const float* v, const float* y, int64_t n) {
  const double size = RSum(n, [&](int64_t i) { return static_cast<double>(y[i]) * static_cast<double>(y[i]); });
  return size == 0 ? 0.0 : std::sqrt(SquaredDistance(v, y, n)) / std::sqrt(size);
}

std::vector<int32_t> Channels(int64_t count) {
  std::vector<int32_t> channels(static_cast<size_t>(count));
  std::iota(channels.begin(), channels.end(), 0);
  return channels;
}

// Every row of x in streams of the lengths of `ops`.
struct StreamProducts {
  const HostMatrix& x;
  const WeightSource& w;
  std::span<const ScOperatorPtr> ops;       // by level; null: length 0
  const HostMatrix* protected_y = nullptr;  // added, as protected channels are
};

// [row][level]: relative errors, or squared ones.
std::vector<double> Errors(const StreamProducts& streams, const HostMatrix& y, bool squared, int threads,
                           HostProducts* products) {
  const size_t levels = streams.ops.size();
  std::vector<double> errors(static_cast<size_t>(y.rows) * levels);
  for (size_t level = 0; level < levels; ++level) {
    HostMatrix v = products->InStreams(streams.x, streams.w, streams.ops[level]);
    ParallelFor(y.rows, threads, [&](int64_t row) {
      for (int64_t i = 0; i < y.cols && streams.protected_y != nullptr; ++i) {
        v.row(row)[i] = v.row(row)[i] + streams.protected_y->row(row)[i];
      }
      errors[static_cast<size_t>(row) * levels + level] =
          squared ? SquaredDistance(v.row(row), y.row(row), y.cols) : RelativeError(v.row(row), y.row(row), y.cols);
    });
  }
  return errors;
}

}  // namespace

bool InStreams(const ScConfig& op) { return op.arith == ScArith::kSc && HasSource(op.gate); }

LengthCollector::LengthCollector(const LengthCalibration& calibration, const DecoderConfig& config,
                                 std::vector<int> levels)
    : calibration_(calibration),
      plan_(calibration.sc, config),
      levels_(std::move(levels)),
      top_k_(config.num_experts_per_tok) {}

void LengthCollector::OnLinear(const LinearCall& call, const float* x, int64_t rows, int64_t cols, int64_t stride) {
  if (call.site.layer < 0) return;
  const ExpertSite site = ParseExpertSite(call.site.op);
  if (site.expert < 0) tokens_ = rows;
  SampledInput& to = inputs_[{call.site.layer, std::string(site.op)}];
  to.rows = site.expert < 0 ? rows : tokens_ * top_k_;
  to.samples = std::min(to.rows, kRowSamples);
  to.sampled.cols = cols;
  if (calibration_.protect > 0) {
    std::vector<float>& largest = site.expert < 0 ? to.largest : to.largest_of[site.expert];
    largest.resize(static_cast<size_t>(cols), 0.0f);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t d = 0; d < cols; ++d) {
        float& value = largest[static_cast<size_t>(d)];
        value = std::max(value, std::abs(x[i * stride + d]));
      }
    }
  }
  for (int64_t i = 0; i < to.samples; ++i) {
    const int64_t at = i * to.rows / to.samples - to.shown;
    if (at < 0 || at >= rows) continue;
    const float* row = x + at * stride;
    to.sampled.values.insert(to.sampled.values.end(), row, row + cols);
    ++to.sampled.rows;
    if (site.expert >= 0) to.experts.push_back(site.expert);
  }
  to.shown = (to.shown + rows) % to.rows;
}

void LengthCollector::OnAttention(const AttentionCall& call, const PassLayout& layout) {
  const int layer = call.site.layer;
  const AttentionMode mode = calibration_.sc.attention;
  if (mode == AttentionMode::kExact) return;
  const ExactAttention exact(call, layout);
  const ScConfig qk = plan_.Config(layer, ScOperatorId::kQk);
  const ScConfig av = plan_.Config(layer, ScOperatorId::kAv);
  const bool has_qk = InStreams(qk);
  const bool has_av = InStreams(av);
  if (!has_qk && !has_av) return;
  const ExactAttention::Streams streams(exact, MakeScOperators(has_qk ? qk : av, levels_),
                                        MakeScOperators(has_av ? av : qk, levels_), mode);
  const int64_t pairs = exact.heads() * exact.rows();
  const int64_t samples = std::min(pairs, kAttentionSamples);
  struct Sample {
    RowMetrics metrics;
    std::vector<double> errors;
  };
  std::vector<Sample> of_qk(has_qk ? static_cast<size_t>(samples) : 0);
  std::vector<Sample> of_av(has_av ? static_cast<size_t>(samples) : 0);
  const auto pair_of = [&](int64_t i) { return i * pairs / samples; };
  ParallelFor(samples, calibration_.windows.threads, [&](int64_t i) {
    const int64_t head = pair_of(i) / exact.rows();
    const int64_t row = pair_of(i) % exact.rows();
    const std::vector<float> scores = exact.Scores(head, row);
    const std::vector<float> p = exact.Probabilities(scores, row);
    const auto set = [&](Sample* to, const float* x, int64_t n, const std::vector<float>& y, const auto& product) {
      to->metrics = MetricsOf(calibration_, x, n);
      for (size_t level = 0; level < levels_.size(); ++level) {
        to->errors.push_back(RelativeError(product(level).data(), y.data(), static_cast<int64_t>(y.size())));
      }
    };
    if (has_qk) {
      set(&of_qk[static_cast<size_t>(i)], exact.Query(head, row), exact.head_dim(), scores,
          [&](size_t level) { return streams.Scores(head, row, level); });
    }
    if (has_av) {
      set(&of_av[static_cast<size_t>(i)], p.data(), static_cast<int64_t>(p.size()), exact.Weighted(head, p),
          [&](size_t level) { return streams.Weighted(head, p, level); });
    }
  });
  const auto append = [&](ScOperatorId id, const std::vector<Sample>& list) {
    for (size_t i = 0; i < list.size(); ++i) {
      LengthSamples& to = attention_[{id, layer}];
      const int64_t row = pair_of(static_cast<int64_t>(i)) % exact.rows();
      const bool rectangle = mode != AttentionMode::kPerToken;
      Add(calibration_, list[i].metrics, &to);
      to.stands_for.push_back(StandsFor(pairs, samples));
      to.macs.push_back(static_cast<double>(exact.head_dim() * (rectangle ? exact.rows() : exact.visible(row))));
      to.errors.insert(to.errors.end(), list[i].errors.begin(), list[i].errors.end());
    }
  };
  append(ScOperatorId::kQk, of_qk);
  append(ScOperatorId::kAv, of_av);
}

LengthSamples SampleLinear(const LengthCalibration& calibration, std::span<const int> levels,
                           const SampledLinear& linear, HostProducts* products) {
  const SampledInput& input = linear.input;
  const std::vector<int32_t>& own = linear.protected_channels;
  const HostMatrix& x = input.sampled;
  const int threads = calibration.windows.threads;
  // The weight on the host, where channels of it are taken or scaled.
  HostMatrix w;
  HostMatrix scaled_w;
  if (linear.smooth != nullptr || !own.empty() || calibration.chunks) w = ReadWeight(linear.w, threads);
  if (linear.smooth != nullptr) scaled_w = Smoothed(w, *linear.smooth, true);
  const HostMatrix& streams_w = linear.smooth == nullptr ? w : scaled_w;
  const HostMatrix scaled_x = linear.smooth == nullptr ? x : Smoothed(x, *linear.smooth, false);
  std::vector<int32_t> rest;
  for (const int32_t d : Channels(x.cols)) {
    if (!std::binary_search(own.begin(), own.end(), d)) rest.push_back(d);
  }
  const double stands_for = StandsFor(input.rows, input.samples);
  const std::vector<ScOperatorPtr> ops = MakeScOperators(linear.config, levels);
  const std::span<const ScOperatorPtr> by_level = std::span(ops).first(levels.size());
  LengthSamples samples;
  if (!calibration.chunks) {
    const HostMatrix dispatch = SelectChannels(x, rest);
    const HostMatrix y = products->Exact(x, linear.w);
    for (int64_t row = 0; row < x.rows; ++row) {
      Add(calibration, MetricsOf(calibration, dispatch.row(row), dispatch.cols), &samples);
      samples.stands_for.push_back(stands_for);
      samples.macs.push_back(static_cast<double>(dispatch.cols * y.cols));
    }
    if (own.empty()) {
      const WeightSource source = linear.smooth == nullptr ? linear.w : SourceOf(scaled_w);
      samples.errors = Errors({scaled_x, source, by_level}, y, false, threads, products);
      return samples;
    }
    const HostMatrix own_w = SelectChannels(streams_w, own);
    const HostMatrix own_y = products->InStreams(SelectChannels(scaled_x, own), SourceOf(own_w), by_level.back());
    const HostMatrix rest_w = SelectChannels(streams_w, rest);
    const HostMatrix rest_x = SelectChannels(scaled_x, rest);
    samples.errors = Errors({rest_x, SourceOf(rest_w), by_level, &own_y}, y, false, threads, products);
    return samples;
  }
  const int64_t size = linear.config.chunk_d > 0 ? linear.config.chunk_d : static_cast<int64_t>(rest.size());
  std::vector<LengthSamples> chunks;
  for (size_t begin = 0; begin < rest.size(); begin += static_cast<size_t>(size)) {
    const size_t end = std::min(begin + static_cast<size_t>(size), rest.size());
    const std::span<const int32_t> channels = std::span(rest).subspan(begin, end - begin);
    const HostMatrix part = SelectChannels(x, channels);
    LengthSamples& chunk = chunks.emplace_back();
    for (int64_t row = 0; row < x.rows; ++row) {
      chunk.metrics.push_back(ScRowMetric(ScMetric::kAmax, 1.0f, part.row(row), part.cols));
    }
    const HostMatrix part_w = SelectChannels(w, channels);
    const HostMatrix y = products->Exact(part, SourceOf(part_w));
    const HostMatrix streams_x = SelectChannels(scaled_x, channels);
    const HostMatrix part_streams_w = SelectChannels(streams_w, channels);
    chunk.errors = Errors({streams_x, SourceOf(part_streams_w), by_level}, y, true, threads, products);
  }
  // In order of row, then chunk.
  for (int64_t row = 0; row < x.rows; ++row) {
    for (size_t c = 0; c < chunks.size(); ++c) {
      const int64_t width = std::min(size, static_cast<int64_t>(rest.size()) - static_cast<int64_t>(c) * size);
      samples.metrics.push_back(chunks[c].metrics[static_cast<size_t>(row)]);
      samples.stands_for.push_back(stands_for);
      samples.macs.push_back(static_cast<double>(width * linear.w.rows));
      const double* errors = chunks[c].errors.data() + static_cast<size_t>(row) * levels.size();
      samples.errors.insert(samples.errors.end(), errors, errors + levels.size());
    }
  }
  return samples;
}

std::vector<int32_t> LargestChannels(const std::vector<float>& largest_x, const HostMatrix& w, double share,
                                     const std::string& op) {
  std::vector<float> size = largest_x;
  const std::vector<float> of_weights = LargestOfColumns(w);
  for (size_t d = 0; d < size.size(); ++d) size[d] = size[d] * of_weights[d];
  std::vector<int32_t> order = Channels(static_cast<int64_t>(size.size()));
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return size[static_cast<size_t>(a)] > size[static_cast<size_t>(b)]; });
  const auto count = static_cast<size_t>(std::ceil(share * static_cast<double>(size.size())));
  if (count >= size.size()) {
    throw InvalidInput("--protect " + std::to_string(share) + ": leaves no channel of " + op);
  }
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace stoch
