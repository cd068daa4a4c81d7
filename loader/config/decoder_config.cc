// SPDX-License-Identifier: Apache-2.0
#include "loader/config/decoder_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "loader/bounded_json.h"
#include "loader/config/config_keys.h"
#include "loader/config/decoder_tensors.h"
#include "loader/config/parse_rope.h"
#include "loader/config/quantization.h"
#include "loader/quote.h"

namespace stoch {
namespace {

using Json = nlohmann::json;

// Far above every real decoder, and low enough that no product of two sizes leaves int64_t and that an SC sum over
// one row (at most 2^8 per element) stays in int32_t.
constexpr int64_t kMaxWidth = int64_t{1} << 22;  // hidden, intermediate, heads * head_dim
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeadDim = 4096;
constexpr int64_t kMaxExperts = 4096;
constexpr int64_t kMaxLayerExperts = int64_t{1} << 16;  // of all layers: each has tensors by name
constexpr int64_t kMaxWindow = int64_t{1} << 30;

// Keys that change nothing of the logits of these families: of training, of generating text, of tools that wrote the
// file, and of features that the parser has found to be off.
// clang-format off
constexpr std::string_view kMeaningless[] = {
    "attention_dropout", "embd_pdrop", "hidden_dropout", "resid_pdrop", "classifier_dropout", "initializer_range",
    "gradient_checkpointing", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "pretraining_tp", "neftune_noise_alpha",
    "use_cache", "cache_implementation", "attn_implementation", "torch_dtype", "dtype", "transformers_version",
    "tokenizer_class", "model_name", "unsloth_fixed", "unsloth_version", "max_length", "min_length", "max_new_tokens",
    "model_max_length", "max_sequence_length", "max_seq_len", "seq_length", "do_sample", "temperature", "top_k",
    "top_p", "typical_p", "repetition_penalty", "length_penalty", "diversity_penalty", "num_beams", "num_beam_groups",
    "num_return_sequences", "pad_token_id", "unk_token_id", "sep_token_id", "decoder_start_token_id", "eos_token",
    "bos_token", "pad_token", "id2label", "label2id", "num_labels", "return_dict", "use_return_dict",
    "output_attentions", "output_hidden_states", "chunk_size_feed_forward", "tokenizer_padding_side",
    "tokenizer_model_max_length", "tf_legacy_loss", "is_llama_config", "transformers.js_config", "use_flash_attn",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "max_window_layers", "sliding_window", "use_sliding_window",
    "full_attn_mod", "interpolate_factor", "cache_implementation",
};
// clang-format on

// Says what a model that the table has no row for would need.
std::string Needed() {
  return "; another family needs a row in loader/config/architecture.cc (docs/adding-a-model.md)";
}

// auto_map names Python code next to the weights, for a transformers that has no such class: fine where it is of the
// name that the row knows.
void CheckCode(const ConfigKeys& keys, const Architecture& row) {
  const Json* map = keys.Find("auto_map");
  if (map == nullptr) return;
  const auto model = map->is_object() ? map->find("AutoModelForCausalLM") : map->end();
  const bool named = map->is_object() && model != map->end() && model->is_string() &&
                     model->get_ref<const std::string&>().ends_with("." + std::string(row.transformers_class));
  if (named) return;
  keys.Fail("auto_map: expected AutoModelForCausalLM of class " + std::string(row.transformers_class) + ", got " +
            Quoted(map->dump()));
}

// Newer families say hidden_activation, and may have both.
void CheckActivation(const ConfigKeys& keys, const Architecture& row) {
  const bool is_silu = row.activation == Activation::kSilu;
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    const std::optional<std::string> activation = keys.String(key);
    if (!activation || *activation == (is_silu ? "silu" : "gelu_pytorch_tanh")) continue;
    if (is_silu && *activation == "swish") continue;
    keys.Fail(std::string(key) + ": expected " + (is_silu ? "\"silu\"" : "\"gelu_pytorch_tanh\"") + ", got " +
              Quoted(*activation) + "; it needs that activation");
  }
}

const Architecture& ReadArchitecture(const ConfigKeys& keys) {
  const std::optional<std::string> model_type = keys.String("model_type");
  const Architecture* row = nullptr;
  if (model_type) {
    row = FindArchitecture(*model_type);
    if (row == nullptr) {
      keys.Fail("model_type: expected " + KnownModelTypes() + ", got " + Quoted(*model_type) + Needed());
    }
  }
  if (const Json* architectures = keys.Find("architectures")) {
    const bool one = architectures->is_array() && architectures->size() == 1 && architectures->front().is_string();
    const Architecture* named =
        one ? FindArchitectureOfClass(architectures->front().get_ref<const std::string&>()) : nullptr;
    if (row == nullptr) row = named;
    if (named == nullptr || named != row) {
      const std::string expected = row != nullptr ? "[\"" + std::string(row->transformers_class) + "\"]"
                                                  : "[\"LlamaForCausalLM\"] or that of another known family";
      keys.Fail("architectures: expected " + expected + ", got " + Quoted(architectures->dump()) +
                (row == nullptr ? Needed() : ""));
    }
  } else if (!model_type) {
    keys.Fail("expected model_type (" + KnownModelTypes() + ") or architectures, got neither");
  }
  CheckCode(keys, *row);
  CheckActivation(keys, *row);
  return *row;
}

void ParseSizes(const ConfigKeys& keys, DecoderConfig* config) {
  const Architecture& row = *config->architecture;
  config->hidden_size = keys.Integer("hidden_size", 1, kMaxWidth);
  config->intermediate_size = keys.Integer("intermediate_size", 1, kMaxWidth);
  config->num_hidden_layers = keys.Integer("num_hidden_layers", 1, kMaxLayers);
  config->num_attention_heads = keys.Integer("num_attention_heads", 1, kMaxWidth);
  const bool as_heads = row.default_kv_heads == 0 || keys.IsNull("num_key_value_heads");
  config->num_key_value_heads =
      keys.Integer("num_key_value_heads", 1, kMaxWidth, as_heads ? config->num_attention_heads : row.default_kv_heads);
  config->vocab_size = keys.Integer("vocab_size", 1, kMaxVocabulary);
  config->max_position_embeddings = keys.Integer("max_position_embeddings", 1, kMaxPositions);
  if (config->num_attention_heads % config->num_key_value_heads != 0) {
    keys.Fail("num_key_value_heads: expected a divisor of num_attention_heads (" +
              std::to_string(config->num_attention_heads) + "), got " + std::to_string(config->num_key_value_heads));
  }
  const bool derived = row.default_head_dim == 0 || keys.IsNull("head_dim");
  if (derived && keys.Find("head_dim") == nullptr && config->hidden_size % config->num_attention_heads != 0) {
    keys.Fail("num_attention_heads: expected a divisor of hidden_size (" + std::to_string(config->hidden_size) +
              ") where head_dim is not given, got " + std::to_string(config->num_attention_heads));
  }
  config->head_dim = keys.Integer("head_dim", 2, kMaxHeadDim,
                                  derived ? config->hidden_size / config->num_attention_heads : row.default_head_dim);
  if (config->head_dim % 2 != 0 || config->head_dim > kMaxHeadDim) {
    keys.Fail("head_dim: expected an even number up to " + std::to_string(kMaxHeadDim) + ", got " +
              std::to_string(config->head_dim));
  }
  if (config->num_attention_heads * config->head_dim > kMaxWidth) {
    keys.Fail("num_attention_heads * head_dim: expected at most " + std::to_string(kMaxWidth) + ", got " +
              std::to_string(config->num_attention_heads * config->head_dim));
  }
}

void ParseBiases(const ConfigKeys& keys, DecoderConfig* config) {
  const Architecture& row = *config->architecture;
  const auto set = [config](BlockGroup group, bool value) { config->biases[static_cast<size_t>(group)] = value; };
  const auto read = [&keys](const char* key, bool known) {
    const bool value = keys.Boolean(key, false);
    if (value && !known) {
      keys.Fail(std::string(key) + ": expected false for this model_type, got true; it needs a row that reads the key");
    }
    return value;
  };
  const bool attention = read("attention_bias", row.reads_attention_bias);
  const bool mlp = read("mlp_bias", row.reads_mlp_bias);
  set(BlockGroup::kQkv, attention || row.has_qkv_bias);
  set(BlockGroup::kO, attention);
  set(BlockGroup::kGateUp, mlp);
  set(BlockGroup::kDown, mlp);
}

// Keys of some checkpoints that repeat what the family is, or would make another decoder of it.
void CheckRepeated(const ConfigKeys& keys, const DecoderConfig& config) {
  const std::pair<const char*, bool> repeated[] = {
      {"qkv_bias", config.HasBias(BlockGroup::kQkv)},
      {"use_qk_norm", VectorOf(*config.architecture, VectorId::kQNorm) != nullptr},
      {"lm_head_bias", false},
      {"is_causal", true}};
  for (const auto& [key, value] : repeated) {
    if (keys.Boolean(key, value) == value) continue;
    keys.Fail(std::string(key) + ": expected " + (value ? "true" : "false") +
              " for this model_type, got the other; it needs a decoder of that kind");
  }
}

// The sliding windows that layer_types names; nothing where it is absent.
std::optional<std::vector<bool>> ParseLayerTypes(const ConfigKeys& keys, int64_t layers) {
  const Json* types = keys.Find("layer_types");
  if (types == nullptr) return std::nullopt;
  if (!types->is_array() || static_cast<int64_t>(types->size()) != layers) {
    keys.Fail("layer_types: expected a list of " + std::to_string(layers) + " names, got " +
              (types->is_array() ? std::to_string(types->size()) : std::string(JsonTypeName(*types))));
  }
  std::vector<bool> slides;
  for (const Json& type : *types) {
    if (type != "full_attention" && type != "sliding_attention") {
      keys.Fail("layer_types: expected \"full_attention\" or \"sliding_attention\", got " + Quoted(type.dump()) +
                "; it needs an attention of that kind");
    }
    slides.push_back(type == "sliding_attention");
  }
  return slides;
}

void ParseWindows(const ConfigKeys& keys, DecoderConfig* config) {
  const Architecture& row = *config->architecture;
  const auto layers = static_cast<size_t>(config->num_hidden_layers);
  int64_t window = 0, period = row.window == WindowRule::kEvenLayers ? 2 : INT64_MAX;
  size_t first = 0;
  switch (row.window) {
    case WindowRule::kNone: break;
    case WindowRule::kWhereUsed:
      if (!keys.Boolean("use_sliding_window", false)) break;
      if (!keys.IsNull("sliding_window")) window = keys.Integer("sliding_window", 1, kMaxWindow, 4096);
      if (keys.Integer("max_window_layers", 0, INT32_MAX, 0) != 0) {
        keys.Fail(
            "max_window_layers: expected 0 or nothing with use_sliding_window for this model_type, got another number; "
            "transformers 4 begins with that layer, transformers 5 with the first");
      }
      break;
    case WindowRule::kEveryLayer:
      if (!keys.IsNull("sliding_window")) window = keys.Integer("sliding_window", 1, kMaxWindow, row.default_window);
      break;
    case WindowRule::kFromLayer:
      if (!keys.Boolean("use_sliding_window", false)) break;  // the number then means nothing
      if (!keys.IsNull("sliding_window")) window = keys.Integer("sliding_window", 1, kMaxWindow, 4096);
      first = static_cast<size_t>(keys.Integer("max_window_layers", 0, INT32_MAX, 28));
      break;
    case WindowRule::kEvenLayers:
    case WindowRule::kPattern:
      window = keys.Integer("sliding_window", 1, kMaxWindow, row.default_window);
      if (row.window == WindowRule::kPattern) period = keys.Integer("sliding_window_pattern", 1, INT32_MAX, 6);
      break;
  }
  std::vector<bool> slides(layers, false);
  for (size_t i = first; i < layers; ++i) slides[i] = window > 0 && (static_cast<int64_t>(i) + 1) % period != 0;
  if (const auto named = ParseLayerTypes(keys, config->num_hidden_layers)) {
    const bool any = std::find(named->begin(), named->end(), true) != named->end();
    if (any && window == 0)
      keys.Fail("layer_types: expected no \"sliding_attention\" without a sliding window, got one");
    const bool every = row.window == WindowRule::kEveryLayer || row.window == WindowRule::kWhereUsed;
    if (every && *named != slides) {
      keys.Fail("layer_types: expected what sliding_window says of every layer, got something else");
    }
    slides = *named;
  }
  if (config->local_rope_theta > 0) {
    for (const bool slide : slides) config->rope_layers.push_back(!slide);
  }
  // A window as long as the context hides nothing.
  if (window >= config->max_position_embeddings) return;
  if (std::find(slides.begin(), slides.end(), true) == slides.end()) return;
  for (size_t i = 0; i < layers; ++i) config->windows.push_back(slides[i] ? window : 0);
}

void ParseExperts(const ConfigKeys& keys, DecoderConfig* config) {
  const Architecture& row = *config->architecture;
  if (!row.has_experts) return;
  const char* count = keys.Find("num_local_experts") != nullptr ? "num_local_experts" : "num_experts";
  config->num_experts = keys.Integer(count, 0, kMaxExperts, row.default_experts);
  if (keys.Find("num_experts") != nullptr && keys.Integer("num_experts", 0, kMaxExperts) != config->num_experts) {
    keys.Fail("num_experts: expected what num_local_experts says, got another number");
  }
  const int64_t step = keys.Integer("decoder_sparse_step", 1, kMaxLayers, 1);
  std::vector<int64_t> dense =
      keys.Integers("mlp_only_layers", 0, config->num_hidden_layers - 1, static_cast<size_t>(kMaxLayers));
  if (config->num_experts == 0) {  // the others then mean nothing
    for (const char* key : {"num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"}) keys.Find(key);
    return;
  }
  const int64_t layers = config->num_hidden_layers;
  if (config->num_experts * layers > kMaxLayerExperts) {
    keys.Fail(std::string(count) + ": expected at most " + std::to_string(kMaxLayerExperts) +
              " experts in all layers, got " + std::to_string(config->num_experts * layers));
  }
  config->num_experts_per_tok = keys.Integer("num_experts_per_tok", 1, config->num_experts,
                                             std::min<int64_t>(row.default_experts_per_token, config->num_experts));
  if (row.default_expert_size == 0) {
    config->moe_intermediate_size = config->intermediate_size;
    config->norm_topk_prob = true;
  } else {
    config->moe_intermediate_size = keys.Integer("moe_intermediate_size", 1, kMaxWidth, row.default_expert_size);
    config->norm_topk_prob = keys.Boolean("norm_topk_prob", false);
  }
  std::vector<bool> sparse;
  for (int64_t i = 0; i < layers; ++i) {
    const bool listed = std::find(dense.begin(), dense.end(), i) != dense.end();
    sparse.push_back(!listed && (i + 1) % step == 0);
  }
  if (std::find(sparse.begin(), sparse.end(), true) != sparse.end()) config->sparse_layers = std::move(sparse);
}

void ParseMultipliers(const ConfigKeys& keys, DecoderConfig* config) {
  if (!config->architecture->reads_multipliers) return;
  constexpr double kMost = 1e6;
  config->embedding_multiplier = keys.Number("embedding_multiplier", 0, kMost, 1);
  config->residual_multiplier = keys.Number("residual_multiplier", 0, kMost, 1);
  config->attention_multiplier = keys.Number("attention_multiplier", 0, kMost, 1);
  config->logits_scaling = keys.Number("logits_scaling", 0, kMost, 1);
}

void ParseCaps(const ConfigKeys& keys, DecoderConfig* config) {
  const Architecture& row = *config->architecture;
  if (row.scales_embedding) config->embedding_multiplier = std::sqrt(static_cast<double>(config->hidden_size));
  if (!row.reads_caps) return;
  constexpr double kMost = 1e6;
  const double scalar = keys.Number("query_pre_attn_scalar", 0, kMost, 256);
  if (scalar != static_cast<double>(config->head_dim)) config->attention_multiplier = 1 / std::sqrt(scalar);
  const auto cap = [&](const char* key, double usual) {
    if (keys.IsNull(key) || (usual == 0 && keys.Find(key) == nullptr)) return 0.0;
    return keys.Number(key, 0, kMost, usual);
  };
  config->score_cap = cap("attn_logit_softcapping", row.default_score_cap);
  config->logit_cap = cap("final_logit_softcapping", row.default_logit_cap);
  if (keys.Boolean("use_bidirectional_attention", false)) {
    keys.Fail("use_bidirectional_attention: expected false, got true; it needs attention that is not causal");
  }
}

void AddIds(const std::vector<int32_t>& ids, std::vector<int32_t>* to) {
  for (const int32_t id : ids) {
    if (std::find(to->begin(), to->end(), id) == to->end()) to->push_back(id);
  }
}

}  // namespace

