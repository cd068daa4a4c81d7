// SPDX-License-Identifier: Apache-2.0
// Linears of several stream lengths, protected channels, integers and tables, and who runs them on a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/calls.h"
#include "kernels/plan/gpu_traits.h"
#include "kernels/plan/linear/route.h"
#include "kernels/plan/sc_traits.h"

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

// Routes of a case with weights of 70 and 33 rows on any GPU; nothing if no kernel of steps or prompts takes it.
class ExpectedRoutes {
 public:
  explicit ExpectedRoutes(const LinearCase& c);
  std::optional<LinearRoute> At(const GpuTraits& gpu, int64_t rows) const;

 private:
  LinearCase case_;
  ScTraits longest_;  // of the longest streams of the weight
  ScTraits usual_;    // of 128 halved cycles
};

}  // namespace stoch::test
