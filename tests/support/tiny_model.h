// SPDX-License-Identifier: Apache-2.0
// Random tiny checkpoints as Hugging Face folders: a Llama, or what a config says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "loader/config/decoder_config.h"

namespace stoch::test {

// hidden 64, intermediate 172, 2 layers, 4 heads, 2 KV heads, head_dim 16, vocab 96, context 128, untied: small
// enough for any test, with chunk tails (172 = 128 + 44).
DecoderConfig TinyLlamaConfig();
// TinyLlamaConfig with 5 experts in every layer, of which a token has 2.
DecoderConfig TinyMixtralConfig();

struct TinyModel {
  DecoderConfig config = TinyLlamaConfig();
  DType dtype = DType::kF32;  // or kF16, kBF16
  uint64_t seed = 1;
  float spread = 0.15f;          // linears and embedding are uniform in (-spread, spread), norms in 1 +- spread
  int shards = 1;                // > 1: model-0000i-of-0000n.safetensors and an index
  bool tied_as_lm_head = false;  // tied: store the embedding as lm_head.weight instead
};

// One tensor as it will be stored; `bytes` has the elements in the model's dtype.
struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

// The tensors of the model, values a function of (seed, tensor name, position) alone, rounded to the dtype.
std::vector<StoredTensor> TinyModelTensors(const TinyModel& model);

// The config as config.json text.
std::string ConfigJson(const DecoderConfig& config);

// One safetensors file.
void WriteTensors(const std::filesystem::path& path, const std::vector<StoredTensor>& tensors);

// Makes `folder` a checkpoint: config.json and one or more safetensors files. `edit`, where given, changes the tensors
// first (drops, adds, reshapes, plants a NaN).
void WriteTinyModel(const std::filesystem::path& folder, const TinyModel& model,
                    const std::function<void(std::vector<StoredTensor>&)>& edit = nullptr);

}  // namespace stoch::test
