// SPDX-License-Identifier: Apache-2.0
#include "loader/checkpoint/gguf/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "loader/checkpoint/gguf/tensor_names.h"
#include "loader/quote.h"

namespace stoch::gguf {
namespace {

using Json = nlohmann::json;

struct Architecture {
  std::string_view name;   // in GGUF
  const char* model_type;  // in config.json
  const char* class_name;
};
constexpr Architecture kArchitectures[] = {
    {"llama", "llama", "LlamaForCausalLM"},       {"qwen2", "qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "qwen3", "Qwen3ForCausalLM"},       {"qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM"},
    {"phi3", "phi3", "Phi3ForCausalLM"},          {"smollm3", "smollm3", "SmolLM3ForCausalLM"},
    {"granite", "granite", "GraniteForCausalLM"}, {"olmo2", "olmo2", "Olmo2ForCausalLM"},
    {"gemma2", "gemma2", "Gemma2ForCausalLM"},    {"gemma3", "gemma3_text", "Gemma3ForCausalLM"},
};
// Keys of an architecture that change nothing of the logits, or that repeat what tensors or other keys say.
constexpr std::string_view kMeaningless[] = {
    "vocab_size",        "tensor_data_layout",  "decoder_start_token_id", "rope.scaling.finetuned",
    "expert_used_count", "expert_weights_norm", "rope.scaling.factor",    "rope.scaling.original_context_length"};

// Architecture llama with a window, and with experts.
constexpr const char* kMistralType = "mistral";
constexpr const char* kMistralClass = "MistralForCausalLM";
constexpr const char* kMixtralType = "mixtral";
constexpr const char* kMixtralClass = "MixtralForCausalLM";

const Architecture& ArchitectureOf(const Metadata& metadata) {
  constexpr std::string_view kKey = "general.architecture";
  const std::string_view name = metadata.Required(kKey, metadata.String(kKey));
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return architecture;
  }
  std::string known;
  for (const Architecture& row : kArchitectures) known += (known.empty() ? "" : ", ") + std::string(row.name);
  metadata.Fail(kKey, "expected one of " + known + ", got " + Quoted(name));
}

// Metadata of one architecture, whose keys begin with its name. Remembers which keys were asked for.
class Keys {
 public:
  Keys(const Model& model, const Architecture& architecture)
      : model_(model), metadata_(model.metadata()), prefix_(std::string(architecture.name) + ".") {}

  const Metadata& metadata() const { return metadata_; }
  bool is_phi() const { return prefix_ == "phi3."; }
  bool is_gemma2() const { return prefix_ == "gemma2."; }
  bool is_gemma3() const { return prefix_ == "gemma3."; }
  bool is_gemma() const { return is_gemma2() || is_gemma3(); }
  std::string Full(std::string_view key) const { return *known_.insert(prefix_ + std::string(key)).first; }
  int64_t Need(std::string_view key) const { return metadata_.Required(Full(key), Integer(key)); }
  std::optional<int64_t> Integer(std::string_view key) const { return metadata_.Integer(Full(key)); }
  std::optional<double> Number(std::string_view key) const { return metadata_.Number(Full(key)); }
  std::optional<std::string_view> String(std::string_view key) const { return metadata_.String(Full(key)); }
  bool HasTensor(std::string_view name) const { return model_.Find(name) != nullptr; }
  const StoredTensor* Find(std::string_view name) const { return model_.Find(name); }

