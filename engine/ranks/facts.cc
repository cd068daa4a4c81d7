// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/facts.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>

#include "kernels/base/error.h"
#include "loader/file.h"
#include "loader/sha256.h"

namespace stoch {
namespace {

// The first 4 KiB of a tensor, or all that random ones and decoded blocks have in common: how they are made.
std::string SampleOf(const WeightSource& source) {
  constexpr int64_t kSampleBytes = 4096;
  if (source.host == nullptr) return std::to_string(source.seed) + " " + std::to_string(source.stream);
  const int64_t bytes = source.rows * source.cols * static_cast<int64_t>(DTypeSize(source.dtype));
  return Sha256Hex({static_cast<const char*>(source.host), static_cast<size_t>(std::min(bytes, kSampleBytes))});
}

// config.json, or the beginning of a GGUF file, which has the same facts.
std::string ConfigSample(const std::filesystem::path& folder) {
  constexpr int64_t kMostBytes = int64_t{1} << 20;
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return Sha256Hex(ReadSmallFile(folder / "config.json", kMostBytes));
  if (folder.empty()) return "";
  const MappedFile file(folder.string());
  return Sha256Hex({reinterpret_cast<const char*>(file.bytes().data()),
                    std::min(file.bytes().size(), static_cast<size_t>(kMostBytes))});
}

}  // namespace

std::vector<RankFact> FactsOf(const std::string& build, const ModelFiles& files) {
  Sha256 names, samples;
  for (const TensorInfo& info : files.weights->tensors()) {
    const bool is_vector = info.shape.size() == 1;
    const WeightSource source =
        files.weights->Matrix(info.name, is_vector ? 1 : info.shape[0], is_vector ? info.shape[0] : info.shape[1]);
    names.Add(info.name + " " + std::string(DTypeName(info.dtype)) + " " + info.stored);
    for (const int64_t size : info.shape) names.Add(" " + std::to_string(size));
    names.Add("\n");
    samples.Add(SampleOf(source) + "\n");
  }
  return {{"commit", build},
          {"config of the model", ConfigSample(files.folder)},
          {"names, types and shapes of the tensors", names.Hex()},
          {"weights (the beginning of every tensor)", samples.Hex()}};
}

void CheckFacts(std::span<const RankFact> here, std::span<const RankFact> of_rank_0) {
  const size_t count = std::min(here.size(), of_rank_0.size());
  for (size_t i = 0; i < count; ++i) {
    if (here[i] == of_rank_0[i]) continue;
    throw InvalidInput(here[i].name + ": " + here[i].value + ", rank 0 has " + of_rank_0[i].value);
  }
  if (here.size() != of_rank_0.size()) throw InvalidInput("rank 0 compares other facts");
}

}  // namespace stoch
