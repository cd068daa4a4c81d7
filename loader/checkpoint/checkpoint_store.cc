// SPDX-License-Identifier: Apache-2.0
#include "loader/checkpoint/checkpoint_store.h"

#include <optional>
#include <set>
#include <utility>

#include "kernels/base/error.h"
#include "loader/checkpoint/checkpoint.h"
#include "loader/checkpoint/indexed_store.h"
#include "loader/checkpoint/quantized/decoders.h"
#include "loader/checkpoint/quantized_matrix.h"
#include "loader/checkpoint/rotary_rows.h"
#include "loader/config/decoder_tensors.h"
#include "loader/quote.h"

namespace stoch {
namespace {

constexpr int64_t kMaxConfigBytes = 4 << 20;
constexpr std::string_view kWeight = ".weight";

// Where a tensor of the model is in the checkpoint: rows of a matrix from `first_row` on, or all of it.
struct MatrixPlace {
  std::string name;
  std::vector<int64_t> shape;  // of all that is there
  int64_t first_row = 0;
};

// 1 + w of norms that multiply by that, rounded once.
class NormPlusOne final : public WeightDecoder {
 public:
  // Requires: a vector in F32, F16 or BF16 that outlives this.
  explicit NormPlusOne(const WeightSource& source)
      : stored_{static_cast<const std::byte*>(source.host), source.dtype} {}
  void Decode(int64_t first, int64_t count, float* out) const override {
    for (int64_t i = 0; i < count; ++i) out[i] = 1.0f + stored_[first + i];
  }
  int64_t StoredBytes(int64_t count) const override { return count * static_cast<int64_t>(DTypeSize(stored_.dtype)); }

 private:
  quantized::StoredFloats stored_;
};

// Where the numbers of a tensor of the model are: in one of the checkpoint, or made from several.
struct Stored {
  std::vector<const CheckpointTensor*> tensors;
  std::unique_ptr<WeightDecoder> decoder;
  int64_t first = 0;                              // element there
  bool is_last = true;                            // nothing follows that tensors have, too
  std::unique_ptr<WeightDecoder> made = nullptr;  // in place of the numbers as they are stored

