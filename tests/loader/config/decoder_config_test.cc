// SPDX-License-Identifier: Apache-2.0
// config.json of the families, and every key that can be wrong in one.

#include "loader/config/decoder_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "loader/config/decoder_tensors.h"
#include "tests/loader/config/config_samples.h"
#include "tests/support/expect_invalid.h"

namespace stoch {
namespace {

using nlohmann::json;
using test::Base;
using test::ExpectInvalid;
using test::ExpectRefused;
using test::Parse;
using test::With;

// meta-llama/Llama-3.2-1B, config.json as published.
constexpr const char* kLlama32 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
  "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
  "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0",
  "use_cache": true, "vocab_size": 128256})";

// meta-llama/Llama-2-7b-hf.
constexpr const char* kLlama2 = R"({
  "_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1,
  "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008,
  "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "tie_word_embeddings": false, "torch_dtype": "float16", "transformers_version": "4.31.0.dev0", "use_cache": true,
  "vocab_size": 32000})";

void ExpectSameShape(const DecoderConfig& a, const DecoderConfig& b) {
  EXPECT_EQ(a.hidden_size, b.hidden_size);
  EXPECT_EQ(a.intermediate_size, b.intermediate_size);
  EXPECT_EQ(a.num_hidden_layers, b.num_hidden_layers);
  EXPECT_EQ(a.num_attention_heads, b.num_attention_heads);
  EXPECT_EQ(a.num_key_value_heads, b.num_key_value_heads);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.vocab_size, b.vocab_size);
  EXPECT_EQ(a.max_position_embeddings, b.max_position_embeddings);
  EXPECT_EQ(a.rms_norm_eps, b.rms_norm_eps);
  EXPECT_EQ(a.rope_theta, b.rope_theta);
  EXPECT_EQ(a.rope_scaling, b.rope_scaling);
  EXPECT_EQ(a.tie_word_embeddings, b.tie_word_embeddings);
  EXPECT_EQ(a.bos_token_id, b.bos_token_id);
  EXPECT_EQ(a.eos_token_ids, b.eos_token_ids);
}

TEST(DecoderConfig, PublishedConfigsAreTheNamedShapes) {
  const DecoderConfig llama32 = ParseDecoderConfig(kLlama32, "", "model");
  EXPECT_EQ(llama32.rope_scaling, RopeScaling(Llama3RopeScaling{32, 1, 4, 8192}));
  ExpectSameShape(llama32, NamedDecoderConfig("llama-3.2-1b"));
  ExpectSameShape(ParseDecoderConfig(kLlama2, "", "model"), NamedDecoderConfig("llama-2-7b"));
}

TEST(DecoderConfig, NamedShapesHaveThePublishedParameterCounts) {
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("llama-3.2-1b")), 1'235'814'400);
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("llama-3.1-8b")), 8'030'261'248);
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("llama-3.1-70b")), 70'553'706'496);
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("llama-2-7b")), 6'738'415'616);
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("tinyllama-1.1b")), 1'100'048'384);
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("mistral-7b")), 7'241'732'096);
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("qwen2.5-7b")), 7'615'616'512);
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("qwen3-4b")), 4'022'468'096);
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("qwen3-30b-a3b")), 30'532'122'624);
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("llama-3.1-405b")), 405'853'388'800);
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("mixtral-8x7b")), 46'702'792'704);
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("phi-3-mini")), 3'821'079'552);
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("phi-4")), 14'659'507'200);
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("smollm3-3b")), 3'075'098'624);
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("granite-3.1-8b")), 8'170'848'256);
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("olmo2-7b")), 7'298'617'344);
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("gemma-2-2b")), 2'614'341'888);
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("gemma-2-9b")), 9'241'705'984);
  EXPECT_EQ(TotalParameters(NamedDecoderConfig("gemma-3-1b")), 999'885'952);
  EXPECT_EQ(NamedDecoderConfigs().size(), 19u);
  ExpectInvalid([] { NamedDecoderConfig("llama-9"); }, {"llama-3.2-1b, llama-3.1-8b", "got \"llama-9\""});
}

