// SPDX-License-Identifier: Apache-2.0
// Smoothing factors: a safetensors file of one F32 [in_features] tensor `layers.N.OPERATOR` per smoothed linear.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace stoch {

struct SmoothFile {
  std::string name;                                  // for messages
  std::map<std::string, std::vector<float>> scales;  // by "N.OPERATOR"
};

// Errors: InvalidInput naming file, tensor, place and what is allowed.
SmoothFile ReadSmoothFile(const std::filesystem::path& path);

}  // namespace stoch
