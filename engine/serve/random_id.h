// SPDX-License-Identifier: Apache-2.0
// Names that nobody can guess.
#pragma once

#include <string>

namespace stoch::serve {

// 128 random bits of the system as 32 hexadecimal digits.
// Errors: std::runtime_error where the system gives none.
// Threads: safe.
std::string RandomId();

}  // namespace stoch::serve