  // What the model would do with it is not implemented.
  void Refuse(std::string_view key, const std::string& expected) const {
    if (metadata_.Has(Full(key))) metadata_.Fail(Full(key), "expected " + expected + ", got a value");
  }
  // A number that means nothing where it is `usual`.
  void RefuseUnless(std::string_view key, double usual) const {
    const std::optional<double> value = Number(key);
    if (value && *value != usual) {
      metadata_.Fail(Full(key), "expected " + Json(usual).dump() + " or nothing, got " + Json(*value).dump());
    }
  }
  // A key that nobody asked for could change what the model computes.
  void RefuseOthers() const {
    for (const std::string_view key : metadata_.Keys()) {
      if (!key.starts_with(prefix_) || known_.contains(key) || metadata_.IsOff(key)) continue;
      const std::string_view name = key.substr(prefix_.size());
      if (std::find(std::begin(kMeaningless), std::end(kMeaningless), name) != std::end(kMeaningless)) continue;
      metadata_.Fail(key,
                     "expected only keys whose meaning is known for this architecture; a model that depends on it " +
                         std::string("needs code for it"));
    }
  }

 private:
  const Model& model_;
  const Metadata& metadata_;
  std::string prefix_;
  mutable std::set<std::string, std::less<>> known_;
};

void AddSizes(const Keys& keys, Json& config) {
  const StoredTensor* embedding = keys.Find("token_embd.weight");
  if (embedding == nullptr) throw InvalidInput(keys.metadata().where() + ": tensor \"token_embd.weight\" is missing");
  config["vocab_size"] = embedding->tensor->shape.front();
  config["hidden_size"] = keys.Need("embedding_length");
  config["num_hidden_layers"] = keys.Need("block_count");
  config["max_position_embeddings"] = keys.Need("context_length");
  const int64_t heads = keys.Need("attention.head_count");
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] = keys.Integer("attention.head_count_kv").value_or(heads);
  if (const auto intermediate = keys.Integer("feed_forward_length")) config["intermediate_size"] = *intermediate;
  if (const auto eps = keys.Number("attention.layer_norm_rms_epsilon")) config["rms_norm_eps"] = *eps;
  const auto head_dim = keys.Integer("attention.key_length");
  const auto value_dim = keys.Integer("attention.value_length");
  const auto rotated = keys.Integer("rope.dimension_count");
  if (head_dim) config["head_dim"] = *head_dim;
  const int64_t hidden = config["hidden_size"];
  const int64_t dim = head_dim.value_or(heads > 0 ? hidden / heads : 0);
  if (value_dim && *value_dim != dim) {
    keys.metadata().Fail(keys.Full("attention.value_length"),
                         "expected the length of keys, " + std::to_string(dim) + ", got " + std::to_string(*value_dim));
  }
  if (rotated && *rotated != dim && *rotated > 0 && keys.is_phi()) {
    // Cut to an integer, the product with the length of a head is that number again.
    config["partial_rotary_factor"] = (static_cast<double>(*rotated) + 0.5) / static_cast<double>(dim);
  } else if (rotated && *rotated != dim) {
    keys.metadata().Fail(keys.Full("rope.dimension_count"),
                         "expected all " + std::to_string(dim) + " of a head, got " + std::to_string(*rotated));
  }
}

// llama3 scaling is not in the metadata but in a tensor of factors, one per rotated pair. Theirs are those of
// transformers with low_freq_factor 1, high_freq_factor 4 and 8192 positions, the only values in published models.
Json RopeFromFactors(const Keys& keys, const StoredTensor& stored, int64_t head_dim, double theta) {
  const std::string place = keys.metadata().where() + ": tensor " + Quoted(kRopeFactors) + ": ";
  const Tensor& tensor = *stored.tensor;
  if (tensor.type != Type::kF32 || tensor.shape != std::vector<int64_t>{head_dim / 2}) {
    throw InvalidInput(place + "expected " + std::to_string(head_dim / 2) + " numbers in F32, got others");
  }
  std::vector<float> factors(static_cast<size_t>(head_dim / 2));
  Dequantize(Type::kF32, stored.data().data(), head_dim / 2, factors.data());
  constexpr double kLow = 1, kHigh = 4, kPositions = 8192, kPi = 3.14159265358979323846;
  const double factor = factors.back();
  bool known = factor >= 1 && factor < 1e6;
  for (size_t i = 0; known && i < factors.size(); ++i) {
    const double wavelength = 2 * kPi * std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    const double smooth = std::clamp((kPositions / wavelength - kLow) / (kHigh - kLow), 0.0, 1.0);
    const double expected = 1 / ((1 - smooth) / factor + smooth);
    known = std::abs(factors[i] - expected) <= 1e-4 * expected;
  }
  if (!known) {
    throw InvalidInput(place +
                       "expected the factors of llama3 scaling with low_freq_factor 1, high_freq_factor 4 and " +
                       "8192 positions, got others");
  }
  return {{"rope_type", "llama3"},
          {"factor", factor},
          {"low_freq_factor", kLow},
          {"high_freq_factor", kHigh},
          {"original_max_position_embeddings", static_cast<int64_t>(kPositions)}};
}

// longrope is in two tensors; without them angles are plain.
void AddPhiRope(const Keys& keys, Json& config) {
  const auto original = keys.Integer("rope.scaling.original_context_length");
  if (original) config["original_max_position_embeddings"] = *original;
  const auto attention = keys.Number("rope.scaling.attn_factor");
  if (!keys.HasTensor(kShortFactors)) return;
  Json scaling = {{"rope_type", "longrope"}};
  if (attention) scaling["attention_factor"] = *attention;
  for (const auto& [name, key] : {std::pair{kShortFactors, "short_factor"}, {kLongFactors, "long_factor"}}) {
    const StoredTensor* stored = keys.Find(name);
    const bool fits = stored != nullptr && stored->tensor->type == Type::kF32 && stored->tensor->shape.size() == 1;
    if (!fits) {
      throw InvalidInput(keys.metadata().where() + ": tensor " + Quoted(name) +
                         ": expected a factor in F32 for each pair that is turned, got another tensor or none");
    }
    std::vector<float> factors(static_cast<size_t>(stored->tensor->shape.front()));
    Dequantize(Type::kF32, stored->data().data(), stored->tensor->shape.front(), factors.data());
    scaling[key] = factors;
  }
  config["rope_scaling"] = std::move(scaling);
}

// Adds what no key says, as llama.cpp does: scores of the largest model of each of these architectures are divided by the
// root of hidden_size / heads, those of all others by that of the length of a head.
void AddGemma(const Keys& keys, Json& config) {
  const int64_t layers = config["num_hidden_layers"], hidden = config["hidden_size"];
  const int64_t heads = std::max<int64_t>(config["num_attention_heads"].get<int64_t>(), 1);
  const int64_t head_dim = config.contains("head_dim") ? config["head_dim"].get<int64_t>() : hidden / heads;
  const bool is_largest = layers == (keys.is_gemma2() ? 46 : 62);
  config["head_dim"] = head_dim;
  config["query_pre_attn_scalar"] = is_largest ? hidden / heads : head_dim;
  config["hidden_activation"] = "gelu_pytorch_tanh";
  if (keys.is_gemma3()) {
    config["rope_local_base_freq"] = keys.Number("rope.freq_base_swa").value_or(10000);
    if (const auto pattern = keys.Integer("attention.sliding_window_pattern")) {
      config["sliding_window_pattern"] = *pattern;
    }
    return;
  }
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (const auto cap = keys.Number(key)) config[key] = *cap;
  }
}