TEST(DecoderConfig, LinearParametersAreTheMatricesOfTheLayers) {
  for (const std::string_view name : NamedDecoderConfigs()) {
    const DecoderConfig config = NamedDecoderConfig(name);
    int64_t sum = 0;
    for (const DecoderTensor& tensor : DecoderTensors(config)) {
      const bool in_layer = tensor.name.starts_with("model.layers.");
      const bool router = config.architecture->has_experts &&
                          tensor.name.ends_with(std::string(config.architecture->router) + ".weight");
      if (in_layer && !router && tensor.shape.size() == 2) sum += tensor.shape[0] * tensor.shape[1];
    }
    EXPECT_EQ(LinearParameters(config), sum) << name;
  }
}

TEST(DecoderConfig, AbsentKeysMeanWhatTransformersMakesOfThem) {
  for (const json& config : {Base(), With("num_key_value_heads", nullptr), With("head_dim", nullptr)}) {
    const DecoderConfig parsed = Parse(config);
    EXPECT_EQ(parsed.num_key_value_heads, 8);
    EXPECT_EQ(parsed.head_dim, 8);
    EXPECT_EQ(parsed.rms_norm_eps, 1e-6);
    EXPECT_EQ(parsed.rope_theta, 10000);
    EXPECT_FALSE(parsed.rope_scaling.has_value());
    EXPECT_FALSE(parsed.tie_word_embeddings);
    EXPECT_EQ(parsed.bos_token_id, 1);
    EXPECT_EQ(parsed.eos_token_ids, std::vector<int32_t>{2});
  }
}

TEST(DecoderConfig, HeadDimNeedNotBeHiddenOverHeads) {
  EXPECT_EQ(Parse(With("head_dim", 32)).head_dim, 32);
  EXPECT_EQ(Parse(With("head_dim", 32)).hidden_size, 64);
}

TEST(DecoderConfig, EndTokensMayBeOneAListOrNone) {
  EXPECT_EQ(Parse(With("eos_token_id", 7)).eos_token_ids, std::vector<int32_t>{7});
  EXPECT_EQ(Parse(With("eos_token_id", {7, 5, 7})).eos_token_ids, (std::vector<int32_t>{7, 5, 7}));
  EXPECT_TRUE(Parse(With("eos_token_id", nullptr)).eos_token_ids.empty());
}

