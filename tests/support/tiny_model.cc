// SPDX-License-Identifier: Apache-2.0
#include "tests/support/tiny_model.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <variant>

#include "kernels/math/half.h"
#include "kernels/math/random.h"
#include "loader/checkpoint/safetensors_writer.h"
#include "loader/config/config_json.h"
#include "loader/config/decoder_tensors.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

uint64_t StreamOf(const std::string& name) {
  uint64_t stream = 0;
  for (const char c : name) stream = Mix64(stream * 257 + static_cast<unsigned char>(c));
  return stream;
}

uint16_t FloatToBf16(float value) {  // finite values, round to nearest even
  const uint32_t bits = FloatToBits(value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

void AppendElement(std::vector<std::byte>& bytes, float value, DType dtype) {
  const size_t size = DTypeSize(dtype);
  bytes.resize(bytes.size() + size);
  std::byte* to = bytes.data() + bytes.size() - size;
  if (dtype == DType::kF32) {
    std::memcpy(to, &value, size);
    return;
  }
  if (dtype != DType::kF16 && dtype != DType::kBF16) throw std::runtime_error("a tiny model is F32, F16 or BF16");
  const uint16_t half = dtype == DType::kF16 ? FloatToF16(value) : FloatToBf16(value);
  std::memcpy(to, &half, size);
}

void WriteIndex(const std::filesystem::path& folder, const std::map<std::string, std::string>& weight_map,
                int64_t total_bytes) {
  const nlohmann::json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  WriteFile(folder / "model.safetensors.index.json", index.dump(2));
}

std::string ShardName(int shard, int shards) {
  std::string number = std::to_string(shard + 1);
  std::string total = std::to_string(shards);
  number.insert(0, 5 - number.size(), '0');
  total.insert(0, 5 - total.size(), '0');
  return "model-" + number + "-of-" + total + ".safetensors";
}

}  // namespace

DecoderConfig TinyLlamaConfig() {
  DecoderConfig config;
  config.hidden_size = 64;
  config.intermediate_size = 172;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.vocab_size = 96;
  config.max_position_embeddings = 128;
  config.eos_token_ids = {2};
  return config;
}

DecoderConfig TinyMixtralConfig() {
  DecoderConfig config = TinyLlamaConfig();
  config.architecture = FindArchitecture("mixtral");
  config.num_experts = 5;
  config.num_experts_per_tok = 2;
  config.moe_intermediate_size = config.intermediate_size;
  config.norm_topk_prob = true;
  config.sparse_layers.assign(static_cast<size_t>(config.num_hidden_layers), true);
  return config;
}

std::vector<StoredTensor> TinyModelTensors(const TinyModel& model) {
  std::vector<StoredTensor> tensors;
  for (const DecoderTensor& tensor : DecoderTensors(model.config)) {
    StoredTensor stored{tensor.name, model.dtype, tensor.shape, {}};
    int64_t numel = 1;
    for (const int64_t dim : tensor.shape) numel *= dim;
    const uint64_t stream = StreamOf(tensor.name);
    const float centre = tensor.shape.size() == 1 && !tensor.name.ends_with(".bias") && !tensor.adds_one ? 1.0f : 0.0f;
    for (int64_t i = 0; i < numel; ++i) {
      const float uniform = RandomUniform(model.seed, stream, static_cast<uint64_t>(i)) * 2.0f - 1.0f;
      AppendElement(stored.bytes, centre + uniform * model.spread, model.dtype);
    }
    if (tensor.name == kEmbeddingName && model.tied_as_lm_head) stored.name = kLmHeadName;
    if (tensor.fused_first > 0) {
      StoredTensor& fused = tensors.back();
      fused.shape.front() += tensor.shape.front();
      fused.bytes.insert(fused.bytes.end(), stored.bytes.begin(), stored.bytes.end());
      continue;
    }
    if (!tensor.fused.empty()) stored.name = tensor.fused;
    tensors.push_back(std::move(stored));
  }
  return tensors;
}

std::string ConfigJson(const DecoderConfig& config) {
  nlohmann::ordered_json json = ConfigNumbers(config);
  json["architectures"] = nlohmann::ordered_json::array({std::string(config.architecture->transformers_class)});
  json["model_type"] = std::string(config.architecture->model_type);
  if (!config.HasGelu()) {
    json["hidden_act"] = "silu";
  } else {
    json["hidden_activation"] = "gelu_pytorch_tanh";
  }
  json["attention_bias"] = config.HasBias(BlockGroup::kO);
  json["mlp_bias"] = config.HasBias(BlockGroup::kDown);
  json["bos_token_id"] = config.bos_token_id;
  json["eos_token_id"] = config.eos_token_ids;
  if (!config.windows.empty()) {
    json["use_sliding_window"] = true;
    json["sliding_window"] = *std::max_element(config.windows.begin(), config.windows.end());
    for (const int64_t window : config.windows) {
      json["layer_types"].push_back(window > 0 ? "sliding_attention" : "full_attention");
    }
  } else if (config.architecture->window == WindowRule::kEveryLayer) {
    json["sliding_window"] = nullptr;
  }
  if (config.HasExperts()) {
    json["num_experts"] = config.num_experts;
    json["num_experts_per_tok"] = config.num_experts_per_tok;
    if (config.architecture->default_expert_size > 0) {
      json["moe_intermediate_size"] = config.moe_intermediate_size;
      json["norm_topk_prob"] = config.norm_topk_prob;
    }
    json["mlp_only_layers"] = nlohmann::json::array();
    for (size_t i = 0; i < config.sparse_layers.size(); ++i) {
      if (!config.sparse_layers[i]) json["mlp_only_layers"].push_back(i);
    }
  }
  if (config.rotary_dim > 0) {
    json["partial_rotary_factor"] = static_cast<double>(config.rotary_dim) / static_cast<double>(config.head_dim);
  }
  if (config.architecture->reads_caps) {
    json["query_pre_attn_scalar"] = config.head_dim;
    json["attn_logit_softcapping"] = nullptr;
    json["final_logit_softcapping"] = nullptr;
    if (config.score_cap > 0) json["attn_logit_softcapping"] = config.score_cap;
    if (config.logit_cap > 0) json["final_logit_softcapping"] = config.logit_cap;
  }
  if (config.local_rope_theta > 0) {
    json["rope_local_base_freq"] = config.local_rope_theta;
  } else if (!config.rope_layers.empty()) {
    for (const bool has_rope : config.rope_layers) json["no_rope_layers"].push_back(has_rope ? 1 : 0);
  }
  if (config.architecture->reads_multipliers) {
    json["embedding_multiplier"] = config.embedding_multiplier;
    json["residual_multiplier"] = config.residual_multiplier;
    json["attention_multiplier"] = config.attention_multiplier;
    json["logits_scaling"] = config.logits_scaling;
  }
  if (config.rope_scaling) {
    const auto& scaling = std::get<Llama3RopeScaling>(*config.rope_scaling);
    json["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", scaling.factor},
        {"low_freq_factor", scaling.low_freq_factor},
        {"high_freq_factor", scaling.high_freq_factor},
        {"original_max_position_embeddings", scaling.original_max_position_embeddings},
    };
  }
  return json.dump(2);
}

