// SPDX-License-Identifier: Apache-2.0
// Where a model's tensors are: a Hugging Face folder of safetensors, GGUF files, or counter-based random numbers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "loader/config/decoder_config.h"
#include "loader/file.h"

namespace stoch {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::string file;         // "" for random
  std::string stored = {};  // how the file names its type, where that is none of DType: "Q4_K"
};

// The random stream of a tensor: FNV-1a (64 bits) of its name. Part of what random: models mean, so it never changes.
constexpr uint64_t TensorStream(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

// Read-only and immutable once open. Mapped files stay mapped while the store lives. Threads: safe.
class WeightStore {
 public:
  virtual ~WeightStore() = default;
  virtual const std::vector<TensorInfo>& tensors() const = 0;  // DecoderTensors of the config, in that order
  // A tied embedding answers to both its names, with the same memory and stream.
  virtual bool Has(std::string_view name) const = 0;
  // The tensor as a [rows, cols] matrix (rows = 1 for a vector of `cols`).
  // Errors: InvalidInput if it is missing, misshaped (expected, got) or of a type that holds no weights.
  virtual WeightSource Matrix(std::string_view name, int64_t rows, int64_t cols) const = 0;
  // Hint: the pages of this tensor will not be read again soon.
  virtual void Release(std::string_view name) const { (void)name; }
  // The files that are mapped, as they were when they were opened; none for random weights.
  virtual std::vector<FileStamp> files() const { return {}; }
};

struct ModelFiles {
  std::string name;              // for people: name of the folder or GGUF file, or random:SHAPE
  std::filesystem::path folder;  // or the GGUF file: where LoadTokenizer looks; empty for random
  DecoderConfig config;
  std::unique_ptr<WeightStore> weights;
};

// Opens `model`: a folder (config.json, model.safetensors or model.safetensors.index.json, optional
// generation_config.json), a GGUF file (NAME.gguf; of a split one the first part) or "random:SHAPE[:SEED]". Every file
// is checked (headers, bounds, overflow, shapes against the config, missing and unexpected tensors) before this returns;
// no weight is read or copied. rotary_emb.inv_freq buffers are ignored; a checkpoint with tied embeddings may store them
// under either name (both: model.embed_tokens.weight counts). Tensors of a GGUF file have the names of Hugging Face, and
// the numbers that their blocks stand for, made when they are read: no copy of a tensor is kept. Random linears and
// biases have stddev 0.02 (embedding and LM head too), norms are 1; SEED is 0 where it is not given.
// Errors: InvalidInput.
ModelFiles OpenModelFiles(const std::string& model);

// Random weights for any config, as of random:SHAPE:SEED.
ModelFiles RandomModelFiles(const std::string& name, const DecoderConfig& config, uint64_t seed);

// The weights of a folder, checked against a config that need not be its config.json's.
// Errors: InvalidInput.
std::unique_ptr<WeightStore> OpenCheckpointWeights(const std::filesystem::path& folder, const DecoderConfig& config);

// The rows [begin, begin + count) of a source. Requires: they are rows of it.
WeightSource SliceRows(const WeightSource& source, int64_t begin, int64_t count);

}  // namespace stoch