TEST(DecoderConfig, GenerationConfigAddsItsEndTokensOnce) {
  const json config = With("eos_token_id", 7);
  EXPECT_EQ(Parse(config, R"({"eos_token_id": [9, 7, 5], "temperature": 0.6})").eos_token_ids,
            (std::vector<int32_t>{7, 9, 5}));
  EXPECT_EQ(Parse(config, R"({"eos_token_id": 8})").eos_token_ids, (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(Parse(config, "{}").eos_token_ids, std::vector<int32_t>{7});
  ExpectInvalid([&] { Parse(config, R"({"eos_token_id": 96})"); },
                {"model/generation_config.json: eos_token_id", "got 96"});
  ExpectInvalid([&] { Parse(config, "[]"); }, {"model/generation_config.json: ", "an array"});
}

TEST(DecoderConfig, RopeParametersAreTheNewerFormOfTheSame) {
  const json llama3 = {{"rope_theta", 500000.0}, {"rope_type", "llama3"},   {"factor", 8.0},
                       {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
  const DecoderConfig parsed = Parse(With("rope_parameters", llama3));
  EXPECT_EQ(parsed.rope_theta, 500000);
  EXPECT_EQ(parsed.rope_scaling, RopeScaling(Llama3RopeScaling{8, 1, 4, 8192}));
  const DecoderConfig plain = Parse(With("rope_parameters", {{"rope_theta", 5000}, {"rope_type", "default"}}));
  EXPECT_EQ(plain.rope_theta, 5000);
  EXPECT_FALSE(plain.rope_scaling.has_value());
  // Both forms at once, as a checkpoint for old and new readers may have them, must agree.
  json both = With("rope_parameters", llama3);
  both["rope_theta"] = 500000.0;
  both["rope_scaling"] = llama3;
  both["rope_scaling"].erase("rope_theta");
  EXPECT_EQ(Parse(both).rope_scaling, parsed.rope_scaling);
  both["rope_scaling"]["factor"] = 9;
  ExpectRefused(both, {"rope_parameters", "expected what rope_scaling says"});
  both = With("rope_parameters", llama3);
  both["rope_theta"] = 10000.0;
  ExpectRefused(both, {"rope_parameters", "rope_theta"});
}

TEST(DecoderConfig, OlderSpellingsOfRopeScaling) {
  EXPECT_FALSE(Parse(With("rope_scaling", {{"type", "default"}})).rope_scaling.has_value());
  const json old = {{"type", "llama3"},
                    {"factor", 8},
                    {"low_freq_factor", 1},
                    {"high_freq_factor", 4},
                    {"original_max_position_embeddings", 8192}};
  EXPECT_TRUE(Parse(With("rope_scaling", old)).rope_scaling.has_value());
}

json Family(const char* model_type) { return With("model_type", model_type); }

TEST(DecoderConfig, FamiliesHaveTheirOwnDefaults) {
  json config = Family("qwen3");
  config["num_attention_heads"] = 64;
  EXPECT_EQ(Parse(config).head_dim, 128);
  EXPECT_EQ(Parse(config).num_key_value_heads, 32);
  EXPECT_TRUE(Parse(config).eos_token_ids.empty());
  config["num_key_value_heads"] = nullptr;
  EXPECT_EQ(Parse(config).num_key_value_heads, 64);
  EXPECT_EQ(Parse(Family("mistral")).eos_token_ids, std::vector<int32_t>{2});
  json windowed = Family("mistral");
  windowed["max_position_embeddings"] = 4097;
  EXPECT_EQ(Parse(windowed).WindowOf(1), 4096);
  windowed["max_position_embeddings"] = 4096;  // no position is as far from another
  EXPECT_TRUE(Parse(windowed).windows.empty());
}

TEST(DecoderConfig, BiasesFollowTheFamilyAndItsKeys) {
  const auto biases = [](const DecoderConfig& parsed) {
    std::string text;
    for (const BlockGroup group : kBlockGroups) text += parsed.HasBias(group) ? '1' : '0';
    return text;
  };
  json qwen2 = Family("qwen2");
  qwen2["num_key_value_heads"] = 2;
  EXPECT_EQ(biases(Parse(qwen2)), "1000");
  EXPECT_EQ(biases(Parse(Base())), "0000");
  EXPECT_EQ(biases(Parse(With("attention_bias", true))), "1100");
  EXPECT_EQ(biases(Parse(With("mlp_bias", true))), "0011");
}

TEST(DecoderConfig, SlidingWindows) {
  json config = Family("mistral");
  config["sliding_window"] = 32;
  EXPECT_EQ(Parse(config).windows, (std::vector<int64_t>{32, 32}));
  config["sliding_window"] = nullptr;
  EXPECT_TRUE(Parse(config).windows.empty());
  config["sliding_window"] = 0;
  ExpectRefused(config, {"sliding_window", "got 0"});

  config = Family("qwen2");
  config["num_key_value_heads"] = 2;
  config["sliding_window"] = 32;
  config["max_window_layers"] = 1;
  EXPECT_TRUE(Parse(config).windows.empty());  // without use_sliding_window the number means nothing
  config["use_sliding_window"] = true;
  EXPECT_EQ(Parse(config).windows, (std::vector<int64_t>{0, 32}));
  config["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(Parse(config).windows, (std::vector<int64_t>{32, 0}));
  config["layer_types"] = {"sliding_attention", "chunked_attention"};
  ExpectRefused(config, {"layer_types", "chunked_attention", "needs an attention of that kind"});
  config["layer_types"] = {"full_attention"};
  ExpectRefused(config, {"layer_types", "a list of 2 names", "got 1"});
  config["layer_types"] = {"sliding_attention", "full_attention"};
  config["use_sliding_window"] = false;
  ExpectRefused(config, {"layer_types", "without a sliding window"});
  ExpectRefused(With("layer_types", {"sliding_attention", "full_attention"}), {"layer_types"});
}

TEST(DecoderConfig, Experts) {
  json config = Family("qwen3_moe");
  config["num_attention_heads"] = 4;
  config["num_hidden_layers"] = 4;
  config["num_experts"] = 8;
  config["num_experts_per_tok"] = 2;
  config["moe_intermediate_size"] = 48;
  DecoderConfig parsed = Parse(config);
  EXPECT_EQ(parsed.sparse_layers, (std::vector<bool>{true, true, true, true}));
  EXPECT_FALSE(parsed.HasDenseLayers());
  EXPECT_FALSE(parsed.norm_topk_prob);
  config["mlp_only_layers"] = {1};
  config["decoder_sparse_step"] = 2;
  parsed = Parse(config);
  EXPECT_EQ(parsed.sparse_layers, (std::vector<bool>{false, false, false, true}));
  EXPECT_TRUE(parsed.HasDenseLayers());
  config["mlp_only_layers"] = {4};
  ExpectRefused(config, {"mlp_only_layers", "got 4"});
  config.erase("mlp_only_layers");
  config["num_local_experts"] = 8;
  EXPECT_EQ(Parse(config).num_experts, 8);
  config["num_local_experts"] = 9;
  ExpectRefused(config, {"num_experts", "num_local_experts"});
  config.erase("num_experts");
  config["num_experts_per_tok"] = 10;
  ExpectRefused(config, {"num_experts_per_tok", "1 to 9", "got 10"});
  config["num_local_experts"] = 4097;
  ExpectRefused(config, {"num_local_experts", "got 4097"});
  config["num_local_experts"] = 4096;
  config["num_hidden_layers"] = 17;
  ExpectRefused(config, {"num_local_experts", "experts in all layers"});
}

TEST(DecoderConfig, WindowsWithExpertsAreThoseThatBothTransformersMean) {
  json config = Family("qwen3_moe");
  config["num_attention_heads"] = 4;
  config["use_sliding_window"] = false;
  config["sliding_window"] = 32;
  config["max_window_layers"] = 1;
  EXPECT_TRUE(Parse(config).windows.empty());
  config["use_sliding_window"] = true;
  ExpectRefused(config, {"max_window_layers", "expected 0 or nothing", "transformers 5"});
  config["max_window_layers"] = 0;
  EXPECT_EQ(Parse(config).windows, (std::vector<int64_t>{32, 32}));
  config["layer_types"] = {"sliding_attention", "full_attention"};
  ExpectRefused(config, {"layer_types", "what sliding_window says"});
}

// A key that would be ignored could change what the model computes.
TEST(DecoderConfig, KeysOfUnknownMeaningAreRefused) {
  ExpectRefused(With("logit_scale", 0.25), {"\"logit_scale\"", "whose meaning is known", "got 0.25", "taken out"});
  ExpectRefused(With("auto_map", {{"AutoModelForCausalLM", "code.Model"}}),
                {"auto_map", "of class LlamaForCausalLM", "code.Model"});
  ExpectRefused(With("is_causal_not", true), {"\"is_causal_not\"", "got true"});
  ExpectRefused(With("num_experts", 8), {"\"num_experts\"", "got 8"});  // Llama has none
  ExpectRefused(With("note", std::string(100, 'x')), {"\"note\"", "got a string"});
  // What a family is anyway may be said, what it is not is refused; false would pass as a feature that is off.
  json coder = Family("qwen3_moe");
  coder["num_attention_heads"] = 4;
  coder["qkv_bias"] = false;
  coder["use_qk_norm"] = true;
  coder["is_causal"] = true;
  EXPECT_NO_THROW(Parse(coder));
  ExpectRefused(With("use_qk_norm", true), {"use_qk_norm", "expected false", "decoder of that kind"});
  ExpectRefused(With("qkv_bias", true), {"qkv_bias", "expected false"});
  ExpectRefused(With("is_causal", false), {"is_causal", "expected true"});
  // What is off or empty, names for people, and keys of training and tools.
  for (const json& off : {json(nullptr), json(false), json(0), json(0.0), json(""), json::array(), json::object()}) {
    EXPECT_NO_THROW(Parse(With("some_feature", off))) << off;
  }
  for (const char* key :
       {"_name_or_path", "_attn_implementation_autoset", "transformers_version", "attention_dropout",
        "router_aux_loss_coef", "is_llama_config", "sliding_window", "max_window_layers", "unsloth_version"}) {
    EXPECT_NO_THROW(Parse(With(key, 0.5))) << key;
  }
  const json linear = {{"rope_type", "linear"}, {"factor", 2.0}};
  const auto rope = [&](const char* key, const json& value) {
    json object = linear;
    object[key] = value;
    return object;
  };
  ExpectRefused(With("rope_scaling", rope("mrope_section", {16, 24, 24})),
                {"rope_scaling: \"mrope_section\"", "known"});
  ExpectRefused(With("rope_parameters", rope("full_attention", {{"rope_theta", 1e6}})), {"\"full_attention\""});
  ExpectRefused(With("rope_scaling", rope("type", "yarn")), {"rope_type", "expected the \"yarn\" of type"});
  EXPECT_EQ(Parse(With("rope_scaling", rope("rope_theta", 5000))).rope_theta, 5000);
  EXPECT_NO_THROW(Parse(With("rope_scaling", rope("finetuned", true))));
}

TEST(DecoderConfig, RopeScalingsOfTheFamilies) {
  EXPECT_EQ(Parse(With("rope_scaling", {{"type", "linear"}, {"factor", 2.0}})).rope_scaling,
            RopeScaling(LinearRopeScaling{2}));
  // Dynamic scaling begins beyond max_position_embeddings, where no context goes.
  EXPECT_FALSE(Parse(With("rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}})).rope_scaling.has_value());
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
  YarnRopeScaling expected{4, 32, 32, 1, 1.1386294361119891, true};
  EXPECT_EQ(Parse(With("rope_scaling", yarn)).rope_scaling, RopeScaling(expected));
  json more = yarn;
  more["mscale"] = 1.0;
  more["mscale_all_dim"] = 1.0;
  more["truncate"] = false;
  more["beta_fast"] = 16;
  expected = {4, 32, 16, 1, 1.0, false};
  EXPECT_EQ(Parse(With("rope_scaling", more)).rope_scaling, RopeScaling(expected));
  more["attention_factor"] = 1.5;
  expected.attention_factor = 1.5;
  EXPECT_EQ(Parse(With("rope_scaling", more)).rope_scaling, RopeScaling(expected));
  more["beta_fast"] = 0.5;
  ExpectRefused(With("rope_scaling", more), {"beta_fast", "at least beta_slow"});
  json flat = With("rope_scaling", yarn);
  flat["rope_theta"] = 1;
  ExpectRefused(flat, {"rope_theta", "more than 1"});
  json dynamic = {{"type", "dynamic"}, {"factor", 2.0}, {"original_max_position_embeddings", 32}};
  ExpectRefused(With("rope_scaling", dynamic), {"original_max_position_embeddings", "length of a sequence"});
}

TEST(HostileConfig, UnknownArchitecture) {
  ExpectRefused(With("model_type", "mamba2"), {"model_type", "expected \"llama\", \"qwen2\"", "got \"mamba2\"",
                                               "needs a row in loader/config/architecture.cc"});
  json other = With("model_type", "qwen2");
  other["architectures"] = {"LlamaForCausalLM"};
  ExpectRefused(other, {"architectures", "expected [\"Qwen2ForCausalLM\"]", "got \"[\"LlamaForCausalLM"});
  ExpectRefused(With("model_type", 3), {"model_type", "expected a string", "got an integer"});
  ExpectRefused(With("architectures", {"GPT2LMHeadModel"}), {"architectures", "LlamaForCausalLM", "GPT2LMHeadModel"});
  ExpectRefused(With("architectures", json::array()), {"architectures", "LlamaForCausalLM"});
  json config = Base();
  config.erase("model_type");
  ExpectRefused(config, {"model_type", "neither"});
  config["architectures"] = {"LlamaForCausalLM"};
  EXPECT_NO_THROW(Parse(config));
}

TEST(HostileConfig, UnsupportedFeatures) {
  ExpectRefused(With("hidden_act", "gelu"), {"hidden_act", "expected \"silu\"", "got \"gelu\""});
  json mistral = With("model_type", "mistral");
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    mistral[key] = true;
    ExpectRefused(mistral, {key, "expected false for this model_type", "got true", "needs a row"});
    mistral.erase(key);
  }
  ExpectRefused(With("mlp_bias", 1), {"mlp_bias", "expected a boolean", "got an integer"});
  ExpectRefused(With("quantization_config", {{"bits", 4}}), {"quantization_config", "quant_method", "got nothing"});
  ExpectRefused(With("quantization_config", {{"quant_method", "hqq"}}), {"\"hqq\"", "GGUF", "stoch.torch.patch"});
  ExpectRefused(With("partial_rotary_factor", 0.5), {"partial_rotary_factor", "expected 1"});
}

TEST(HostileConfig, MissingSizes) {
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                          "max_position_embeddings"}) {
    json config = Base();
    config.erase(key);
    ExpectRefused(config, {key, "expected an integer", "got nothing"});
    config[key] = nullptr;
    ExpectRefused(config, {key, "expected an integer", "got nothing"});
  }
}

TEST(HostileConfig, SizesOutOfRange) {
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings"}) {
    for (const json& value : {json(0), json(-1), json(INT64_MIN), json(INT64_MAX), json(UINT64_MAX), json(1 << 30)}) {
      ExpectRefused(With(key, value), {key, "expected", "got " + value.dump()});
    }
    ExpectRefused(With(key, 64.0), {key, "expected an integer", "got a fraction"});
    ExpectRefused(With(key, "64"), {key, "expected an integer", "got a string"});
    ExpectRefused(With(key, {64}), {key, "expected an integer", "got an array"});
    ExpectRefused(With(key, true), {key, "expected an integer", "got a boolean"});
  }
}

TEST(HostileConfig, SizesThatDoNotFitTogether) {
  ExpectRefused(With("num_key_value_heads", 3), {"num_key_value_heads", "divisor of num_attention_heads (8)", "got 3"});
  ExpectRefused(With("num_key_value_heads", 16), {"num_key_value_heads", "got 16"});
  ExpectRefused(With("num_attention_heads", 7), {"num_attention_heads", "divisor of hidden_size (64)", "got 7"});
  ExpectRefused(With("head_dim", 15), {"head_dim", "even", "got 15"});
  ExpectRefused(With("num_attention_heads", 64), {"head_dim", "even", "got 1"});
  json config = With("head_dim", 4096);
  config["num_attention_heads"] = 2048;
  ExpectRefused(config, {"num_attention_heads * head_dim", "got 8388608"});
}

TEST(HostileConfig, RopeScalingThatIsNotSupportedOrIncomplete) {
  ExpectRefused(With("rope_scaling", {{"type", "longrope"}, {"factor", 2.0}}),
                {"rope_scaling", "\"llama3\"", "got \"longrope\"", "rope_table.cc"});
  ExpectRefused(With("rope_scaling", {{"rope_type", "linear"}}), {"rope_scaling", "factor", "got nothing"});
  ExpectRefused(With("rope_scaling", 2.0), {"rope_scaling", "expected an object", "got a fraction"});
  ExpectRefused(With("rope_parameters", {{"rope_type", "dynamic"}}), {"rope_parameters", "factor", "got nothing"});
  const json full = {{"rope_type", "llama3"},
                     {"factor", 8.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0},
                     {"original_max_position_embeddings", 8192}};
  EXPECT_NO_THROW(Parse(With("rope_scaling", full)));
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    json scaling = full;
    scaling.erase(key);
    if (key == std::string_view("original_max_position_embeddings")) {  // as long as the context then
      EXPECT_EQ(Parse(With("rope_scaling", scaling)).rope_scaling, RopeScaling(Llama3RopeScaling{8, 1, 4, 128}));
    } else {
      ExpectRefused(With("rope_scaling", scaling), {"rope_scaling", key, "got nothing"});
    }
    for (const json& value : {json(0), json(-1.0), json(1e300), json("8")}) {
      scaling[key] = value;
      ExpectRefused(With("rope_scaling", scaling), {"rope_scaling", key, "expected a number"});
    }
  }
  json swapped = full;
  swapped["low_freq_factor"] = 4.0;
  ExpectRefused(With("rope_scaling", swapped), {"high_freq_factor", "more than low_freq_factor"});
}

TEST(HostileConfig, NumbersOutOfRange) {
  for (const json& value : {json(0), json(-1e-5), json(1), json("1e-5"), json(true)}) {
    ExpectRefused(With("rms_norm_eps", value), {"rms_norm_eps", "expected a number"});
  }
  for (const json& value : {json(0.0), json(-10000), json(1e13), json(json::array())}) {
    ExpectRefused(With("rope_theta", value), {"rope_theta", "expected a number"});
  }
}

TEST(HostileConfig, TokenIdsOutOfRange) {
  ExpectRefused(With("bos_token_id", 96), {"bos_token_id", "0 to 95", "got 96"});
  ExpectRefused(With("bos_token_id", -1), {"bos_token_id", "got -1"});
  ExpectRefused(With("eos_token_id", 96), {"eos_token_id", "0 to 95", "got 96"});
  ExpectRefused(With("eos_token_id", {2, -1}), {"eos_token_id", "got -1"});
  ExpectRefused(With("eos_token_id", {2, "3"}), {"eos_token_id", "expected an integer", "got a string"});
  ExpectRefused(With("eos_token_id", std::vector<int>(257, 2)), {"eos_token_id", "at most 256 ids", "got 257"});
}

void ExpectTextRefused(const std::string& text, std::initializer_list<std::string_view> parts) {
  ExpectInvalid([&] { ParseDecoderConfig(text, "", "model"); }, parts);
  ExpectInvalid([&] { ParseDecoderConfig(text, "", "model"); }, {"model/config.json: "});
}

TEST(HostileConfig, TextThatIsNotJson) {
  ExpectTextRefused("", {"expected JSON"});
  ExpectTextRefused("{\"hidden_size\": 64,", {"expected JSON", "at byte"});
  ExpectTextRefused("{} x", {"expected JSON", "at byte 4"});
  ExpectTextRefused("{\"a\": \"\xff\"}", {"expected JSON", "at byte 8"});
  ExpectTextRefused("{\"a\": 1e999}", {"a double can hold"});
  ExpectTextRefused(std::string("{}\0{}", 5), {"zero byte at byte 2"});
  ExpectTextRefused("[]", {"expected an object", "got an array"});
  ExpectTextRefused("null", {"expected an object", "got null"});
}

TEST(HostileConfig, DeepNesting) {
  ExpectTextRefused("{\"a\":" + std::string(1'000'000, '['), {"nested at most 32 deep"});
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  ExpectTextRefused(objects, {"nested at most 32 deep"});
}

TEST(HostileConfig, KeyGivenTwice) {
  ExpectTextRefused(R"({"hidden_size": 64, "hidden_size": 65})", {"\"hidden_size\"", "given twice"});
  ExpectTextRefused(R"({"a": {"b": 1, "\u0062": 2}})", {"\"b\"", "given twice"});
}

}  // namespace
}  // namespace stoch
