// SPDX-License-Identifier: Apache-2.0
#include "loader/config/parse_rope.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/math/elementary.h"
#include "loader/quote.h"

namespace stoch {
namespace {

using Json = nlohmann::json;

constexpr double kMaxFactor = 1e6;
constexpr double kMaxTheta = 1e12;

double Factor(const ConfigKeys& rope) { return rope.Number("factor", 0, kMaxFactor); }

Llama3RopeScaling ParseLlama3(const ConfigKeys& rope, const DecoderConfig& config) {
  Llama3RopeScaling scaling;
  scaling.factor = Factor(rope);
  scaling.low_freq_factor = rope.Number("low_freq_factor", 0, kMaxFactor);
  scaling.high_freq_factor = rope.Number("high_freq_factor", 0, kMaxFactor);
  scaling.original_max_position_embeddings =
      rope.Number("original_max_position_embeddings", 0, kMaxPositions + 1, config.max_position_embeddings);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    rope.Fail("high_freq_factor: expected more than low_freq_factor, got " + Json(scaling.high_freq_factor).dump());
  }
  return scaling;
}

double YarnMscale(double scale, double mscale) { return scale <= 1 ? 1.0 : 0.1 * mscale * Log(scale) + 1.0; }

YarnRopeScaling ParseYarn(const ConfigKeys& rope, const DecoderConfig& config) {
  const auto positions = static_cast<double>(config.max_position_embeddings);
  YarnRopeScaling scaling;
  scaling.original_max_position_embeddings =
      rope.Number("original_max_position_embeddings", 0, kMaxPositions + 1, positions);
  scaling.factor = rope.Number("factor", 0, kMaxFactor, positions / scaling.original_max_position_embeddings);
  // 0 counts as absent, as in transformers.
  const auto optional = [&rope](const char* key, double fallback) {
    const double value = rope.Number(key, -1e-300, kMaxFactor, fallback);
    return value == 0 ? fallback : value;
  };
  scaling.beta_fast = optional("beta_fast", 32);
  scaling.beta_slow = optional("beta_slow", 1);
  if (scaling.beta_fast < scaling.beta_slow) {
    rope.Fail("beta_fast: expected at least beta_slow, got " + Json(scaling.beta_fast).dump());
  }
  const double mscale = optional("mscale", 0);
  const double mscale_all = optional("mscale_all_dim", 0);
  const bool both = mscale != 0 && mscale_all != 0;
  const double usual = both ? YarnMscale(scaling.factor, mscale) / YarnMscale(scaling.factor, mscale_all)
                            : YarnMscale(scaling.factor, 1);
  scaling.attention_factor = rope.Number("attention_factor", 0, kMaxFactor, usual);
  scaling.truncate = rope.Boolean("truncate", true);
  return scaling;
}

constexpr const char* kOriginal = "original_max_position_embeddings";

LongRopeScaling ParseLongRope(const ConfigKeys& rope, const ConfigKeys& keys, const DecoderConfig& config) {
  const auto pairs = static_cast<size_t>(config.RotaryDim() / 2);
  LongRopeScaling scaling;
  scaling.short_factor = rope.Numbers("short_factor", 0, kMaxFactor, pairs);
  rope.Numbers("long_factor", 0, kMaxFactor, pairs);
  const int64_t original = (rope.Find(kOriginal) != nullptr ? rope : keys).Integer(kOriginal, 2, kMaxPositions);
  const double factor = static_cast<double>(config.max_position_embeddings) / static_cast<double>(original);
  if (rope.Number("factor", 0, kMaxFactor, factor) != factor) {
    rope.Fail("factor: expected max_position_embeddings / original_max_position_embeddings, got another value");
  }
  const double usual = factor <= 1 ? 1.0 : std::sqrt(1 + Log(factor) / Log(static_cast<double>(original)));
  scaling.attention_factor = rope.Number("attention_factor", 0, kMaxFactor, usual);
  scaling.original_max_position_embeddings = original;
  return scaling;
}

// Cut to an integer as transformers does.
void ParseRotaryDim(const ConfigKeys& keys, DecoderConfig* config) {
  constexpr const char* kKey = "partial_rotary_factor";
  if (keys.Find(kKey) == nullptr) return;
  const double factor = keys.Number(kKey, 0, kMaxFactor);
  const std::string given = std::string(kKey) + ": expected ";
  if (factor != 1 && !config->architecture->has_phi_rope) {
    keys.Fail(given + "1, got another value; it needs a RoPE over a part of a head");
  }
  const auto dim = static_cast<int64_t>(static_cast<double>(config->head_dim) * factor);
  if (dim < 2 || dim > config->head_dim || dim % 2 != 0) {
    keys.Fail(given + "an even number of the " + std::to_string(config->head_dim) + " dimensions of a head, got " +
              std::to_string(dim));
  }
  if (config->rotary_dim != 0 && config->rotary_dim != dim) keys.Fail(given + "that of config.json, got another value");
  config->rotary_dim = dim;
}

std::optional<RopeScaling> ParseScaling(const ConfigKeys& rope, const ConfigKeys& keys, DecoderConfig* config) {
  const std::optional<std::string> rope_type = rope.String("rope_type");
  const std::string type = rope.String("type").value_or(rope_type.value_or("default"));
  if (rope_type && *rope_type != type) {
    rope.Fail("rope_type: expected the " + Quoted(type) + " of type, got " + Quoted(*rope_type));
  }
  ParseRotaryDim(rope, config);
  if (config->architecture->has_phi_rope) {
    if (type == "longrope" || type == "su" || type == "yarn") return ParseLongRope(rope, keys, *config);
    rope.Find(kOriginal);  // means nothing without it
  }
  if (type == "default") return std::nullopt;
  if (type == "linear") return LinearRopeScaling{Factor(rope)};
  if (type == "llama3") return ParseLlama3(rope, *config);
  if (type == "yarn") return ParseYarn(rope, *config);
  if (type == "dynamic") {
    // Stretches only sequences longer than max_position_embeddings, which no context here is.
    Factor(rope);
    if (rope.Find("original_max_position_embeddings") != nullptr) {
      rope.Fail(
          "original_max_position_embeddings: expected nothing with rope_type \"dynamic\"; it needs angles that depend "
          "on the length of a sequence");
    }
    return std::nullopt;
  }
  rope.Fail("rope_type: expected \"default\", \"linear\", \"dynamic\", \"llama3\" or \"yarn\", got " + Quoted(type) +
            "; it needs frequencies of its own in models/decoder/rope_table.cc");
}

// The angles that one object describes: rope_scaling, or the newer rope_parameters.
struct Rope {
  double theta = 0;
  std::optional<RopeScaling> scaling;
};

Rope ParseObject(const ConfigKeys& rope, const ConfigKeys& keys, DecoderConfig* config) {
  Rope result{rope.Number("rope_theta", 0, kMaxTheta, config->rope_theta), ParseScaling(rope, keys, config)};
  constexpr std::string_view kMeaningless[] = {"finetuned"};  // whether the weights were trained with the scaling
  rope.RefuseOthers(kMeaningless);
  return result;
}

// The list, or all but each of an interval. Layers without RoPE could have windows of their own.
void ParseRopeLayers(const ConfigKeys& keys, DecoderConfig* config) {
  if (!config->architecture->has_layers_without_rope) return;
  if (keys.Boolean("use_sliding_window", false)) {
    keys.Fail(
        "use_sliding_window: expected false for this model_type, got true; it needs windows of layers without RoPE");
  }
  const int64_t layers = config->num_hidden_layers;
  const int64_t interval = keys.Integer("no_rope_layer_interval", 1, INT32_MAX, 4);
  const std::vector<int64_t> listed = keys.Integers("no_rope_layers", 0, 1, static_cast<size_t>(layers));
  if (keys.Find("no_rope_layers") != nullptr && static_cast<int64_t>(listed.size()) != layers) {
    keys.Fail("no_rope_layers: expected " + std::to_string(layers) + " numbers, one of each layer, got " +
              std::to_string(listed.size()));
  }
  std::vector<bool> has_rope;
  for (int64_t i = 0; i < layers; ++i) {
    has_rope.push_back(listed.empty() ? (i + 1) % interval != 0 : listed[static_cast<size_t>(i)] == 1);
  }
  if (std::find(has_rope.begin(), has_rope.end(), false) != has_rope.end()) config->rope_layers = std::move(has_rope);
}

// rope_parameters with an object for each type of layer, in place of keys of one for all and of one for windows.
ConfigKeys RopeOfFullAttention(const ConfigKeys& object, DecoderConfig* config) {
  constexpr const char* kLocal = "sliding_attention";
  if (object.Find(kLocal) == nullptr) object.Fail(std::string(kLocal) + ": expected an object, got nothing");
  const ConfigKeys local = object.Object(kLocal);
  config->local_rope_theta = local.Number("rope_theta", 0, kMaxTheta, config->local_rope_theta);
  if (const std::string type = local.String("rope_type").value_or("default"); type != "default") {
    local.Fail("rope_type: expected \"default\" of layers with windows, got " + Quoted(type));
  }
  local.RefuseOthers({});
  object.Find("full_attention");
  object.RefuseOthers({});
  return object.Object("full_attention");
}

}  // namespace

