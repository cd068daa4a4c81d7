// SPDX-License-Identifier: Apache-2.0
// GGUF files as a store of weights.
#pragma once

#include <filesystem>

#include "loader/checkpoint/gguf/file.h"
#include "loader/checkpoint/weight_store.h"

namespace stoch {

// As OpenModelFiles, for a GGUF file.
ModelFiles OpenGguf(const std::filesystem::path& path);

}  // namespace stoch
