// SPDX-License-Identifier: Apache-2.0
// Element types of tensors and files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stoch {

enum class DType : uint8_t { kF32, kF16, kBF16, kU8, kI8, kI32, kI64 };

// Bytes of one element.
constexpr size_t DTypeSize(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kU8:
    case DType::kI8: return 1;
    case DType::kI64: return 8;
  }
  return 0;
}

// The name used in safetensors files and messages: "F32", "BF16", ...
constexpr std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "F32";
    case DType::kF16: return "F16";
    case DType::kBF16: return "BF16";
    case DType::kU8: return "U8";
    case DType::kI8: return "I8";
    case DType::kI32: return "I32";
    case DType::kI64: return "I64";
  }
  return "?";
}

}  // namespace stoch
