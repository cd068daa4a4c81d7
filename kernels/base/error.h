// SPDX-License-Identifier: Apache-2.0
// The exceptions of the project. Libraries throw them; only tools and tests catch them.
#pragma once

#include <stdexcept>
#include <string>

namespace stoch {

// A file, shape, flag or request that cannot be used. The message is one sentence that names what, where, what was
// expected and what was found. Tools turn it into exit code 2.
class InvalidInput : public std::runtime_error {
 public:
  explicit InvalidInput(const std::string& message) : std::runtime_error(message) {}
};

// Memory that a device or the host does not have just now. Whatever asked for it has not happened, everything else goes
// on: one request may end, another may succeed. Tools turn it into exit code 3.
class OutOfMemory : public std::runtime_error {
 public:
  explicit OutOfMemory(const std::string& message) : std::runtime_error(message) {}
};

// A device that failed while it was used (CUDA, NCCL). Backends derive their own type with code and place.
// Tools turn it into exit code 3.
class DeviceError : public std::runtime_error {
 public:
  explicit DeviceError(const std::string& message) : std::runtime_error(message) {}
};

}  // namespace stoch
