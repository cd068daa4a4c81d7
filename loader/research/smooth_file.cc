// SPDX-License-Identifier: Apache-2.0
#include "loader/research/smooth_file.h"

#include <cmath>
#include <string_view>

#include "kernels/base/error.h"
#include "loader/checkpoint/safetensors.h"

namespace stoch {

SmoothFile ReadSmoothFile(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  SmoothFile result;
  result.name = path.string();
  constexpr std::string_view kPrefix = "layers.";
  for (const SafetensorsTensor& tensor : file.tensors()) {
    const size_t rank = tensor.shape.size();
    if (!tensor.name.starts_with(kPrefix) || tensor.dtype != DType::kF32 || rank < 1 || rank > 2) {
      throw InvalidInput(result.name + ": " + tensor.name +
                         ": allowed are F32 [in_features] tensors layers.N.OPERATOR, [experts, in_features] of "
                         "experts, and [kv_heads, head_dim] or [head_dim] tensors layers.N.qk");
    }
    const std::vector<float> values = file.CopyF32(tensor);
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(values[i]) && values[i] > 0) continue;
      throw InvalidInput(result.name + ": " + tensor.name + "[" + std::to_string(i) + "] = " +
                         (values[i] == 0 ? "0" : std::to_string(values[i])) + ": allowed is a finite number above 0");
    }
    result.scales[tensor.name.substr(kPrefix.size())] = values;
  }
  return result;
}

}  // namespace stoch
