// SPDX-License-Identifier: Apache-2.0
// How much memory of a GPU is in use, as nvidia-smi shows it: asked for without making a context there.
#pragma once

#include <cstdint>
#include <optional>

namespace stoch::cuda {

// Bytes of device `ordinal` that all processes use together; nothing where NVML (libnvidia-ml.so.1) is not there. It is
// loaded at first use.
std::optional<int64_t> UsedDeviceBytes(int ordinal);

}  // namespace stoch::cuda
