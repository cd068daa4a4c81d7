// SPDX-License-Identifier: Apache-2.0
// How a row goes from one kernel to the next on a GPU.
#pragma once

#include <cstdint>

namespace stoch {

enum class Handover : uint8_t {
  kMemory,  // in memory, complete at the end of the previous kernel
  // Word by word (kernels/cuda/handover/row_channel.h): the kernel polls the words of its input if the previous kernel
  // posts them, and posts its own output if attention of this pass did.
  kWords,
};

}  // namespace stoch
