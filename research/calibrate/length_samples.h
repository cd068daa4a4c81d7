// SPDX-License-Identifier: Apache-2.0
// What rows of a model's operands are dispatched by, and what they lose at each stream length.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/sc_plan.h"
#include "research/calibrate/calibrate_lengths.h"
#include "research/calibrate/host_products.h"
#include "research/calibrate/length_fit.h"

namespace stoch {

// The input of one linear, or of several that share it.
struct SampledInput {
  HostMatrix sampled;          // rows floor(i * rows / S), i < S = min(rows, 64), of each call
  std::vector<float> largest;  // max |x| of each channel, over all rows; empty where nothing is protected
  int64_t rows = 0;            // of a call
  int64_t samples = 0;         // of a call
  // Rows of experts are (token, expert) pairs, in order of (expert, token): whose each sampled row is, and the largest
  // inputs of each, in place of `largest`.
  std::vector<int64_t> experts = {};
  std::map<int64_t, std::vector<float>> largest_of = {};
  int64_t shown = 0;  // of the call on its way
};

// Whether an operator multiplies streams, so that lengths mean something.
bool InStreams(const ScConfig& op);

// Samples the operands of calls, each a window, while they are shown. Of attention it keeps what the samples lose.
class LengthCollector final : public OpObserver {
 public:
  // Keeps references. `levels` ascend.
  LengthCollector(const LengthCalibration& calibration, const DecoderConfig& config, std::vector<int> levels);

  void OnLinear(const LinearCall& call, const float* x, int64_t rows, int64_t cols, int64_t stride) override;
  void OnAttention(const AttentionCall& call, const PassLayout& layout) override;

  const SampledInput& At(int layer, BlockGroup group) const {
    return inputs_.at({layer, std::string(GroupName(group))});
  }
  const std::map<std::pair<ScOperatorId, int>, LengthSamples>& attention() const { return attention_; }

 private:
  const LengthCalibration& calibration_;
  ScPlan plan_;
  std::vector<int> levels_;
  int64_t top_k_;
  int64_t tokens_ = 0;  // of the call on its way
  std::map<std::pair<int, std::string>, SampledInput> inputs_;
  std::map<std::pair<ScOperatorId, int>, LengthSamples> attention_;  // by operator and layer
};

struct SampledLinear {
  const SampledInput& input;
  const WeightSource& w;
  const ScConfig& config;
  const std::vector<float>* smooth = nullptr;  // factors of the input channels
  std::vector<int32_t> protected_channels = {};
};

// Rows, or with calibration.chunks (row, chunk) pairs, in the order of the samples: relative errors of whole products,
// or squared ones of a chunk's. Protected channels are in the product of a row, at the longest level, and in no chunk.
LengthSamples SampleLinear(const LengthCalibration& calibration, std::span<const int> levels,
                           const SampledLinear& linear, HostProducts* products);

// The ceil(share * D) channels of largest max |x_j| * max |w_j|, ties to the lower index, ascending.
// Errors: InvalidInput naming `op` where none would be left.
std::vector<int32_t> LargestChannels(const std::vector<float>& largest_x, const HostMatrix& w, double share,
                                     const std::string& op);

}  // namespace stoch
