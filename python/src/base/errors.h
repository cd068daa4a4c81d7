// SPDX-License-Identifier: Apache-2.0
// The one exception of the project that only Python tells apart.
#pragma once

#include <string>

#include "kernels/base/error.h"

namespace stoch::python {

// An operand holds NaN or infinity.
class NotFinite : public InvalidInput {
 public:
  explicit NotFinite(const std::string& message) : InvalidInput(message) {}
};

// The process was forked after a device was opened: its threads and its driver are the parent's.
class UsedBeforeFork : public std::runtime_error {
 public:
  UsedBeforeFork() : std::runtime_error("stoch was used before fork: start workers with spawn") {}
};

}  // namespace stoch::python
