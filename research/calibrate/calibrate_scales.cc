// SPDX-License-Identifier: Apache-2.0
#include "research/calibrate/calibrate_scales.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/expert_site.h"
#include "loader/checkpoint/weight_store.h"
#include "loader/config/decoder_tensors.h"
#include "models/sc_model_config.h"
#include "research/calibrate/exact_windows.h"
#include "research/calibrate/host_products.h"
#include "research/calibrate/scales.h"

namespace stoch {
namespace {

constexpr int64_t kAwqRows = 128;

// What the inputs of one linear, or of several that share them, carry.
struct InputStatistics {
  std::vector<float> largest;  // max |x| of each channel
  std::vector<double> sums;    // of |x|
  HostMatrix sampled;          // AWQ: rows floor(i * R / 128) of all R
  int64_t rows = 0;
};

// Collects by (layer, name of the call).
class Collector final : public OpObserver {
 public:
  Collector(bool sample, int64_t total_rows) : sample_(sample), total_rows_(total_rows) {}

  void OnLinear(const LinearCall& call, const float* x, int64_t rows, int64_t cols, int64_t stride) override {
    if (call.site.layer < 0) return;
    // Statistics of all experts together.
    InputStatistics& to = inputs_[{call.site.layer, std::string(ParseExpertSite(call.site.op).op)}];
    to.largest.resize(static_cast<size_t>(cols), 0.0f);
    to.sums.resize(static_cast<size_t>(cols), 0.0);
    to.sampled.cols = cols;
    for (int64_t i = 0; i < rows; ++i, ++to.rows) {
      const float* row = x + i * stride;
      for (size_t d = 0; d < to.largest.size(); ++d) {
        to.largest[d] = std::max(to.largest[d], std::abs(row[d]));
        to.sums[d] += std::abs(static_cast<double>(row[d]));
      }
      // Row floor(k * R / 128) for the next k.
      while (sample_ && to.sampled.rows < kAwqRows && to.sampled.rows * total_rows_ / kAwqRows == to.rows) {
        to.sampled.values.insert(to.sampled.values.end(), row, row + cols);
        ++to.sampled.rows;
      }
    }
  }
  // Largest |q| of the query heads of each KV head, and |k|, after RoPE: [kv_heads][head_dim].
  struct QkStatistics {
    std::vector<float> q, k;
  };
  void OnAttention(const AttentionCall& call, const PassLayout& layout) override {
    const auto kv_cols = call.k.dim(1);
    const int64_t head_dim = call.q.dim(1) / call.num_heads;
    const int64_t group = call.q.dim(1) / kv_cols;
    QkStatistics& to = qk_[call.site.layer];
    to.q.resize(static_cast<size_t>(kv_cols), 0.0f);
    to.k.resize(static_cast<size_t>(kv_cols), 0.0f);
    const auto take = [](float x, float& largest) { largest = std::max(largest, std::abs(x)); };
    for (int64_t row = 0; row < static_cast<int64_t>(layout.ids.size()); ++row) {
      const float* q = call.q.ptr<const float>() + row * call.q.step(0);
      const float* k = call.k.ptr<const float>() + row * call.k.step(0);
      for (int64_t i = 0; i < call.q.dim(1); ++i) {
        take(q[i], to.q[static_cast<size_t>(i / head_dim / group * head_dim + i % head_dim)]);
      }
      for (int64_t i = 0; i < kv_cols; ++i) take(k[i], to.k[static_cast<size_t>(i)]);
    }
  }
  const QkStatistics& Qk(int layer) const { return qk_.at(layer); }
  const InputStatistics& At(int layer, const std::string& name) const { return inputs_.at({layer, name}); }

 private:
  bool sample_;
  int64_t total_rows_;
  std::map<std::pair<int, std::string>, InputStatistics> inputs_;
  std::map<int, QkStatistics> qk_;
};

void Check(const ScaleCalibration& calibration) {
  if (!(calibration.alpha >= 0 && calibration.alpha <= 1)) {
    throw InvalidInput("--alpha " + std::to_string(calibration.alpha) + ": allowed is 0..1");
  }
  if (calibration.qk_alpha && !(*calibration.qk_alpha >= 0 && *calibration.qk_alpha <= 1)) {
    throw InvalidInput("--qk " + std::to_string(*calibration.qk_alpha) + ": allowed is 0..1");
  }
  if (calibration.only_qk && !calibration.qk_alpha) throw InvalidInput("--only qk: has no meaning without --qk");
  if (calibration.bits < 2 || calibration.bits > 8) {
    throw InvalidInput("--bits " + std::to_string(calibration.bits) + ": allowed is 2..8");
  }
}

std::vector<float> QkScales(const Collector::QkStatistics& largest, int64_t head_dim, double alpha) {
  std::vector<float> scales;
  for (size_t begin = 0; begin < largest.k.size(); begin += static_cast<size_t>(head_dim)) {
    const auto head = [&](const std::vector<float>& all) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
      return std::vector<float>(first, first + head_dim);
    };
    const std::vector<float> own = SmoothQuantQkScales(head(largest.q), head(largest.k), alpha);
    scales.insert(scales.end(), own.begin(), own.end());
  }
  return scales;
}

}  // namespace

