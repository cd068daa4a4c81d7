// SPDX-License-Identifier: Apache-2.0
#include "loader/checkpoint/weight_store.h"

#include <charconv>
#include <map>
#include <system_error>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "loader/checkpoint/checkpoint.h"
#include "loader/checkpoint/gguf_store.h"
#include "loader/checkpoint/indexed_store.h"
#include "loader/config/decoder_tensors.h"
#include "loader/quote.h"

namespace stoch {
namespace {

constexpr int64_t kMaxConfigBytes = 4 << 20;
constexpr std::string_view kRandomPrefix = "random:";
constexpr float kRandomStddev = 0.02f;

class CheckpointStore final : public IndexedStore {
 public:
  CheckpointStore(const std::filesystem::path& folder, const DecoderConfig& config)
      : IndexedStore(folder.string()), title_(config.architecture->title), checkpoint_(folder) {
    std::vector<std::string> missing;
    for (const DecoderTensor& expected : DecoderTensors(config)) {
      std::string name = expected.name;
      if (config.tie_word_embeddings && name == kEmbeddingName && checkpoint_.Find(name) == nullptr) {
        name = kLmHeadName;
      }
      if (const CheckpointTensor* found = checkpoint_.Find(name)) {
        CheckTensor(*found, expected.shape);
        Add({name, found->tensor->dtype, found->tensor->shape, found->file->path().string()});
        stored_.push_back(*found);
      } else {
        missing.push_back(expected.name);
      }
    }
    if (!missing.empty()) {
      const size_t more = missing.size() - 1;
      throw InvalidInput(
          folder.string() + ": tensor " + Quoted(missing.front()) + " is missing" +
          (more > 0 ? " (and " + std::to_string(more) + " more)" : "") +
          (missing.front() == kLmHeadName ? "; a checkpoint without it says tie_word_embeddings: true" : ""));
    }
    if (config.tie_word_embeddings) AddTiedName({config.vocab_size, config.hidden_size});
    CheckNothingElse();
  }

  std::vector<FileStamp> files() const override { return checkpoint_.stamps(); }

  void Release(std::string_view name) const override {
    const CheckpointTensor& stored = stored_[Index(name)];
    stored.file->Release(*stored.tensor);
  }

 private:
  WeightSource Source(size_t i) const override {
    WeightSource source;
    source.host = stored_[i].file->Data(*stored_[i].tensor).data();
    source.dtype = stored_[i].tensor->dtype;
    return source;
  }

  static void CheckTensor(const CheckpointTensor& found, const std::vector<int64_t>& shape) {
    const std::string place = found.file->path().string() + ": tensor " + Quoted(found.tensor->name) + ": expected ";
    if (found.tensor->shape != shape) {
      throw InvalidInput(place + "shape " + ShapeText(shape) + " by config.json, got " +
                         ShapeText(found.tensor->shape));
    }
    const DType dtype = found.tensor->dtype;
    const bool other = !found.tensor->other_dtype.empty();
    if (other || (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16)) {
      throw InvalidInput(place + "F32, F16 or BF16 weights, got " + std::string(found.tensor->dtype_name()) +
                         (other ? "; to run, the checkpoint would have to be converted to one of them" : ""));
    }
  }

  // Either name answers for the one tensor. A second copy is checked and then not used, as in transformers.
  void AddTiedName(const std::vector<int64_t>& shape) {
    const CheckpointTensor* second = Has(kEmbeddingName) ? checkpoint_.Find(kLmHeadName) : nullptr;
    if (second != nullptr) CheckTensor(*second, shape);
    if (Has(kEmbeddingName)) {
      AddAlias(kLmHeadName, kEmbeddingName);
    } else {
      AddAlias(kEmbeddingName, kLmHeadName);
    }
  }

  void CheckNothingElse() const {
    for (const auto& [name, found] : checkpoint_.tensors()) {
      if (!Has(name) && !IsIgnoredTensor(name)) {
        throw InvalidInput(found.file->path().string() + ": tensor " + Quoted(name) +
                           ": expected only the tensors of a " + title_ +
                           " as config.json describes it, got this one; to run, a row of "
                           "loader/config/architecture.cc would have to name it");
      }
    }
  }

