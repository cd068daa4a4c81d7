#include "loader/config/llama_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/config/llama_tensors.h"
#include "loader/quote.h"

namespace stoch {
namespace {

using Json = nlohmann::json;

// Far above every real Llama, and low enough that no product of two sizes leaves int64_t and that an SC sum over
// one row (at most 2^8 per element) stays in int32_t.
constexpr int64_t kMaxWidth = int64_t{1} << 22;  // hidden, intermediate, heads * head_dim
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeadDim = 4096;
constexpr int64_t kMaxPositions = int64_t{1} << 26;
constexpr size_t kMaxEndIds = 256;

// One JSON object of a config file, for reads that name the key in their errors. A key that is null counts as absent.
class Keys {
 public:
  Keys(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) Fail("expected an object, got " + std::string(JsonTypeName(object)));
  }

  const Json* Find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  Keys Object(const char* key) const { return Keys(*Find(key), where_ + ": " + key); }

  int64_t Integer(const char* key, int64_t min, int64_t max, std::optional<int64_t> fallback = {}) const {
    const Json* value = Find(key);
    if (value == nullptr) {
      if (!fallback) Fail(std::string(key) + ": expected an integer, got nothing");
      return *fallback;
    }
    return ToInteger(*value, key, min, max);
  }

  // A number in (above, below).
  double Number(const char* key, double above, double below, std::optional<double> fallback = {}) const {
    const Json* value = Find(key);
    if (value == nullptr) {
      if (!fallback) Fail(std::string(key) + ": expected a number, got nothing");
      return *fallback;
    }
    if (!value->is_number()) Fail(std::string(key) + ": expected a number, got " + std::string(JsonTypeName(*value)));
    const double number = value->get<double>();
    if (!(number > above && number < below)) {
      Fail(std::string(key) + ": expected a number above " + Json(above).dump() + " and below " + Json(below).dump() +
           ", got " + value->dump());
    }
    return number;
  }

  bool Boolean(const char* key, bool fallback) const {
    const Json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) Fail(std::string(key) + ": expected a boolean, got " + std::string(JsonTypeName(*value)));
    return value->get<bool>();
  }

  std::optional<std::string> String(const char* key) const {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) Fail(std::string(key) + ": expected a string, got " + std::string(JsonTypeName(*value)));
    return value->get<std::string>();
  }

  // An id or a list of ids, each in [0, vocab_size).
  std::vector<int32_t> Ids(const char* key, int64_t vocab_size) const {
    const Json* value = Find(key);
    if (value == nullptr) return {};
    std::vector<int32_t> ids;
    if (value->is_array()) {
      if (value->size() > kMaxEndIds) {
        Fail(std::string(key) + ": expected at most " + std::to_string(kMaxEndIds) + " ids, got " +
             std::to_string(value->size()));
      }
      for (const Json& id : *value) ids.push_back(static_cast<int32_t>(ToInteger(id, key, 0, vocab_size - 1)));
    } else {
      ids.push_back(static_cast<int32_t>(ToInteger(*value, key, 0, vocab_size - 1)));
    }
    return ids;
  }

  [[noreturn]] void Fail(const std::string& what) const { throw InvalidInput(where_ + ": " + what); }

 private:
  int64_t ToInteger(const Json& value, const char* key, int64_t min, int64_t max) const {
    if (!value.is_number_integer()) {
      Fail(std::string(key) + ": expected an integer, got " + std::string(JsonTypeName(value)));
    }
    const bool above_int64 = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
    const int64_t integer = above_int64 ? INT64_MAX : value.get<int64_t>();
    if (integer < min || integer > max) {
      Fail(std::string(key) + ": expected " + std::to_string(min) + " to " + std::to_string(max) + ", got " +
           value.dump());
    }
    return integer;
  }

  const Json& object_;
  std::string where_;
};

