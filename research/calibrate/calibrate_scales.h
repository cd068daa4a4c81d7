// SPDX-License-Identifier: Apache-2.0
// Smoothing factors of every linear of a model, from what a text makes of its inputs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace stoch {

enum class ScaleMethod : uint8_t { kSmoothQuant, kAwq };

struct ScaleCalibration {
  ScaleMethod method = ScaleMethod::kSmoothQuant;
  double alpha = 0.5;              // SmoothQuant, 0..1
  bool share = false;              // one factor for all linears of an input, from their largest weights
  int bits = 4;                    // AWQ, 2..8
  std::optional<double> qk_alpha;  // SmoothQuant: factors of qk too, 0..1
  bool only_qk = false;            // and of nothing else
  int64_t ctx = 512;               // tokens of a window
  int64_t windows = 16;
  int threads = 1;  // of the host, for what no device computes
};

// [in_features] by "layers.N.OPERATOR", [kv_heads * head_dim] by "layers.N.qk". Runs windows of `ids` through `model` in exact fp32, cut as perplexity cuts
// them.
// Bits:   depend on no device, thread count or batch.
// Errors: InvalidInput for values out of range, or fewer windows than asked.
std::map<std::string, std::vector<float>> CalibrateScales(const ScaleCalibration& calibration,
                                                          const std::shared_ptr<Backend>& backend,
                                                          const std::string& model, std::span<const int32_t> ids);

}  // namespace stoch
