// SPDX-License-Identifier: Apache-2.0
// Decodes quantized weights on the device, so that only codes, scales and zero points go over PCIe.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Rows of WeightCodes in device memory.
struct CodeSlab {
  const float* scales = nullptr;    // [rows][codes.blocks()]
  const float* zeros = nullptr;     // zero points, [rows][codes.blocks()]
  const uint32_t* words = nullptr;  // kE4m3: bytes [rows][cols]; kNibbles: [cols / 8][rows]
  int64_t rows = 0;
};

// Writes the numbers [rows][cols] of a slab.
// Bits: those of WeightDecoder::Decode, except for NaNs, which loading rejects.
void LaunchDecodeCodes(DeviceContext& ctx, const WeightCodes& codes, const CodeSlab& slab, float* out);

}  // namespace stoch::cuda