void AddRope(const Keys& keys, Json& config) {
  const double theta = keys.Number("rope.freq_base").value_or(10000);
  config["rope_theta"] = theta;
  const int64_t heads = std::max<int64_t>(config["num_attention_heads"].get<int64_t>(), 1);
  const int64_t head_dim =
      config.contains("head_dim") ? config["head_dim"].get<int64_t>() : config["hidden_size"].get<int64_t>() / heads;
  if (const StoredTensor* factors = keys.Find(kRopeFactors)) {
    config["rope_scaling"] = RopeFromFactors(keys, *factors, head_dim, theta);
  }
  if (keys.is_phi()) {
    AddPhiRope(keys, config);
  } else if (keys.HasTensor(kShortFactors) || keys.HasTensor(kLongFactors)) {
    throw InvalidInput(keys.metadata().where() + ": tensor " + Quoted(kShortFactors) +
                       ": expected none in this architecture, got one; it needs longrope there");
  }
  // As in llama.cpp: a factor alone is linear, and older files call it scale_linear.
  std::optional<double> factor = keys.Number("rope.scaling.factor");
  if (!factor) factor = keys.Number("rope.scale_linear");
  const std::string_view usual = factor.value_or(0) == 0 ? "none" : "linear";
  const std::string_view type = keys.String("rope.scaling.type").value_or(usual);
  if (type == "none" || (type == "longrope" && keys.is_phi())) return;
  if (config.contains("rope_scaling")) {
    keys.metadata().Fail(keys.Full("rope.scaling.type"),
                         "expected none next to a tensor of factors, got " + Quoted(type));
  }
  if (type != "linear" && type != "yarn") {
    keys.metadata().Fail(keys.Full("rope.scaling.type"), "expected none, linear or yarn, got " + Quoted(type));
  }
  Json scaling = {{"rope_type", std::string(type)}};
  scaling["factor"] = keys.metadata().Required(keys.Full("rope.scaling.factor"), factor);
  if (type == "linear") {
    config["rope_scaling"] = std::move(scaling);
    return;
  }
  if (const auto original = keys.Integer("rope.scaling.original_context_length")) {
    scaling["original_max_position_embeddings"] = *original;
  }
  constexpr std::pair<const char*, const char*> kYarn[] = {{"rope.scaling.attn_factor", "attention_factor"},
                                                           {"rope.scaling.yarn_attn_factor", "attention_factor"},
                                                           {"rope.scaling.yarn_beta_fast", "beta_fast"},
                                                           {"rope.scaling.yarn_beta_slow", "beta_slow"}};
  for (const auto& [key, name] : kYarn) {
    if (const auto value = keys.Number(key)) scaling[name] = *value;
  }
  keys.RefuseUnless("rope.scaling.yarn_ext_factor", 1);
  config["rope_scaling"] = std::move(scaling);
}

