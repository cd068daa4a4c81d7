// SPDX-License-Identifier: Apache-2.0
// The safetensors files of a Hugging Face folder as one set of tensors.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "loader/checkpoint/safetensors.h"

namespace stoch {

// The weight_map of a model.safetensors.index.json: tensor names and the shard that holds each.
// Errors: InvalidInput naming `where`: another form, no entries, a shard that is not a plain file name.
std::map<std::string, std::string, std::less<>> ParseShardIndex(std::string_view text, const std::string& where);

struct CheckpointTensor {
  const SafetensorsFile* file = nullptr;
  const SafetensorsTensor* tensor = nullptr;
};

// Move-only. Threads: safe to read.
class Checkpoint {
 public:
  // Opens model.safetensors, else every shard that model.safetensors.index.json names, and checks all headers and that
  // index and shards agree on where each tensor is.
  // Errors: InvalidInput: neither file there, a broken file or index, a shard that is missing or not a plain file name.
  explicit Checkpoint(const std::filesystem::path& folder);

  const std::map<std::string, CheckpointTensor, std::less<>>& tensors() const { return tensors_; }
  std::vector<FileStamp> stamps() const;
  const CheckpointTensor* Find(std::string_view name) const;  // nullptr if there is none

 private:
  void OpenShards(const std::filesystem::path& index_file);

  std::vector<SafetensorsFile> files_;  // never grows once tensors_ points into it
  std::map<std::string, CheckpointTensor, std::less<>> tensors_;
};

// Whether a folder has it. True also for a broken or circular link, whose opening then says what is wrong with it.
bool IsThere(const std::filesystem::path& path);

// Buffers some exporters store; they repeat what the config says.
bool IsIgnoredTensor(std::string_view name);

}  // namespace stoch
