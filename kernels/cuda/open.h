// SPDX-License-Identifier: Apache-2.0
// What the registry needs to know of the CUDA backend; includes no CUDA header.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "kernels/backend.h"

namespace stoch::cuda {

// How many usable GPUs there are (compute capability 8.0 or newer) and, where there is none, why, as one
// clause.
struct Probe {
  int devices = 0;
  std::string problem;         // "no CUDA driver is installed", "" when devices > 0
  bool hardware_seen = false;  // a GPU seems to be there although `problem` is set
};
Probe ProbeDevices();

// A backend over the given CUDA ordinals (distinct, at least one).
// Errors: InvalidInput for an ordinal that is not there; DeviceError when a device fails to start.
std::unique_ptr<Backend> OpenBackend(std::span<const int> ordinals);

}  // namespace stoch::cuda
