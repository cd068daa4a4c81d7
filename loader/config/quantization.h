// SPDX-License-Identifier: Apache-2.0
// How a checkpoint's matrices are quantized, by its quantization_config.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stoch {

// Which matrices are quantized is seen from their tensors; lists of those that are not repeat it.
struct Quantization {
  enum class Method : uint8_t { kFp8, kCompressedFp8, kGptq, kAwq };
  Method method = Method::kFp8;
  // FP8: the out_features and in_features of a block that has one scale; 0: there are no blocks.
  std::array<int64_t, 2> block = {};
  // GPTQ and AWQ: the in_features that share a scale and a zero point; 0: all of them.
  int64_t group_size = 0;
  bool zeros_minus_one = false;  // GPTQ: what is stored is one less than the zero point
  bool needs_g_idx = false;      // GPTQ: groups follow the order of activations, so that g_idx must be there

  bool is_fp8() const { return method == Method::kFp8 || method == Method::kCompressedFp8; }
};

std::string_view MethodName(Quantization::Method method);  // "fp8", as quant_method has it

class ConfigKeys;
// Reads quantization_config (earlier: compression_config) of config.json; nullopt where there is none.
// Errors: InvalidInput naming the method and what is read instead: another method, number of bits, layout or format; a
//         key whose meaning is not known.
std::optional<Quantization> FindQuantization(const ConfigKeys& config);

// Reads it from the text of config.json, `file`. Errors: as FindQuantization, and text that is no JSON object.
std::optional<Quantization> ParseQuantization(std::string_view text, const std::string& file);

// Reads the text of quantize_config.json or quant_config.json, which GPTQ and AWQ wrote next to a config.json that says
// nothing of it. `method` is what the absence of quant_method means.
Quantization ParseQuantizationFile(std::string_view text, const std::string& file, Quantization::Method method);

}  // namespace stoch
