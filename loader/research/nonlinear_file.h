// SPDX-License-Identifier: Apache-2.0
// Tables of functions: safetensors of F32 cuts, values and slopes [n], with metadata of stoch-nonlinear-v1.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "kernels/math/nonlinear_table.h"

namespace stoch {

// "silu", "exp" or "rsqrt", as metadata says.
std::string_view NonlinearFunctionName(NonlinearFunction function);

// Errors: InvalidInput naming file, what it has and what is allowed: another schema or function, n outside 1..4096, cuts
//         that do not ascend, a number that is not finite, bits outside -8..20, exp that is not above 0 at 0.
NonlinearTable ReadNonlinearFile(const std::filesystem::path& path, NonlinearFunction function);

// As ReadNonlinearFile reads it, with further metadata. Errors: InvalidInput where it cannot be written.
void WriteNonlinearFile(const std::filesystem::path& path, const NonlinearTable& table,
                        std::map<std::string, std::string> metadata);

}  // namespace stoch