bool DecoderConfig::HasExperts() const { return !sparse_layers.empty(); }
bool DecoderConfig::HasBranches() const { return residual_multiplier != 1 || HasOutNorms(*architecture); }
bool DecoderConfig::NormsAllHeads() const {
  const BlockVector* norm = VectorOf(*architecture, VectorId::kQNorm);
  return norm != nullptr && norm->length == Axis::kHeads;
}
bool DecoderConfig::HasDenseLayers() const {
  return sparse_layers.empty() || std::find(sparse_layers.begin(), sparse_layers.end(), false) != sparse_layers.end();
}

DecoderConfig ParseDecoderConfig(std::string_view config_json, std::string_view generation_config_json,
                                 const std::string& where) {
  const std::string config_file = where + "/config.json";
  const Json json = ParseBoundedJson(config_json, config_file);
  const ConfigKeys keys(json, config_file);
  DecoderConfig config;
  config.architecture = &ReadArchitecture(keys);
  ParseSizes(keys, &config);
  ParseRope(keys, &config);
  ParseBiases(keys, &config);
  CheckRepeated(keys, config);
  ParseWindows(keys, &config);
  ParseExperts(keys, &config);
  ParseMultipliers(keys, &config);
  ParseCaps(keys, &config);
  FindQuantization(keys);  // of the files, not of the model; refused here where it is not read
  config.rms_norm_eps = keys.Number("rms_norm_eps", 0, 1, config.architecture->default_eps);
  config.tie_word_embeddings = keys.Boolean("tie_word_embeddings", config.architecture->default_tied);
  config.bos_token_id = static_cast<int32_t>(
      keys.Integer("bos_token_id", 0, config.vocab_size - 1, std::min<int64_t>(1, config.vocab_size - 1)));
  config.eos_token_ids = keys.Ids("eos_token_id", config.vocab_size);
  const int32_t eos = config.architecture->default_eos;
  if (!json.contains("eos_token_id") && eos >= 0 && config.vocab_size > eos) config.eos_token_ids = {eos};
  keys.RefuseOthers(kMeaningless);
  if (!generation_config_json.empty()) {
    const std::string generation_file = where + "/generation_config.json";
    const Json generation = ParseBoundedJson(generation_config_json, generation_file);
    AddIds(ConfigKeys(generation, generation_file).Ids("eos_token_id", config.vocab_size), &config.eos_token_ids);
  }
  return config;
}