  std::string title_;
  Checkpoint checkpoint_;
  std::vector<CheckpointTensor> stored_;  // of tensors()
};

class RandomStore final : public IndexedStore {
 public:
  RandomStore(const std::string& model, const DecoderConfig& config, uint64_t seed) : IndexedStore(model), seed_(seed) {
    // RandomWeight rounds to F16, so that is what these tensors would be in a file.
    for (DecoderTensor& tensor : DecoderTensors(config)) Add({tensor.name, DType::kF16, std::move(tensor.shape), ""});
    if (config.tie_word_embeddings) AddAlias(kLmHeadName, kEmbeddingName);
  }

 private:
  WeightSource Source(size_t i) const override {
    const TensorInfo& info = tensors()[i];
    const bool norm = info.shape.size() == 1 && !info.name.ends_with(".bias");
    WeightSource source;
    source.seed = seed_;
    source.stream = TensorStream(info.name);
    source.stddev = norm ? 0.0f : kRandomStddev;
    source.constant = norm ? 1.0f : 0.0f;
    return source;
  }

  uint64_t seed_;
};

ModelFiles OpenRandom(const std::string& model) {
  std::string_view shape = std::string_view{model}.substr(kRandomPrefix.size());
  uint64_t seed = 0;
  if (const size_t colon = shape.find(':'); colon != std::string_view::npos) {
    const std::string_view text = shape.substr(colon + 1);
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, seed);
    if (error != std::errc() || stop != end) {
      throw InvalidInput(Quoted(model) + ": seed: expected an integer from 0 to 2^64 - 1, got " + Quoted(text));
    }
    shape = shape.substr(0, colon);
  }
  const DecoderConfig config = NamedDecoderConfig(shape);
  return RandomModelFiles(model, config, seed);
}

// ".../models--org--name/snapshots/REVISION" of the Hugging Face cache is org/name; other folders have their own.
std::string ModelName(const std::filesystem::path& folder) {
  constexpr std::string_view kPrefix = "models--";
  const std::string repository = folder.parent_path().parent_path().filename().string();
  const size_t parted = repository.find("--", kPrefix.size());
  if (folder.parent_path().filename() != "snapshots" || !repository.starts_with(kPrefix)) {
    return folder.filename().string();
  }
  std::string name = repository.substr(kPrefix.size());
  if (parted != std::string::npos) name.replace(parted - kPrefix.size(), 2, "/");
  return name;
}

ModelFiles OpenFolder(const std::filesystem::path& folder) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(folder, error);
  if (!std::filesystem::is_directory(status)) {
    const bool missing = status.type() == std::filesystem::file_type::not_found;
    throw InvalidInput(folder.string() + ": expected a model folder, a .gguf file or random:SHAPE[:SEED], got " +
                       (missing ? "nothing there"
                        : error ? error.message()
                                : "a file"));
  }
  const std::string config_text = ReadSmallFile(folder / "config.json", kMaxConfigBytes);
  const std::filesystem::path generation = folder / "generation_config.json";
  const bool has_generation =
      std::filesystem::symlink_status(generation, error).type() != std::filesystem::file_type::not_found;
  const std::string generation_text = has_generation ? ReadSmallFile(generation, kMaxConfigBytes) : "";
  const DecoderConfig config = ParseDecoderConfig(config_text, generation_text, folder.string());
  const std::string name = ModelName(std::filesystem::weakly_canonical(folder, error));
  return {name, folder, config, OpenCheckpointWeights(folder, config)};
}

}  // namespace

ModelFiles RandomModelFiles(const std::string& name, const DecoderConfig& config, uint64_t seed) {
  return {name, {}, config, std::make_unique<RandomStore>(name, config, seed)};
}

std::unique_ptr<WeightStore> OpenCheckpointWeights(const std::filesystem::path& folder, const DecoderConfig& config) {
  return std::make_unique<CheckpointStore>(folder, config);
}

ModelFiles OpenModelFiles(const std::string& model) {
  if (model.starts_with(kRandomPrefix)) return OpenRandom(model);
  std::error_code ignored;
  const bool gguf = gguf::IsGgufPath(model) && !std::filesystem::is_directory(model, ignored);
  return gguf ? OpenGguf(model) : OpenFolder(model);
}

WeightSource SliceRows(const WeightSource& source, int64_t begin, int64_t count) {
  STOCH_CHECK(begin >= 0 && count >= 0 && begin <= source.rows - count);
  WeightSource slice = source;
  slice.rows = count;
  slice.first += begin * source.cols;
  if (source.host != nullptr) {
    slice.first = 0;
    slice.host =
        static_cast<const char*>(source.host) + begin * source.cols * static_cast<int64_t>(DTypeSize(source.dtype));
  }
  return slice;
}

}  // namespace stoch
