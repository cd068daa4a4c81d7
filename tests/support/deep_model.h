// SPDX-License-Identifier: Apache-2.0
// A checkpoint with layers that add nothing: it says what the model that it is made of says, and takes longer for it.
#pragma once

#include <filesystem>

namespace stoch::test {

// Makes `folder` the model of `from` (a folder with model.safetensors) with `layers` more, whose o_proj and down_proj are 0.
void WriteDeepModel(const std::filesystem::path& from, const std::filesystem::path& folder, int layers);

}  // namespace stoch::test