void CheckArchitecture(const Keys& keys) {
  const std::optional<std::string> model_type = keys.String("model_type");
  if (model_type && *model_type != "llama") {
    keys.Fail("model_type: expected \"llama\", got " + Quoted(*model_type));
  }
  if (const Json* architectures = keys.Find("architectures")) {
    if (*architectures != Json::array({"LlamaForCausalLM"})) {
      keys.Fail("architectures: expected [\"LlamaForCausalLM\"], got " + Quoted(architectures->dump()));
    }
  } else if (!model_type) {
    keys.Fail("expected model_type \"llama\" or architectures [\"LlamaForCausalLM\"], got neither");
  }
  const std::string activation = keys.String("hidden_act").value_or("silu");
  if (activation != "silu" && activation != "swish") {
    keys.Fail("hidden_act: expected \"silu\", got " + Quoted(activation));
  }
  for (const char* bias : {"attention_bias", "mlp_bias"}) {
    if (keys.Boolean(bias, false)) keys.Fail(std::string(bias) + ": expected false (no biases), got true");
  }
  if (keys.Find("quantization_config") != nullptr) {
    keys.Fail("quantization_config: expected weights in F32, F16 or BF16, got a quantized checkpoint");
  }
}

// The scaling in one object: rope_scaling, or the newer rope_parameters, which holds rope_theta as well.
std::optional<Llama3RopeScaling> ParseRopeScaling(const Keys& rope) {
  const std::optional<std::string> rope_type = rope.String("rope_type");
  const std::string type = rope_type ? *rope_type : rope.String("type").value_or("default");
  if (type == "default") return std::nullopt;
  if (type != "llama3") rope.Fail("rope_type: expected \"llama3\" or \"default\", got " + Quoted(type));
  Llama3RopeScaling scaling;
  scaling.factor = rope.Number("factor", 0, 1e6);
  scaling.low_freq_factor = rope.Number("low_freq_factor", 0, 1e6);
  scaling.high_freq_factor = rope.Number("high_freq_factor", 0, 1e6);
  scaling.original_max_position_embeddings = rope.Number("original_max_position_embeddings", 0, kMaxPositions + 1);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    rope.Fail("high_freq_factor: expected more than low_freq_factor, got " + Json(scaling.high_freq_factor).dump());
  }
  return scaling;
}

void ParseRope(const Keys& keys, LlamaConfig* config) {
  constexpr double kMaxTheta = 1e12;
  config->rope_theta = keys.Number("rope_theta", 0, kMaxTheta, 10000);
  const bool has_scaling = keys.Find("rope_scaling") != nullptr;
  if (has_scaling) config->rope_scaling = ParseRopeScaling(keys.Object("rope_scaling"));
  if (keys.Find("rope_parameters") != nullptr) {
    const Keys rope = keys.Object("rope_parameters");
    const double theta = rope.Number("rope_theta", 0, kMaxTheta, config->rope_theta);
    if (keys.Find("rope_theta") != nullptr && theta != config->rope_theta) {
      rope.Fail("rope_theta: expected the rope_theta next to it, got another value");
    }
    const std::optional<Llama3RopeScaling> scaling = ParseRopeScaling(rope);
    if (has_scaling && scaling != config->rope_scaling) {
      rope.Fail("expected what rope_scaling says, got something else");
    }
    config->rope_theta = theta;
    config->rope_scaling = scaling;
  }
  if (keys.Number("partial_rotary_factor", 0, 1e6, 1) != 1) {
    keys.Fail("partial_rotary_factor: expected 1, got another value");
  }
}