std::map<std::string, std::vector<float>> CalibrateScales(const ScaleCalibration& calibration,
                                                          const std::shared_ptr<Backend>& backend,
                                                          const std::string& model, std::span<const int32_t> ids) {
  Check(calibration);
  const CalibrationWindows windows{calibration.ctx, calibration.windows, calibration.threads};
  CheckWindows(windows, ids.size());
  const ModelFiles files = OpenModelFiles(model);
  if (files.config.HasExperts() && calibration.method == ScaleMethod::kAwq && !calibration.only_qk) {
    throw InvalidInput(files.name +
                       ": rows of experts have no weight in common, which awq rounds: allowed is smoothquant");
  }
  const bool awq = calibration.method == ScaleMethod::kAwq;
  Collector collector(awq, calibration.ctx * calibration.windows);
  ObserveExactWindows(windows, backend, model, ids, &collector);

  HostProducts products(*backend);
  const auto product = [&](const HostMatrix& x, const HostMatrix& w) { return products.Exact(x, SourceOf(w)); };
  std::map<std::string, std::vector<float>> result;
  for (int layer = 0; layer < files.config.num_hidden_layers; ++layer) {
    if (calibration.qk_alpha) {
      result["layers." + std::to_string(layer) + ".qk"] =
          QkScales(collector.Qk(layer), files.config.head_dim, *calibration.qk_alpha);
    }
    if (calibration.only_qk) continue;
    std::map<std::string, std::vector<float>> largest_weights;  // by operator, or by call where factors are shared
    const auto call_of = [](const BlockLinear& linear) { return std::string(GroupName(linear.group)); };
    const auto op_of = [](const BlockLinear& linear) { return std::string(ScOperatorName(OperatorOf(linear.id))); };
    const auto key = [&](const BlockLinear& linear) { return calibration.share ? call_of(linear) : op_of(linear); };
    const auto of_experts = [&](const BlockLinear& linear) {
      return files.config.HasExperts(layer) && !linear.expert.empty();
    };
    const auto weight = [&](const BlockLinear& linear, int64_t expert) {
      const auto size = [&](Axis axis) { return SizeOf(files.config, expert < 0 ? axis : ExpertAxis(axis)); };
      return ReadWeight(files.weights->Matrix(LinearTensorName(files.config, layer, expert, linear), size(linear.out),
                                              size(linear.in)),
                        calibration.threads);
    };
    const auto linears = files.config.architecture->linears;
    for (const BlockLinear& linear : linears) {
      const InputStatistics& input = collector.At(layer, call_of(linear));
      if (awq) {
        std::vector<float> mean;
        constexpr float kLeastMean = 1e-4f;
        for (const double sum : input.sums) {
          mean.push_back(std::max(static_cast<float>(sum / static_cast<double>(input.rows)), kLeastMean));
        }
        result["layers." + std::to_string(layer) + '.' + op_of(linear)] =
            AwqScales(mean, input.sampled, weight(linear, -1), calibration.bits, product, calibration.threads).smooth;
        continue;
      }
      std::vector<float>& largest = largest_weights[key(linear)];
      // Factors of all experts, whose rows divide one input.
      const int64_t first = of_experts(linear) ? 0 : -1;
      const int64_t last = of_experts(linear) ? files.config.num_experts - 1 : -1;
      for (int64_t expert = first; expert <= last; ++expert) {
        const std::vector<float> own = LargestOfColumns(weight(linear, expert));
        largest.resize(own.size(), 0.0f);
        for (size_t d = 0; d < own.size(); ++d) largest[d] = std::max(largest[d], own[d]);
      }
    }
    for (const BlockLinear& linear : linears) {
      if (awq) break;
      result["layers." + std::to_string(layer) + '.' + op_of(linear)] = SmoothQuantScales(
          collector.At(layer, call_of(linear)).largest, largest_weights[key(linear)], calibration.alpha);
    }
  }
  return result;
}

}  // namespace stoch
