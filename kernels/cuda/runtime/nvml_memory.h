// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU in use, as nvidia-smi shows it. Asking does not create a CUDA context on the GPU.
#pragma once

#include <cstdint>
#include <optional>

namespace stoch::cuda {

// Bytes of CUDA ordinal `ordinal` that all processes together use; nullopt if NVML (libnvidia-ml.so.1) is not
// available. NVML is loaded at first use.
std::optional<int64_t> UsedDeviceBytes(int ordinal);

}  // namespace stoch::cuda
