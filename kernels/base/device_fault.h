// SPDX-License-Identifier: Apache-2.0
// Which failures of a CUDA device its process survives. The numbers are those of cudaError_t; no CUDA is needed to know
// them.
#pragma once

#include <string>

#include "kernels/base/error.h"

namespace stoch {

// A call that a device refused: what it was to do has not happened, and the device goes on. One request may end.
class DeviceRefusal : public DeviceError {
 public:
  explicit DeviceRefusal(const std::string& message) : DeviceError(message) {}
};

// Whether the process cannot use the device again. Codes that nobody has looked at count as such.
// Source: the CUDA headers, which say "the process must be terminated and relaunched".
constexpr bool IsSticky(int cuda_error) {
  switch (cuda_error) {
    case 0:    // success
    case 1:    // invalid value
    case 2:    // memory allocation
    case 9:    // invalid configuration
    case 98:   // invalid device function
    case 701:  // launch out of resources
    case 720:  // cooperative launch too large
      return false;
    default: return true;
  }
}

}  // namespace stoch