void AddExpertCounts(const Keys& keys, Json& config) {
  config["num_experts"] = keys.Need("expert_count");
  config["num_experts_per_tok"] = keys.Need("expert_used_count");
  keys.RefuseUnless("expert_gating_func", 1);  // softmax
  keys.RefuseUnless("expert_weights_scale", 1);
}

void AddExperts(const Keys& keys, Json& config) {
  const int64_t layers = config["num_hidden_layers"];
  AddExpertCounts(keys, config);
  config["moe_intermediate_size"] = keys.Need("expert_feed_forward_length");
  config["norm_topk_prob"] = true;  // what llama.cpp does for every model of this architecture
  config["decoder_sparse_step"] = 1;
  Json dense = Json::array();
  for (int64_t layer = 0; layer < layers && layer < (1 << 12); ++layer) {
    if (!keys.HasTensor("blk." + std::to_string(layer) + ".ffn_gate_inp.weight")) dense.push_back(layer);
  }
  config["mlp_only_layers"] = std::move(dense);
  if (!config.contains("intermediate_size")) config["intermediate_size"] = config["moe_intermediate_size"];
}

// Experts in every layer, as wide as the feed-forward network, under the name of Llama.
void AddMixtral(const Keys& keys, Json& config) {
  config["model_type"] = kMixtralType;
  config["architectures"] = Json::array({kMixtralClass});
  AddExpertCounts(keys, config);
  if (config.contains("intermediate_size")) {
    keys.RefuseUnless("expert_feed_forward_length", config["intermediate_size"].get<double>());
  }
}

