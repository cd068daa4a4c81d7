// SPDX-License-Identifier: Apache-2.0
#include "tests/loader/gguf_samples.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "loader/checkpoint/gguf/tensor_names.h"
#include "loader/checkpoint/safetensors.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

template <typename T>
std::string Little(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

std::string Text(std::string_view text) { return Little<uint64_t>(text.size()) + std::string(text); }

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

constexpr std::pair<std::string_view, std::string_view> kSampleTypes[] = {
    {"token_embd.weight", "Q5_1"},      {"blk.0.attn_q.weight", "Q4_K"},      {"blk.0.attn_k.weight", "Q5_K"},
    {"blk.0.attn_v.weight", "Q6_K"},    {"blk.0.attn_output.weight", "Q8_0"}, {"blk.0.ffn_gate.weight", "Q4_0"},
    {"blk.0.ffn_up.weight", "Q4_1"},    {"blk.0.ffn_down.weight", "Q5_0"},    {"output.weight", "BF16"},
    {"blk.0.attn_norm.weight", "F32"},  {"blk.0.ffn_norm.weight", "F32"},     {"blk.1.attn_q.weight", "Q2_K"},
    {"blk.1.attn_k.weight", "IQ4_XS"},  {"blk.1.attn_v.weight", "Q3_K"},      {"blk.1.attn_output.weight", "IQ4_NL"},
    {"blk.1.ffn_gate.weight", "MXFP4"}, {"blk.1.ffn_up.weight", "Q2_K"},      {"blk.1.ffn_down.weight", "Q3_K"},
    {"blk.1.attn_norm.weight", "F32"},  {"blk.1.ffn_norm.weight", "F32"},     {"output_norm.weight", "F16"}};

std::string_view GgufArchitecture(const DecoderConfig& config) {
  const std::string_view type = config.architecture->model_type;
  if (type == "gemma3_text") return "gemma3";
  return type == "mistral" || type == "mixtral" ? "llama" : type == "qwen3_moe" ? "qwen3moe" : type;
}

// The rows (of a vector: elements) of every head as the converter orders them: pairs that are rotated together are next
// to each other.
std::string PermuteHeads(const std::string& rows, int64_t heads, int64_t head_dim) {
  const size_t row = rows.size() / static_cast<size_t>(heads * head_dim);
  std::string out;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t pair = 0; pair < head_dim / 2; ++pair) {
      for (int64_t half = 0; half < 2; ++half) {
        out += rows.substr(static_cast<size_t>(head * head_dim + half * head_dim / 2 + pair) * row, row);
      }
    }
  }
  return out;
}

GgufBuilder MetadataOf(const DecoderConfig& config) {
  const auto u32 = [](int64_t value) { return static_cast<uint32_t>(value); };
  const std::string prefix = std::string(GgufArchitecture(config)) + ".";
  GgufBuilder file;
  file.String("general.architecture", GgufArchitecture(config))
      .U32(prefix + "block_count", u32(config.num_hidden_layers))
      .U32(prefix + "context_length", u32(config.max_position_embeddings))
      .U32(prefix + "embedding_length", u32(config.hidden_size))
      .U32(prefix + "feed_forward_length", u32(config.intermediate_size))
      .U32(prefix + "attention.head_count", u32(config.num_attention_heads))
      .U32(prefix + "attention.head_count_kv", u32(config.num_key_value_heads))
      .U32(prefix + "attention.key_length", u32(config.head_dim))
      .U32(prefix + "attention.value_length", u32(config.head_dim))
      .F32(prefix + "attention.layer_norm_rms_epsilon", static_cast<float>(config.rms_norm_eps))
      .F32(prefix + "rope.freq_base", static_cast<float>(config.rope_theta));
  if (!config.windows.empty()) file.U32(prefix + "attention.sliding_window", u32(config.windows.front()));
  if (config.RotaryDim() < config.head_dim) file.U32(prefix + "rope.dimension_count", u32(config.RotaryDim()));
  if (config.architecture->reads_multipliers) {
    file.F32(prefix + "attention.scale", static_cast<float>(config.attention_multiplier))
        .F32(prefix + "embedding_scale", static_cast<float>(config.embedding_multiplier))
        .F32(prefix + "residual_scale", static_cast<float>(config.residual_multiplier))
        .F32(prefix + "logit_scale", static_cast<float>(config.logits_scaling));
  }
  if (config.score_cap > 0) file.F32(prefix + "attn_logit_softcapping", static_cast<float>(config.score_cap));
  if (config.logit_cap > 0) file.F32(prefix + "final_logit_softcapping", static_cast<float>(config.logit_cap));
  if (config.local_rope_theta > 0) {
    const auto whole = std::find(config.rope_layers.begin(), config.rope_layers.end(), true);
    file.F32(prefix + "rope.freq_base_swa", static_cast<float>(config.local_rope_theta))
        .U32(prefix + "attention.sliding_window_pattern", u32(whole - config.rope_layers.begin() + 1));
  }
  if (config.HasExperts()) {
    file.U32(prefix + "expert_count", u32(config.num_experts))
        .U32(prefix + "expert_used_count", u32(config.num_experts_per_tok));
    if (config.architecture->default_expert_size > 0) {
      file.U32(prefix + "expert_feed_forward_length", u32(config.moe_intermediate_size));
    }
  }
  return file;
}

