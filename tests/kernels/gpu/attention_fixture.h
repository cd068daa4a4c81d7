// SPDX-License-Identifier: Apache-2.0
// What the tests of CUDA attention share: both backends, shapes and passes.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/registry.h"
#include "tests/kernels/attention_scenario.h"
#include "tests/kernels/gpu/both_backends.h"

namespace stoch::test {

inline ScConfig Halved(int stoc_len = 0) {
  ScConfig config;
  config.halve = true;
  config.stoc_len = stoc_len;
  return config;
}

class CudaAttention : public BothBackends {
 protected:
  void ExpectEqual(const AttentionShape& shape, const Passes& passes) {
    EXPECT_EQ(test::Differences(test::RunAttention(*cpu_, shape, passes), test::RunAttention(*cuda_, shape, passes)),
              "");
  }
};

inline constexpr AttentionMode kModes[] = {AttentionMode::kExact, AttentionMode::kPerToken, AttentionMode::kPerHead,
                                           AttentionMode::kPerRow};

// A prompt over a page edge next to a short one, then decoding of both, then a second prompt part next to decoding.
inline const Passes kMixed = {
    {{0, 70}, {1, 5}}, {{0, 1}, {1, 1}}, {{1, 58}, {0, 1}}, {{1, 1}}, {{0, 20}, {2, 130}, {1, 3}}};

// One row of each of the first `count` sequences.
inline std::vector<Share> Step(int count) {
  std::vector<Share> pass;
  for (int i = 0; i < count; ++i) pass.push_back({i, 1});
  return pass;
}

inline AttentionShape LlamaOf8B(AttentionMode mode, int64_t max_context) {
  AttentionShape shape;
  shape.mode = mode;
  shape.qk = shape.av = Halved();
  shape.num_heads = 32;
  shape.num_kv_heads = 8;
  shape.head_dim = 128;
  shape.max_context = max_context;
  return shape;
}

// Of the worst row: |half - exact| / |exact|.
inline double WorstRow(const AttentionRows& exact, const AttentionRows& half) {
  double worst = 0;
  for (const auto& [name, row] : exact) {
    const auto& other = half.at(name);
    double error = 0;
    double norm = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      error += std::pow(static_cast<double>(row[i]) - static_cast<double>(other[i]), 2);
      norm += std::pow(static_cast<double>(row[i]), 2);
    }
    const double relative = std::sqrt(error / norm);
    if (!(relative <= worst)) worst = relative;
  }
  return worst;
}

}  // namespace stoch::test