void AddLlama(const Keys& keys, Json& config) {
  if (keys.HasTensor("blk.0.attn_q.bias")) config["attention_bias"] = true;
  if (keys.HasTensor("blk.0.ffn_gate.bias")) config["mlp_bias"] = true;
  if (const int64_t window = keys.Integer("attention.sliding_window").value_or(0); window > 0) {
    config["model_type"] = kMistralType;
    config["architectures"] = Json::array({kMistralClass});
    config["sliding_window"] = window;
  }
  if (keys.Integer("expert_count").value_or(0) > 0) AddMixtral(keys, config);
}

void AddEnds(const Keys& keys, int64_t vocab_size, Json& config) {
  const Metadata& metadata = keys.metadata();
  if (const auto bos = metadata.Integer("tokenizer.ggml.bos_token_id")) config["bos_token_id"] = *bos;
  std::vector<int64_t> ends;
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    const auto id = metadata.Integer(key);
    if (!id) continue;
    if (*id < 0 || *id >= vocab_size)
      metadata.Fail(key, "expected an id of the vocabulary, got " + std::to_string(*id));
    if (std::find(ends.begin(), ends.end(), *id) == ends.end()) ends.push_back(*id);
  }
  config["eos_token_id"] = ends;
}

}  // namespace

std::string ConfigJson(const Model& model) {
  const Architecture& architecture = ArchitectureOf(model.metadata());
  const Keys keys(model, architecture);
  Json config = {{"model_type", architecture.model_type}, {"architectures", Json::array({architecture.class_name})}};
  AddSizes(keys, config);
  AddRope(keys, config);
  AddEnds(keys, config["vocab_size"], config);
  config["tie_word_embeddings"] = !keys.HasTensor("output.weight");
  if (architecture.name == "qwen3moe") {
    AddExperts(keys, config);
  } else if (architecture.name != "llama" && keys.Integer("expert_count").value_or(0) > 0) {
    keys.Refuse("expert_count", "no experts in architecture " + std::string(architecture.name));
  }
  if (architecture.name == "granite" || architecture.name == "smollm3") {
    if (keys.HasTensor("blk.0.attn_q.bias")) config["attention_bias"] = true;
    if (keys.HasTensor("blk.0.ffn_gate.bias")) config["mlp_bias"] = true;
  }
  if (architecture.name == "llama") {
    AddLlama(keys, config);
  } else if (const int64_t window = keys.Integer("attention.sliding_window").value_or(0);
             window > 0 && (keys.is_phi() || keys.is_gemma())) {
    config["sliding_window"] = window;
  } else if (window > 0) {
    keys.Refuse("attention.sliding_window", "none in architecture " + std::string(architecture.name));
  }
  constexpr std::pair<const char*, const char*> kMultipliers[] = {{"attention.scale", "attention_multiplier"},
                                                                  {"logit_scale", "logits_scaling"},
                                                                  {"embedding_scale", "embedding_multiplier"},
                                                                  {"residual_scale", "residual_multiplier"}};
  for (const auto& [key, name] : kMultipliers) {
    if (architecture.name != "granite") {
      keys.Refuse(key, "nothing, since the decoder has no such step");
    } else if (const auto value = keys.Number(key)) {
      config[name] = *value;
    }
  }
  if (keys.is_gemma()) AddGemma(keys, config);
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "attention.clamp_kqv"}) {
    if (keys.is_gemma2() && config.contains(key)) continue;
    keys.Refuse(key, "nothing, since the decoder has no such step");
  }
  constexpr std::string_view kCausal = "attention.causal";
  if (!keys.metadata().Boolean(keys.Full(kCausal)).value_or(true)) keys.Refuse(kCausal, "true");
  keys.RefuseOthers();
  return config.dump();
}

bool PermutesHeads(const Model& model) {
  const std::string_view name = ArchitectureOf(model.metadata()).name;
  return name == "llama" || name == "smollm3" || name == "granite";
}

}  // namespace stoch::gguf