  WeightSource Source() const {
    WeightSource source;
    source.decoder = decoder.get();
    if (source.decoder != nullptr) {
      source.first = first;
      return source;
    }
    const CheckpointTensor& found = *tensors.front();
    source.dtype = found.tensor->dtype;
    source.host = found.file->Data(*found.tensor).data() + first * static_cast<int64_t>(DTypeSize(source.dtype));
    return source;
  }
};

class CheckpointStore final : public IndexedStore {
 public:
  CheckpointStore(const std::filesystem::path& folder, const DecoderConfig& config,
                  const std::optional<Quantization>& quantization)
      : IndexedStore(folder.string()),
        title_(config.architecture->title),
        head_dim_(config.head_dim),
        rotary_dim_(config.RotaryDim()),
        checkpoint_(folder),
        quantization_(quantization) {
    std::vector<std::string> missing;
    for (const DecoderTensor& expected : DecoderTensors(config)) {
      DecoderTensor tensor = expected;
      if (config.tie_word_embeddings && tensor.name == kEmbeddingName && checkpoint_.Find(tensor.name) == nullptr) {
        tensor.name = kLmHeadName;
      }
      if (!AddFrom(tensor, {tensor.name, tensor.shape}) && !AddFused(tensor)) missing.push_back(MissingName(expected));
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
    const Stored& stored = stored_[Index(name)];
    if (!stored.is_last) return;
    for (const CheckpointTensor* tensor : stored.tensors) tensor->file->Release(*tensor->tensor);
  }

 private:
  WeightSource Source(size_t i) const override {
    const Stored& stored = stored_[i];
    if (stored.made == nullptr) return stored.Source();
    WeightSource source;
    source.decoder = stored.made.get();
    return source;
  }

  static bool IsPlain(const SafetensorsTensor& tensor) {
    return tensor.other_dtype.empty() &&
           (tensor.dtype == DType::kF32 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kBF16);
  }

  static void CheckTensor(const CheckpointTensor& found, const std::vector<int64_t>& shape) {
    const std::string place = found.file->path().string() + ": tensor " + Quoted(found.tensor->name) + ": expected ";
    if (found.tensor->shape != shape) {
      throw InvalidInput(place + "shape " + ShapeText(shape) + " by config.json, got " +
                         ShapeText(found.tensor->shape));
    }
    if (!IsPlain(*found.tensor)) {
      throw InvalidInput(place + "F32, F16 or BF16 weights, got " + std::string(found.tensor->dtype_name()) +
                         (found.tensor->other_dtype.empty()
                              ? ""
                              : "; to run, the checkpoint would have to be converted to one of them"));
    }
  }

  bool AddFrom(const DecoderTensor& tensor, const MatrixPlace& place) {
    return AddQuantized(tensor, place) || AddPlain(tensor, place);
  }
  bool AddFused(const DecoderTensor& tensor) {
    return !tensor.fused.empty() &&
           AddFrom(tensor, {tensor.fused, {tensor.fused_rows, tensor.shape.back()}, tensor.fused_first});
  }

  bool AddPlain(const DecoderTensor& tensor, const MatrixPlace& place) {
    const CheckpointTensor* found = checkpoint_.Find(place.name);
    if (found == nullptr) return false;
    CheckTensor(*found, place.shape);
    used_.insert(place.name);
    AddStored(tensor, place, {tensor.name, found->tensor->dtype, tensor.shape, found->file->path().string()},
              {{found}, nullptr});
    return true;
  }

  // A matrix that is there in plain numbers is one that was left as it was.
  bool AddQuantized(const DecoderTensor& tensor, const MatrixPlace& place) {
    if (!quantization_ || place.shape.size() != 2) return false;
    const CheckpointTensor* plain = checkpoint_.Find(place.name);
    if (plain != nullptr && IsPlain(*plain->tensor)) return false;
    quantized::Matrix matrix =
        quantized::OpenMatrix(checkpoint_, *quantization_, ModuleOf(place.name), place.shape[0], place.shape[1]);
    if (matrix.decoder == nullptr) return false;
    for (const CheckpointTensor* part : matrix.tensors) used_.insert(part->tensor->name);
    const std::string file = matrix.tensors.front()->file->path().string();
    AddStored(tensor, place, {tensor.name, DType::kF32, tensor.shape, file, std::move(matrix.stored)},
              {std::move(matrix.tensors), std::move(matrix.decoder)});
    return true;
  }

  void AddStored(const DecoderTensor& tensor, const MatrixPlace& place, TensorInfo info, Stored stored) {
    stored.first = place.first_row * tensor.shape.back();
    stored.is_last = tensor.shape.size() < 2 || place.first_row + tensor.shape.front() == place.shape.front();
    if (tensor.is_rotated_part || tensor.adds_one) {
      WeightSource source = stored.Source();
      source.rows = tensor.is_rotated_part ? tensor.shape.front() : 1;
      source.cols = tensor.shape.back();
      if (tensor.adds_one) {
        stored.made = std::make_unique<NormPlusOne>(source);
      } else {
        stored.made = std::make_unique<RotaryRows>(source, head_dim_, rotary_dim_);
      }
      if (info.stored.empty()) info.stored = std::string(DTypeName(info.dtype));
      info.dtype = DType::kF32;
    }
    Add(std::move(info));
    stored_.push_back(std::move(stored));
  }

  static std::string ModuleOf(const std::string& name) { return name.substr(0, name.size() - kWeight.size()); }

  // The name in the error about a tensor that is not there: for a matrix of a block, that of the method.
  std::string MissingName(const DecoderTensor& expected) const {
    const bool quantized =
        quantization_ && expected.shape.size() == 2 && expected.name != kEmbeddingName && expected.name != kLmHeadName;
    const std::string& name = expected.fused.empty() ? expected.name : expected.fused;
    return quantized ? quantized::MainTensor(*quantization_, ModuleOf(name)) : name;
  }

  // Either name answers for the one tensor. A second copy is checked and then not used, as in transformers.
  void AddTiedName(const std::vector<int64_t>& shape) {
    const CheckpointTensor* second = Has(kEmbeddingName) ? checkpoint_.Find(kLmHeadName) : nullptr;
    if (second != nullptr) CheckTensor(*second, shape);
    if (Has(kEmbeddingName)) {
      AddAlias(kLmHeadName, kEmbeddingName);
      used_.insert(std::string(kLmHeadName));
    } else {
      AddAlias(kEmbeddingName, kLmHeadName);
    }
  }

  void CheckNothingElse() const {
    for (const auto& [name, found] : checkpoint_.tensors()) {
      if (used_.contains(name) || IsIgnoredTensor(name)) continue;
      if (quantization_ && quantized::IsIgnored(checkpoint_, *quantization_, name)) continue;
      throw InvalidInput(found.file->path().string() + ": tensor " + Quoted(name) +
                         ": expected only the tensors of a " + title_ +
                         " as config.json describes it, got this one; to run, a row of "
                         "loader/config/architecture.cc would have to name it");
    }
  }

  std::string title_;
  int64_t head_dim_;
  int64_t rotary_dim_;
  Checkpoint checkpoint_;
  std::optional<Quantization> quantization_;
  std::vector<Stored> stored_;               // of tensors()
  std::set<std::string, std::less<>> used_;  // of the checkpoint's
};

// The file that GPTQ and AWQ wrote before config.json had a place for it.
std::optional<Quantization> QuantizationBeside(const std::filesystem::path& folder) {
  using Method = Quantization::Method;
  for (const auto& [file, method] :
       {std::pair{"quantize_config.json", Method::kGptq}, {"quant_config.json", Method::kAwq}}) {
    const std::filesystem::path path = folder / file;
    if (IsThere(path)) return ParseQuantizationFile(ReadSmallFile(path, kMaxConfigBytes), path.string(), method);
  }
  return std::nullopt;
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

}  // namespace

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
  const std::string generation_text = IsThere(generation) ? ReadSmallFile(generation, kMaxConfigBytes) : "";
  const DecoderConfig config = ParseDecoderConfig(config_text, generation_text, folder.string());
  std::optional<Quantization> quantization = ParseQuantization(config_text, (folder / "config.json").string());
  if (!quantization) quantization = QuantizationBeside(folder);
  const std::string name = ModelName(std::filesystem::weakly_canonical(folder, error));
  return {name, folder, config, std::make_unique<CheckpointStore>(folder, config, quantization)};
}

std::unique_ptr<WeightStore> OpenCheckpointWeights(const std::filesystem::path& folder, const DecoderConfig& config) {
  return std::make_unique<CheckpointStore>(folder, config, std::nullopt);
}

}  // namespace stoch
