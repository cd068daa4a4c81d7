// SPDX-License-Identifier: Apache-2.0
// A Hugging Face folder of safetensors as a store of weights.
#pragma once

#include <filesystem>
#include <memory>

#include "loader/checkpoint/weight_store.h"

namespace stoch {

// As OpenModelFiles, for a folder.
ModelFiles OpenFolder(const std::filesystem::path& folder);

}  // namespace stoch