uint32_t GgufType(DType dtype) { return dtype == DType::kF32 ? 0 : dtype == DType::kF16 ? 1 : 30; }

// The tensors of a folder with other names alone.
void AddAsStored(const std::filesystem::path& path, GgufBuilder* to) {
  const SafetensorsFile stored(path);
  for (const SafetensorsTensor& tensor : stored.tensors()) {
    const std::span<const std::byte> bytes = stored.Data(tensor);
    to->tensors.push_back({gguf::NameInGguf(tensor.name).name,
                           {tensor.shape.rbegin(), tensor.shape.rend()},
                           GgufType(tensor.dtype),
                           std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())});
  }
}

}  // namespace

GgufBuilder& GgufBuilder::Raw(std::string_view key, uint32_t type, std::string_view bytes) {
  values_.emplace_back(key, Little(type) + std::string(bytes));
  return *this;
}
GgufBuilder& GgufBuilder::U32(std::string_view key, uint32_t value) { return Raw(key, 4, Little(value)); }
GgufBuilder& GgufBuilder::F32(std::string_view key, float value) { return Raw(key, 6, Little(value)); }
GgufBuilder& GgufBuilder::Bool(std::string_view key, bool value) {
  return Raw(key, 7, value ? "\1" : std::string(1, 0));
}
GgufBuilder& GgufBuilder::String(std::string_view key, std::string_view value) { return Raw(key, 8, Text(value)); }

GgufBuilder& GgufBuilder::Strings(std::string_view key, const std::vector<std::string>& values) {
  std::string bytes = Little<uint32_t>(8) + Little<uint64_t>(values.size());
  for (const std::string& value : values) bytes += Text(value);
  return Raw(key, 9, bytes);
}
GgufBuilder& GgufBuilder::F32s(std::string_view key, const std::vector<float>& values) {
  std::string bytes = Little<uint32_t>(6) + Little<uint64_t>(values.size());
  for (const float value : values) bytes += Little(value);
  return Raw(key, 9, bytes);
}
GgufBuilder& GgufBuilder::I32s(std::string_view key, const std::vector<int32_t>& values) {
  std::string bytes = Little<uint32_t>(5) + Little<uint64_t>(values.size());
  for (const int32_t value : values) bytes += Little(value);
  return Raw(key, 9, bytes);
}

void GgufBuilder::Remove(std::string_view key) {
  std::erase_if(values_, [&](const auto& value) { return value.first == key; });
}

GgufBuilder::Tensor& GgufBuilder::Find(std::string_view name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.name == name; });
  if (found == tensors.end()) throw std::runtime_error("no tensor " + std::string(name));
  return *found;
}

std::string GgufBuilder::Bytes() const {
  std::string file = "GGUF" + Little(version) + Little<uint64_t>(tensors.size()) + Little<uint64_t>(values_.size());
  for (const auto& [key, value] : values_) file += Text(key) + value;
  const auto aligned = [&](uint64_t at) { return (at + alignment - 1) / alignment * alignment; };
  std::string data;
  for (const Tensor& tensor : tensors) {
    data.resize(aligned(data.size()), '\0');
    file += Text(tensor.name) + Little(static_cast<uint32_t>(tensor.dims.size()));
    for (const uint64_t dim : tensor.dims) file += Little(dim);
    file += Little(tensor.type) + Little(tensor.offset < 0 ? data.size() : static_cast<uint64_t>(tensor.offset));
    data += tensor.data;
  }
  file.resize(aligned(file.size()), '\0');
  return file + data;
}

std::map<std::string, GgufBlocks> ReadGgufBlocks() {
  const auto json = nlohmann::json::parse(ReadFile(STOCH_GOLDEN_FOLDER "/gguf_blocks.json"));
  std::map<std::string, GgufBlocks> all;
  for (const auto& [name, type] : json["types"].items()) {
    GgufBlocks& blocks = all[name];
    blocks.number = type["number"];
    for (size_t row = 0; row < 2; ++row) {
      blocks.blocks[row] = FromHex(type["blocks"][row]);
      const std::string values = FromHex(type["values"][row]);
      blocks.values[row].resize(values.size() / sizeof(float));
      std::memcpy(blocks.values[row].data(), values.data(), values.size());
    }
  }
  return all;
}