void ParseRope(const ConfigKeys& keys, DecoderConfig* config) {
  config->rope_theta = keys.Number("rope_theta", 0, kMaxTheta, config->architecture->default_theta);
  const bool has_theta = keys.Find("rope_theta") != nullptr;
  ParseRotaryDim(keys, config);
  ParseRopeLayers(keys, config);
  if (config->architecture->has_phi_rope) keys.Find(kOriginal);
  const double local = config->architecture->default_local_theta;
  if (local > 0) config->local_rope_theta = keys.Number("rope_local_base_freq", 0, kMaxTheta, local);
  std::optional<Rope> first;  // where both objects are there, as for old and new readers, they must agree
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (keys.Find(key) == nullptr) continue;
    const ConfigKeys whole = keys.Object(key);
    const bool is_by_type = local > 0 && whole.Find("full_attention") != nullptr;
    const ConfigKeys object = is_by_type ? RopeOfFullAttention(whole, config) : whole;
    const Rope rope = ParseObject(object, keys, config);
    if (has_theta && rope.theta != config->rope_theta) {
      object.Fail("rope_theta: expected the rope_theta next to it, got another value");
    }
    if (first && rope.scaling != first->scaling) object.Fail("expected what rope_scaling says, got something else");
    config->rope_theta = rope.theta;
    config->rope_scaling = rope.scaling;
    first = rope;
  }
  if (!config->rope_scaling) return;
  if (const auto* longrope = std::get_if<LongRopeScaling>(&*config->rope_scaling)) {
    config->max_position_embeddings =
        std::min(config->max_position_embeddings, longrope->original_max_position_embeddings);
  }
  if (std::holds_alternative<YarnRopeScaling>(*config->rope_scaling) && config->rope_theta <= 1) {
    keys.Fail("rope_theta: expected more than 1 with rope_type \"yarn\", got " + Json(config->rope_theta).dump());
  }
}

}  // namespace stoch
