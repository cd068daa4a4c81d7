// SPDX-License-Identifier: Apache-2.0
#include "loader/checkpoint/gguf_store.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "kernels/base/error.h"
#include "loader/checkpoint/gguf/config.h"
#include "loader/checkpoint/gguf/tensor_names.h"
#include "loader/checkpoint/indexed_store.h"
#include "loader/checkpoint/rotary_rows.h"
#include "loader/checkpoint/safetensors.h"
#include "loader/config/decoder_tensors.h"
#include "loader/quote.h"

namespace stoch {
namespace {

// What the type of a tensor is called where the engine can use its elements as they are.
std::optional<DType> PlainType(gguf::Type type) {
  switch (type) {
    case gguf::Type::kF32: return DType::kF32;
    case gguf::Type::kF16: return DType::kF16;
    case gguf::Type::kBF16: return DType::kBF16;
    case gguf::Type::kQ4_0:
    case gguf::Type::kQ4_1:
    case gguf::Type::kQ5_0:
    case gguf::Type::kQ5_1:
    case gguf::Type::kQ8_0:
    case gguf::Type::kQ4_K:
    case gguf::Type::kQ5_K:
    case gguf::Type::kQ6_K:
    case gguf::Type::kQ2_K:
    case gguf::Type::kQ3_K:
    case gguf::Type::kIQ4_NL:
    case gguf::Type::kIQ4_XS:
    case gguf::Type::kMXFP4: break;
  }
  return std::nullopt;
}

// The numbers of one tensor of the model: bytes of the file, and what reads them where they are no plain numbers.
struct Stored {
  const gguf::Part* part = nullptr;
  std::span<const std::byte> bytes;
  std::optional<DType> plain;
  const WeightDecoder* decoder = nullptr;

  WeightSource Source() const {
    WeightSource source;
    source.decoder = decoder;
    if (source.decoder == nullptr) {
      source.host = bytes.data();
      source.dtype = *plain;
    }
    return source;
  }
};

// Files from before April 2024 have a tensor for each expert; later ones have one for all experts of a layer.
bool HasOwnExperts(const gguf::Model& model) {
  return std::none_of(model.tensors().begin(), model.tensors().end(),
                      [](const auto& named) { return named.first.find("_exps.") != std::string::npos; });
}

class GgufStore final : public IndexedStore {
 public:
  GgufStore(gguf::Model model, const DecoderConfig& config, const std::filesystem::path& path)
      : IndexedStore(path.string()),
        path_(path),
        model_(std::move(model)),
        permutes_(gguf::PermutesHeads(model_)),
        has_own_experts_(HasOwnExperts(model_)) {
    std::set<std::string, std::less<>> used;
    for (const DecoderTensor& expected : DecoderTensors(config)) AddTensor(expected, config, &used);
    if (config.tie_word_embeddings) AddAlias(kLmHeadName, kEmbeddingName);
    for (const auto& [name, tensor] : model_.tensors()) {
      if (used.contains(name) || gguf::IsIgnored(name)) continue;
      throw InvalidInput(tensor.part->path.string() + ": tensor " + Quoted(name) +
                         ": expected only the tensors of the model that the metadata describe, got this one");
    }
  }

  std::vector<FileStamp> files() const override { return model_.stamps(); }

  void Release(std::string_view name) const override {
    const Stored& stored = stored_[Index(name)];
    stored.part->file.Release(static_cast<size_t>(stored.bytes.data() - stored.part->file.bytes().data()),
                              stored.bytes.size());
  }

 private:
  WeightSource Source(size_t i) const override { return stored_[i].Source(); }

  const gguf::StoredTensor& Find(const DecoderTensor& expected, const gguf::TensorName& name) const {
    const gguf::StoredTensor* found = name.name.empty() ? nullptr : model_.Find(name.name);
    if (found != nullptr) return *found;
    throw InvalidInput(path_.string() + ": tensor " + Quoted(name.name.empty() ? expected.name : name.name) +
                       " is missing");
  }

  // Experts of one matrix are of one type, as llama.cpp makes one tensor of theirs.
  void CheckExpertType(const std::string& all_experts, const gguf::StoredTensor& own) {
    const gguf::Type type = own.tensor->type;
    const gguf::Type first = expert_types_.emplace(all_experts, type).first->second;
    if (type == first) return;
    throw InvalidInput(own.part->path.string() + ": tensor " + Quoted(own.tensor->name) + ": expected type " +
                       std::string(gguf::InfoOf(first).name) + ", as expert 0 has, got " +
                       std::string(gguf::InfoOf(type).name));
  }

