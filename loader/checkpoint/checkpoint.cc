// SPDX-License-Identifier: Apache-2.0
#include "loader/checkpoint/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/quote.h"

namespace stoch {
namespace {

constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr size_t kMaxShards = 4096;

using WeightMap = std::map<std::string, std::string, std::less<>>;  // tensor to shard

// A name that can only mean a file of the same folder, and that messages can show as it is.
bool IsPlainFileName(const std::string& name) {
  // Whether char has a sign differs from one processor to the next.
  const auto forbidden = [](unsigned char c) { return c == '/' || c == '\\' || c < 0x20 || c == 0x7f; };
  return !name.empty() && name != "." && name != ".." && std::none_of(name.begin(), name.end(), forbidden);
}

}  // namespace

bool IsThere(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::symlink_status(path, ignored).type() != std::filesystem::file_type::not_found;
}

WeightMap ParseShardIndex(std::string_view text, const std::string& where) {
  const nlohmann::json index = ParseBoundedJson(text, where);
  const auto found = index.is_object() ? index.find("weight_map") : index.end();
  if (found == index.end() || !found->is_object() || found->empty()) {
    throw InvalidInput(where + ": weight_map: expected an object of tensor names and file names, got " +
                       std::string(found == index.end() ? "nothing"
                                   : found->empty()     ? "an empty one"
                                                        : "another type"));
  }
  WeightMap weight_map;
  for (const auto& [name, file] : found->items()) {
    if (!file.is_string() || !IsPlainFileName(file.get_ref<const std::string&>())) {
      throw InvalidInput(
          where + ": weight_map: tensor " + Quoted(name) + ": expected the name of a file in the same folder, got " +
          (file.is_string() ? Quoted(file.get_ref<const std::string&>()) : std::string(JsonTypeName(file))));
    }
    weight_map.emplace(name, file.get<std::string>());
  }
  return weight_map;
}

Checkpoint::Checkpoint(const std::filesystem::path& folder) {
  const std::filesystem::path single = folder / "model.safetensors";
  const std::filesystem::path index = folder / "model.safetensors.index.json";
  if (IsThere(single)) {
    files_.emplace_back(single);
    for (const SafetensorsTensor& tensor : files_.front().tensors()) {
      tensors_.emplace(tensor.name, CheckpointTensor{&files_.front(), &tensor});
    }
  } else if (IsThere(index)) {
    OpenShards(index);
  } else {
    const bool pickled = IsThere(folder / "pytorch_model.bin") || IsThere(folder / "pytorch_model.bin.index.json");
    throw InvalidInput(
        folder.string() + ": expected model.safetensors or model.safetensors.index.json, got " +
        (pickled ? "pytorch_model.bin; to run, it would have to be converted to safetensors" : "neither"));
  }
}

void Checkpoint::OpenShards(const std::filesystem::path& index_file) {
  const std::string where = index_file.string();
  const WeightMap weight_map = ParseShardIndex(ReadSmallFile(index_file, kMaxIndexBytes), where);
  std::set<std::string> shards;
  for (const auto& [name, shard] : weight_map) shards.insert(shard);
  if (shards.size() > kMaxShards) {
    throw InvalidInput(where + ": expected at most " + std::to_string(kMaxShards) + " shards, got " +
                       std::to_string(shards.size()));
  }
  files_.reserve(shards.size());
  for (const std::string& shard : shards) {
    const std::filesystem::path path = index_file.parent_path() / shard;
    if (!IsThere(path)) throw InvalidInput(where + ": shard " + Quoted(shard) + " is missing");
    files_.emplace_back(path);
    const SafetensorsFile& file = files_.back();
    for (const SafetensorsTensor& tensor : file.tensors()) {
      const auto mapped = weight_map.find(tensor.name);
      if (mapped != weight_map.end() && mapped->second == shard) {
        tensors_.emplace(tensor.name, CheckpointTensor{&file, &tensor});
      } else if (!IsIgnoredTensor(tensor.name)) {
        throw InvalidInput(path.string() + ": tensor " + Quoted(tensor.name) + ": expected in " +
                           (mapped == weight_map.end() ? "no shard" : Quoted(mapped->second)) +
                           " by the index, got it here");
      }
    }
  }
  for (const auto& [name, shard] : weight_map) {
    if (!tensors_.contains(name)) {
      throw InvalidInput((index_file.parent_path() / shard).string() + ": tensor " + Quoted(name) +
                         " is missing, the index expects it here");
    }
  }
}

std::vector<FileStamp> Checkpoint::stamps() const {
  std::vector<FileStamp> stamps;
  for (const SafetensorsFile& file : files_) stamps.push_back(file.stamp());
  return stamps;
}

const CheckpointTensor* Checkpoint::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

bool IsIgnoredTensor(std::string_view name) { return name.ends_with("rotary_emb.inv_freq"); }

}  // namespace stoch
