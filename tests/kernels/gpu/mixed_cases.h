// SPDX-License-Identifier: Apache-2.0
// Linears of several stream lengths, protected channels, integers and tables, and who runs them on a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/calls.h"
#include "kernels/plan/gpu_traits.h"

namespace stoch::test {

ScConfig MixedConfig(int64_t chunk_d);
// Lengths by amax with thresholds where the inputs of mixed_test spread.
std::shared_ptr<ScLengthRule> RowRule(std::vector<int> levels);
ScExtrasPtr MakeExtras(const ScConfig& config, const std::shared_ptr<ScLengthRule>& rule,
                       const std::function<void(ScExtras*)>& edit = {});
// A table whose entries are products times `gain`, and T(0, b) = b: padding must not count.
MultiplierTablePtr OddTable(int gain, bool is_signed);

inline constexpr int64_t kMixedCols = 300;

struct LinearCase {
  const char* name;
  LinearSpec spec;
  bool decodes = false;  // few rows by the kernels of decode steps
  bool prompts = false;  // from 33 rows on by binary tensor cores, where the GPU has wgmma
  bool looks_up = true;  // of those that decode: 2 to 16 rows by look-ups that serve all of them
  bool batches = true;   // of those that prompt: 17 to 128 rows on tensor cores, up to 32 at a time
};
std::vector<LinearCase> LinearCases();

// What MixedKernel says of a case with weights of 70 and 33 rows on a GPU like this; "" where it is no kernel of its own.
std::string ExpectedKernel(const GpuTraits& gpu, const LinearCase& c, int64_t rows);

}  // namespace stoch::test