void ParseSizes(const Keys& keys, LlamaConfig* config) {
  config->hidden_size = keys.Integer("hidden_size", 1, kMaxWidth);
  config->intermediate_size = keys.Integer("intermediate_size", 1, kMaxWidth);
  config->num_hidden_layers = keys.Integer("num_hidden_layers", 1, kMaxLayers);
  config->num_attention_heads = keys.Integer("num_attention_heads", 1, kMaxWidth);
  config->num_key_value_heads = keys.Integer("num_key_value_heads", 1, kMaxWidth, config->num_attention_heads);
  config->vocab_size = keys.Integer("vocab_size", 1, kMaxVocabulary);
  config->max_position_embeddings = keys.Integer("max_position_embeddings", 1, kMaxPositions);
  if (config->num_attention_heads % config->num_key_value_heads != 0) {
    keys.Fail("num_key_value_heads: expected a divisor of num_attention_heads (" +
              std::to_string(config->num_attention_heads) + "), got " + std::to_string(config->num_key_value_heads));
  }
  if (keys.Find("head_dim") == nullptr && config->hidden_size % config->num_attention_heads != 0) {
    keys.Fail("num_attention_heads: expected a divisor of hidden_size (" + std::to_string(config->hidden_size) +
              ") where head_dim is not given, got " + std::to_string(config->num_attention_heads));
  }
  config->head_dim = keys.Integer("head_dim", 2, kMaxHeadDim, config->hidden_size / config->num_attention_heads);
  if (config->head_dim % 2 != 0 || config->head_dim > kMaxHeadDim) {
    keys.Fail("head_dim: expected an even number up to " + std::to_string(kMaxHeadDim) + ", got " +
              std::to_string(config->head_dim));
  }
  if (config->num_attention_heads * config->head_dim > kMaxWidth) {
    keys.Fail("num_attention_heads * head_dim: expected at most " + std::to_string(kMaxWidth) + ", got " +
              std::to_string(config->num_attention_heads * config->head_dim));
  }
}

void AddIds(const std::vector<int32_t>& ids, std::vector<int32_t>* to) {
  for (const int32_t id : ids) {
    if (std::find(to->begin(), to->end(), id) == to->end()) to->push_back(id);
  }
}

}  // namespace

LlamaConfig ParseLlamaConfig(std::string_view config_json, std::string_view generation_config_json,
                             const std::string& where) {
  const std::string config_file = where + "/config.json";
  const Json json = ParseBoundedJson(config_json, config_file);
  const Keys keys(json, config_file);
  CheckArchitecture(keys);
  LlamaConfig config;
  ParseSizes(keys, &config);
  ParseRope(keys, &config);
  // Absent keys mean what transformers' LlamaConfig makes of them.
  config.rms_norm_eps = keys.Number("rms_norm_eps", 0, 1, 1e-6);
  config.tie_word_embeddings = keys.Boolean("tie_word_embeddings", false);
  config.bos_token_id = static_cast<int32_t>(
      keys.Integer("bos_token_id", 0, config.vocab_size - 1, std::min<int64_t>(1, config.vocab_size - 1)));
  config.eos_token_ids = keys.Ids("eos_token_id", config.vocab_size);
  if (!json.contains("eos_token_id") && config.vocab_size > 2) config.eos_token_ids = {2};
  if (!generation_config_json.empty()) {
    const std::string generation_file = where + "/generation_config.json";
    const Json generation = ParseBoundedJson(generation_config_json, generation_file);
    AddIds(Keys(generation, generation_file).Ids("eos_token_id", config.vocab_size), &config.eos_token_ids);
  }
  return config;
}

int64_t LinearParameters(const LlamaConfig& config) {
  const int64_t q_rows = config.num_attention_heads * config.head_dim;
  const int64_t kv_rows = config.num_key_value_heads * config.head_dim;
  return config.num_hidden_layers * config.hidden_size * (2 * q_rows + 2 * kv_rows + 3 * config.intermediate_size);
}

int64_t TotalParameters(const LlamaConfig& config) {
  int64_t total = 0;
  for (const LlamaTensor& tensor : LlamaTensors(config)) {
    int64_t numel = 1;
    for (const int64_t dim : tensor.shape) numel *= dim;
    total += numel;
  }
  return total;
}

}  // namespace stoch