int64_t SizeOf(const DecoderConfig& config, Axis axis) {
  switch (axis) {
    case Axis::kHidden: return config.hidden_size;
    case Axis::kHeads: return config.num_attention_heads * config.head_dim;
    case Axis::kKvHeads: return config.num_key_value_heads * config.head_dim;
    case Axis::kIntermediate: return config.intermediate_size;
    case Axis::kExpertIntermediate: return config.moe_intermediate_size;
    case Axis::kHeadDim: return config.head_dim;
  }
  return 0;
}

int64_t LinearParameters(const DecoderConfig& config) {
  int64_t total = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (const BlockLinear& linear : config.architecture->linears) {
      const bool of_experts = config.HasExperts(layer) && !linear.expert.empty();
      const auto size = [&](Axis axis) { return SizeOf(config, of_experts ? ExpertAxis(axis) : axis); };
      total += size(linear.out) * size(linear.in) * (of_experts ? config.num_experts : 1);
    }
  }
  return total;
}

int64_t TotalParameters(const DecoderConfig& config) {
  int64_t total = 0;
  for (const DecoderTensor& tensor : DecoderTensors(config)) {
    int64_t numel = 1;
    for (const int64_t dim : tensor.shape) numel *= dim;
    total += numel;
  }
  return total;
}

}  // namespace stoch
