// SPDX-License-Identifier: Apache-2.0
// Element types of GGUF tensors, and their blocks as floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace stoch::gguf {

// Those that are read, by their numbers in files.
enum class Type : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39,
};

struct TypeInfo {
  Type type;
  std::string_view name;
  int64_t block_elements;
  int64_t block_bytes;
};

// nullptr for a number that is none of them.
const TypeInfo* FindType(uint32_t number);
const TypeInfo& InfoOf(Type type);

// What a file's number means, also where it is not read: "Q2_K", "type 99".
std::string TypeName(uint32_t number);
// "F32, F16, ..." for messages.
std::string ReadTypeNames();

// The numbers that blocks stand for.
// Requires: count is a multiple of the type's block_elements; blocks may be unaligned.
// Bits:     those of the gguf Python package and of llama.cpp: one F32 rounding per operation, in their order.
// Source:   ggml-org/ggml, src/ggml-quants.c (dequantize_row_*).
void Dequantize(Type type, const std::byte* blocks, int64_t count, float* out);

}  // namespace stoch::gguf
