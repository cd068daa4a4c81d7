// SPDX-License-Identifier: Apache-2.0
// GGUF files made value by value, and a model that has every type.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "loader/checkpoint/weight_store.h"

namespace stoch::test {

// The bytes of a file, in the order of the calls. Nothing is checked, so that it can write broken ones too.
class GgufBuilder {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;

  // Values by their type: 4 u32, 5 i32, 6 f32, 7 boolean, 8 string.
  GgufBuilder& U32(std::string_view key, uint32_t value);
  GgufBuilder& F32(std::string_view key, float value);
  GgufBuilder& Bool(std::string_view key, bool value);
  GgufBuilder& String(std::string_view key, std::string_view value);
  GgufBuilder& Strings(std::string_view key, const std::vector<std::string>& values);
  GgufBuilder& F32s(std::string_view key, const std::vector<float>& values);
  GgufBuilder& I32s(std::string_view key, const std::vector<int32_t>& values);
  GgufBuilder& Raw(std::string_view key, uint32_t type, std::string_view bytes);
  void Remove(std::string_view key);

  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;  // columns first, as in the file
    uint32_t type = 0;
    std::string data;
    int64_t offset = -1;  // -1: after the one before it
  };
  std::vector<Tensor> tensors;
  Tensor& Find(std::string_view name);

  std::string Bytes() const;

 private:
  std::vector<std::pair<std::string, std::string>> values_;  // key; type and value
};

// Blocks of every type and their floats (tests/golden/gguf_blocks.json): two rows of 256.
struct GgufBlocks {
  uint32_t number = 0;
  std::string blocks[2];
  std::vector<float> values[2];
};
std::map<std::string, GgufBlocks> ReadGgufBlocks();

// A Llama of two layers: hidden 256, 2 heads of 128, intermediate 256, vocabulary 8, untied; row r of every matrix is row
// r % 2 of the blocks of its type (SampleType). The tokenizer is a SentencePiece one of 8 tokens.
GgufBuilder SampleGguf();
std::string_view SampleType(std::string_view tensor);

// What llama.cpp's converter makes of a folder: its keys, experts of a layer in one tensor, rows of q and k (Llama and
// Mistral) as its Llama has them. Without a tokenizer. Requires: rope_scaling is not set.
GgufBuilder GgufOf(const ModelFiles& folder);

// `file` with a tensor for each expert, as llama.cpp's files of before April 2024 have: "blk.0.ffn_gate_exps.weight" becomes
// "blk.0.ffn_gate.0.weight" and so on.
GgufBuilder WithOwnExperts(const GgufBuilder& file);

}  // namespace stoch::test
