// SPDX-License-Identifier: Apache-2.0
// What transformers makes of a checkpoint: logits and greedy text, in the form of the reference data's goldens.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "loader/checkpoint/safetensors.h"

namespace stoch::test {

// Keys "exact.PROMPT.WHAT" of a golden file.
class FamilyGolden {
 public:
  explicit FamilyGolden(const std::filesystem::path& path) : file_(path) {}
  std::vector<float> F32(int prompt, const std::string& what) const;
  std::vector<int32_t> I32(int prompt, const std::string& what) const;

 private:
  SafetensorsFile file_;
};

// fp32, with room for the prompts and greedy texts of the goldens.
EngineOptions ExactFamilyOptions();

// Expects of the model in `folder`, for every prompt of the golden: logits within 1e-4 of their range, the same most
// probable token at every position, and the same greedy text.
// Requires: a range of more than 10, so that a golden of zeros is none.
void ExpectFamilyGolden(const std::shared_ptr<Backend>& backend, const std::filesystem::path& folder,
                        const std::filesystem::path& golden);

}  // namespace stoch::test
