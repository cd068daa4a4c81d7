// SPDX-License-Identifier: Apache-2.0
// What the registry needs to know of the CUDA backend; includes no CUDA header.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "kernels/backend.h"

namespace stoch::cuda {

// Result of ProbeDevices: number of usable GPUs (compute capability 8.0 or newer), counted from ordinal 0 up to the
// first GPU that is too old; if there are none, the reason.
struct Probe {
  int devices = 0;
  std::string problem;         // the reason as one clause ("no usable NVIDIA driver was found"); "" when devices > 0
  bool hardware_seen = false;  // the driver or /dev shows an NVIDIA GPU, also when `problem` is set
};
Probe ProbeDevices();

// Opens the CUDA backend on the GPUs with the given ordinals (distinct, at least one).
// Errors: InvalidInput for an ordinal that ProbeDevices does not count; DeviceError when a device fails to start.
std::unique_ptr<Backend> OpenBackend(std::span<const int> ordinals);

}  // namespace stoch::cuda
