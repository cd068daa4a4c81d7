// SPDX-License-Identifier: Apache-2.0
// Quantized checkpoints of random codes, and the numbers that they stand for by the formulas of their formats, one
// element at a time.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tests/support/tiny_model.h"

namespace stoch::test {

enum class QuantizedKind { kFp8Block, kFp8Row, kFp8Tensor, kGptq, kAwq };

struct QuantizedSample {
  QuantizedKind kind = QuantizedKind::kGptq;
  int64_t group = 16;          // GPTQ, AWQ; -1: all of a row
  bool shuffled = false;       // GPTQ: a g_idx in no order; without, there is none
  int zeros_added = 1;         // GPTQ: 0 is gptq_v2
  DType scales = DType::kF32;  // FP8
};

struct QuantizedModel {
  std::string config;                                 // config.json
  std::vector<StoredTensor> tensors;                  // of the file
  std::map<std::string, std::vector<float>> numbers;  // of the quantized matrices, by the name of the model's tensor
};

// A Llama of two layers: hidden 64, intermediate 176, 4 heads of 16, 2 KV heads, vocabulary 96, untied; blocks of FP8 are
// 48 x 40, so that the last ones are smaller.
QuantizedModel MakeQuantized(const QuantizedSample& sample);
void WriteQuantized(const std::filesystem::path& folder, const QuantizedModel& model);

}  // namespace stoch::test