void WriteTensors(const std::filesystem::path& path, const std::vector<StoredTensor>& tensors) {
  std::vector<SafetensorsSpec> specs;
  for (const StoredTensor& tensor : tensors) specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(path, specs, {{"format", "pt"}});
  for (const StoredTensor& tensor : tensors) writer.Append(tensor.bytes);
  writer.Finish();
}

void WriteTinyModel(const std::filesystem::path& folder, const TinyModel& model,
                    const std::function<void(std::vector<StoredTensor>&)>& edit) {
  std::filesystem::create_directories(folder);
  WriteFile(folder / "config.json", ConfigJson(model.config));
  std::vector<StoredTensor> tensors = TinyModelTensors(model);
  if (edit) edit(tensors);
  if (model.shards == 1) {
    WriteTensors(folder / "model.safetensors", tensors);
    return;
  }
  std::map<std::string, std::string> weight_map;
  int64_t total_bytes = 0;
  const size_t shards = static_cast<size_t>(model.shards);
  for (size_t shard = 0; shard < shards; ++shard) {
    const std::string name = ShardName(static_cast<int>(shard), model.shards);
    const size_t begin = tensors.size() * shard / shards;
    const size_t end = tensors.size() * (shard + 1) / shards;
    const std::vector<StoredTensor> part(tensors.begin() + static_cast<ptrdiff_t>(begin),
                                         tensors.begin() + static_cast<ptrdiff_t>(end));
    for (const StoredTensor& tensor : part) {
      weight_map[tensor.name] = name;
      total_bytes += static_cast<int64_t>(tensor.bytes.size());
    }
    WriteTensors(folder / name, part);
  }
  WriteIndex(folder, weight_map, total_bytes);
}

}  // namespace stoch::test