  void AddTensor(const DecoderTensor& expected, const DecoderConfig& config, std::set<std::string, std::less<>>* used) {
    const bool is_fused = !expected.fused.empty();
    gguf::TensorName name =
        gguf::NameInGguf(is_fused ? expected.fused : expected.name, HasOutNorms(*config.architecture));
    const std::string all_experts = name.name;
    const bool is_own = has_own_experts_ && name.expert >= 0;
    if (is_own) name = {name.own};
    const gguf::StoredTensor& found = Find(expected, name);
    if (is_own) CheckExpertType(all_experts, found);
    used->insert(name.name);
    const gguf::Tensor& tensor = *found.tensor;
    std::vector<int64_t> shape = expected.shape;
    if (is_fused) shape.front() = expected.fused_rows;
    if (name.expert >= 0) shape.insert(shape.begin(), config.num_experts);
    if (tensor.shape != shape) {
      throw InvalidInput(found.part->path.string() + ": tensor " + Quoted(tensor.name) + ": expected shape " +
                         ShapeText(shape) + " by the metadata, got " + ShapeText(tensor.shape));
    }
    Stored stored{found.part, found.data(), PlainType(tensor.type), nullptr};
    if (name.expert >= 0) {
      const size_t size = stored.bytes.size() / static_cast<size_t>(shape.front());
      stored.bytes = stored.bytes.subspan(size * static_cast<size_t>(name.expert), size);
    }
    if (is_fused) {
      const size_t row = stored.bytes.size() / static_cast<size_t>(expected.fused_rows);
      stored.bytes = stored.bytes.subspan(row * static_cast<size_t>(expected.fused_first),
                                          row * static_cast<size_t>(expected.shape.front()));
    }
    using Heads = gguf::TensorName::Heads;
    const bool permuted = permutes_ && name.heads != Heads::kNone;
    const int64_t heads = name.heads == Heads::kKey ? config.num_key_value_heads : config.num_attention_heads;
    if (permuted || !stored.plain) {
      const int64_t rows = expected.shape.size() == 2 ? expected.shape.front() : 1;
      stored.decoder =
          &decoders_.emplace_back(tensor.type, stored.bytes.data(), rows, expected.shape.back(), permuted ? heads : 0);
    }
    if (expected.is_rotated_part) {
      WeightSource source = stored.Source();
      source.rows = expected.shape.front();
      source.cols = expected.shape.back();
      stored.decoder = &rotary_rows_.emplace_back(source, config.head_dim, config.RotaryDim());
    }
    Add({expected.name, stored.decoder != nullptr ? DType::kF32 : *stored.plain, expected.shape,
         found.part->path.string(), std::string(gguf::InfoOf(tensor.type).name)});
    stored_.push_back(stored);
  }

  std::filesystem::path path_;
  gguf::Model model_;
  bool permutes_;
  bool has_own_experts_;
  std::map<std::string, gguf::Type> expert_types_;  // of those, by the name that a tensor of all has
  std::deque<gguf::RowDecoder> decoders_;           // their addresses stay
  std::deque<RotaryRows> rotary_rows_;
  std::vector<Stored> stored_;  // of tensors()
};

// The metadata in config.json's words are checked by the parser of config.json; its errors name the GGUF file.
DecoderConfig ConfigOf(const gguf::Model& model, const std::filesystem::path& path) {
  const std::string where = path.string();
  const std::string file = where + "/config.json";
  try {
    return ParseDecoderConfig(gguf::ConfigJson(model), "", where);
  } catch (const InvalidInput& error) {
    const std::string what = error.what();
    if (!what.starts_with(file)) throw;
    throw InvalidInput(where + ": metadata as config.json" + what.substr(file.size()));
  }
}

}  // namespace

ModelFiles OpenGguf(const std::filesystem::path& path) {
  gguf::Model model(path);
  DecoderConfig config = ConfigOf(model, path);
  auto store = std::make_unique<GgufStore>(std::move(model), config, path);
  return {path.filename().string(), path, std::move(config), std::move(store)};
}

}  // namespace stoch