std::string_view SampleType(std::string_view tensor) {
  for (const auto& [name, type] : kSampleTypes) {
    if (name == tensor) return type;
  }
  throw std::runtime_error("no tensor " + std::string(tensor));
}

GgufBuilder SampleGguf() {
  static const std::map<std::string, GgufBlocks> all = ReadGgufBlocks();
  GgufBuilder file;
  file.String("general.architecture", "llama")
      .U32("llama.block_count", 2)
      .U32("llama.context_length", 128)
      .U32("llama.embedding_length", 256)
      .U32("llama.feed_forward_length", 256)
      .U32("llama.attention.head_count", 2)
      .F32("llama.attention.layer_norm_rms_epsilon", 1e-5f)
      .F32("llama.rope.freq_base", 500000)
      .String("tokenizer.ggml.model", "llama")
      .Strings("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "\u2581", "a", "b", "\u2581a", "ab"})
      .F32s("tokenizer.ggml.scores", {0, 0, 0, -3, -4, -5, -1, -2})
      .I32s("tokenizer.ggml.token_type", {2, 3, 3, 1, 1, 1, 1, 1})
      .U32("tokenizer.ggml.bos_token_id", 1)
      .U32("tokenizer.ggml.eos_token_id", 2);
  for (const auto& [name, type] : kSampleTypes) {
    const GgufBlocks& blocks = all.at(std::string(type));
    const bool vector = name.ends_with("norm.weight");
    const bool vocabulary = name == "token_embd.weight" || name == "output.weight";
    const uint64_t rows = vector ? 1 : vocabulary ? 8 : 256;
    GgufBuilder::Tensor tensor{std::string(name), {256}, blocks.number, ""};
    if (!vector) tensor.dims.push_back(rows);
    for (uint64_t row = 0; row < rows; ++row) tensor.data += blocks.blocks[row % 2];
    file.tensors.push_back(std::move(tensor));
  }
  return file;
}

GgufBuilder GgufOf(const ModelFiles& folder) {
  using Heads = gguf::TensorName::Heads;
  const DecoderConfig& config = folder.config;
  const std::string_view architecture = GgufArchitecture(config);
  const bool permutes = architecture == "llama" || architecture == "smollm3" || architecture == "granite";
  GgufBuilder file = MetadataOf(config);
  if (GgufArchitecture(config) == "phi3") {
    AddAsStored(folder.folder / "model.safetensors", &file);
    return file;
  }
  for (const TensorInfo& info : folder.weights->tensors()) {
    const gguf::TensorName name = gguf::NameInGguf(info.name, HasOutNorms(*config.architecture));
    const WeightSource source =
        folder.weights->Matrix(info.name, info.shape.size() == 2 ? info.shape[0] : 1, info.shape.back());
    const DType dtype = source.decoder == nullptr ? source.dtype : DType::kF32;
    std::string data(static_cast<size_t>(source.rows * source.cols) * DTypeSize(dtype), '\0');
    if (source.decoder == nullptr) {
      memcpy(data.data(), source.host, data.size());
    } else {  // 1 + w of norms, as GGUF holds it
      std::vector<float> values(static_cast<size_t>(source.rows * source.cols));
      source.decoder->Decode(source.first, source.rows * source.cols, values.data());
      memcpy(data.data(), values.data(), data.size());
    }
    if (permutes && name.heads != Heads::kNone) {
      data = PermuteHeads(data, name.heads == Heads::kQuery ? config.num_attention_heads : config.num_key_value_heads,
                          config.head_dim);
    }
    if (name.expert > 0) {  // in order of use, so that they follow each other
      GgufBuilder::Tensor& experts = file.Find(name.name);
      experts.data += data;
      ++experts.dims.back();
      continue;
    }
    GgufBuilder::Tensor tensor{name.name, {info.shape.rbegin(), info.shape.rend()}, 0, std::move(data)};
    if (name.expert == 0) tensor.dims.push_back(1);
    tensor.type = GgufType(dtype);
    file.tensors.push_back(std::move(tensor));
  }
  return file;
}

GgufBuilder WithOwnExperts(const GgufBuilder& file) {
  constexpr std::string_view kAll = "_exps";
  GgufBuilder own = file;
  own.tensors.clear();
  for (const GgufBuilder::Tensor& tensor : file.tensors) {
    const size_t at = tensor.name.find(kAll);
    if (at == std::string::npos) {
      own.tensors.push_back(tensor);
      continue;
    }
    const size_t bytes = tensor.data.size() / tensor.dims.back();
    for (size_t expert = 0; expert < tensor.dims.back(); ++expert) {
      GgufBuilder::Tensor one = tensor;
      one.name.replace(at, kAll.size(), "." + std::to_string(expert));
      one.dims.pop_back();
      one.data = tensor.data.substr(expert * bytes, bytes);
      own.tensors.push_back(std::move(one));
    }
  }
  return own;
}

}  // namespace stoch::test
