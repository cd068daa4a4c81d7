// SPDX-License-Identifier: Apache-2.0
// config.json of families whose blocks differ from Llama's.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "loader/config/decoder_config.h"
#include "tests/loader/config/config_samples.h"

namespace stoch {
namespace {

using nlohmann::json;
using test::ExpectRefused;
using test::Parse;
using test::With;

// microsoft/Phi-4-mini-instruct, as published; of its 48 factors each is one number here.
json Phi4Mini() {
  json config = json::parse(R"({
  "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
               "AutoTokenizer": "Xenova/gpt-4o"},
  "bos_token_id": 199999, "embd_pdrop": 0.0, "eos_token_id": 199999, "full_attn_mod": 1, "hidden_act": "silu",
  "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 8192, "interpolate_factor": 1,
  "lm_head_bias": false, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "phi3",
  "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "original_max_position_embeddings": 4096, "pad_token_id": 199999, "partial_rotary_factor": 0.75, "resid_pdrop": 0.0,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "transformers_version": "4.45.0", "use_cache": true, "vocab_size": 200064})");
  config["rope_scaling"] = {{"type", "longrope"},
                            {"short_factor", std::vector<double>(48, 1.0)},
                            {"long_factor", std::vector<double>(48, 2.5)}};
  return config;
}

TEST(DecoderConfig, Phi4MiniIsReadAsPublished) {
  const DecoderConfig config = Parse(Phi4Mini());
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.RotaryDim(), 96);
  EXPECT_EQ(config.max_position_embeddings, 4096);  // longer sequences would turn by long_factor
  EXPECT_TRUE(config.windows.empty());              // none is shorter than the context
  EXPECT_EQ(TotalParameters(config), 3'836'021'760);
  const auto& scaling = std::get<LongRopeScaling>(*config.rope_scaling);
  EXPECT_EQ(scaling.short_factor, std::vector<double>(48, 1.0));
  EXPECT_NEAR(scaling.attention_factor, 1.1902380714238083, 1e-12);  // sqrt(1 + ln 32 / ln 4096)
  // As transformers 5 writes it, and the older name of the type.
  json newer = Phi4Mini();
  newer["rope_parameters"] = newer["rope_scaling"];
  newer["rope_parameters"]["original_max_position_embeddings"] = 4096;
  newer["rope_parameters"]["partial_rotary_factor"] = 0.75;
  newer["rope_parameters"]["type"] = "su";
  for (const char* key : {"rope_scaling", "original_max_position_embeddings", "partial_rotary_factor"})
    newer.erase(key);
  EXPECT_EQ(Parse(newer).rope_scaling, config.rope_scaling);
  EXPECT_EQ(Parse(newer).RotaryDim(), 96);
  EXPECT_EQ(Parse(newer).max_position_embeddings, 4096);
}

// What absent keys of SmolLM3 mean, and its list.
TEST(DecoderConfig, SmolLM3LeavesRopeOut) {
  json config = With("model_type", "smollm3");
  config["architectures"] = {"SmolLM3ForCausalLM"};
  config["num_hidden_layers"] = 8;
  EXPECT_EQ(Parse(config).rope_layers, (std::vector<bool>{true, true, true, false, true, true, true, false}));
  EXPECT_TRUE(Parse(config).tie_word_embeddings);
  EXPECT_EQ(Parse(config).rope_theta, 2e6);
  config["no_rope_layer_interval"] = 3;
  EXPECT_EQ(Parse(config).rope_layers, (std::vector<bool>{true, true, false, true, true, false, true, true}));
  config["no_rope_layers"] = {1, 0, 1, 1, 1, 1, 1, 0};
  EXPECT_EQ(Parse(config).rope_layers, (std::vector<bool>{true, false, true, true, true, true, true, false}));
  config["no_rope_layers"] = {1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_TRUE(Parse(config).rope_layers.empty());
  config["no_rope_layers"] = {1, 0};
  ExpectRefused(config, {"no_rope_layers", "expected 8 numbers", "got 2"});
  config["no_rope_layers"] = {1, 0, 1, 1, 1, 1, 1, 2};
  ExpectRefused(config, {"no_rope_layers", "expected 0 to 1", "got 2"});
  config.erase("no_rope_layers");
  config["use_sliding_window"] = true;
  ExpectRefused(config, {"use_sliding_window", "windows of layers without RoPE"});
  ExpectRefused(With("no_rope_layers", {0, 1}), {"\"no_rope_layers\"", "known"});
}

TEST(DecoderConfig, GraniteMultipliesAndOlmo2NormsWhatItAdds) {
  json config = With("model_type", "granite");
  config["architectures"] = {"GraniteForCausalLM"};
  EXPECT_EQ(Parse(config).attention_multiplier, 1);  // not 1 / sqrt(head_dim)
  EXPECT_FALSE(Parse(config).HasBranches());
  config["residual_multiplier"] = 0.22;
  EXPECT_TRUE(Parse(config).HasBranches());
  config["logits_scaling"] = 0;
  ExpectRefused(config, {"logits_scaling", "above 0"});
  ExpectRefused(With("residual_multiplier", 0.22), {"\"residual_multiplier\"", "known"});
  json olmo = With("model_type", "olmo2");
  olmo["architectures"] = {"Olmo2ForCausalLM"};
  EXPECT_TRUE(Parse(olmo).HasBranches());
  EXPECT_TRUE(Parse(olmo).NormsAllHeads());
  EXPECT_EQ(Parse(olmo).attention_multiplier, 0);
}

// google/gemma-2-2b, config.json as published, with two layers.
json Gemma2() {
  return json::parse(R"({
    "architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
    "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
    "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8,
    "num_hidden_layers": 2, "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "float32",
    "transformers_version": "4.42.0.dev0", "use_cache": true, "vocab_size": 256000})");
}

TEST(DecoderConfig, Gemma2IsReadAsPublished) {
  json config = Gemma2();
  const DecoderConfig parsed = Parse(config);
  EXPECT_EQ(parsed.score_cap, 50);
  EXPECT_EQ(parsed.logit_cap, 30);
  EXPECT_EQ(parsed.embedding_multiplier, 48);
  EXPECT_EQ(parsed.attention_multiplier, 0);  // 256 is head_dim
  EXPECT_EQ(parsed.windows, (std::vector<int64_t>{4096, 0}));
  EXPECT_TRUE(parsed.tie_word_embeddings);
  EXPECT_TRUE(parsed.HasGelu() && parsed.HasBranches());
  config["query_pre_attn_scalar"] = 144;
  EXPECT_EQ(Parse(config).attention_multiplier, 1.0 / 12);
  config["attn_logit_softcapping"] = nullptr;
  EXPECT_EQ(Parse(config).score_cap, 0);
  config.erase("final_logit_softcapping");
  EXPECT_EQ(Parse(config).logit_cap, 30);
  config["final_logit_softcapping"] = -1;
  ExpectRefused(config, {"final_logit_softcapping", "above 0"});
  config = Gemma2();
  config["hidden_activation"] = "gelu";
  ExpectRefused(config, {"hidden_activation", "gelu_pytorch_tanh", "got \"gelu\""});
  ExpectRefused(With("hidden_activation", "gelu_pytorch_tanh"), {"hidden_activation", "expected \"silu\""});
  config = Gemma2();
  config["use_bidirectional_attention"] = true;
  ExpectRefused(config, {"use_bidirectional_attention", "causal"});
  ExpectRefused(With("attn_logit_softcapping", 50.0), {"\"attn_logit_softcapping\"", "known"});
}

// The keys of google/gemma-3-1b-it and those of transformers 5 say the same.
TEST(DecoderConfig, Gemma3HasTwoRopes) {
  json config = Gemma2();
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "rope_theta", "cache_implementation"}) {
    config.erase(key);
  }
  config["architectures"] = {"Gemma3ForCausalLM"};
  config["model_type"] = "gemma3_text";
  config["num_hidden_layers"] = 4;
  config["sliding_window"] = 512;
  json older = config;
  older["rope_theta"] = 5e5;
  older["rope_local_base_freq"] = 2e4;
  older["sliding_window_pattern"] = 3;
  older["rope_scaling"] = {{"factor", 8.0}, {"rope_type", "linear"}};
  const DecoderConfig parsed = Parse(older);
  EXPECT_EQ(parsed.windows, (std::vector<int64_t>{512, 512, 0, 512}));
  EXPECT_EQ(parsed.rope_layers, (std::vector<bool>{false, false, true, false}));
  EXPECT_EQ(parsed.rope_theta, 5e5);
  EXPECT_EQ(parsed.local_rope_theta, 2e4);
  EXPECT_EQ(parsed.score_cap, 0);
  EXPECT_EQ(parsed.logit_cap, 0);
  ASSERT_TRUE(parsed.rope_scaling.has_value());

  config["layer_types"] = {"sliding_attention", "sliding_attention", "full_attention", "sliding_attention"};
  config["rope_parameters"] = {
      {"full_attention", {{"rope_theta", 5e5}, {"rope_type", "linear"}, {"factor", 8.0}}},
      {"sliding_attention", {{"rope_theta", 2e4}, {"rope_type", "default"}}},
  };
  const DecoderConfig newer = Parse(config);
  EXPECT_EQ(newer.windows, parsed.windows);
  EXPECT_EQ(newer.rope_layers, parsed.rope_layers);
  EXPECT_EQ(newer.rope_theta, parsed.rope_theta);
  EXPECT_EQ(newer.local_rope_theta, parsed.local_rope_theta);
  EXPECT_EQ(newer.rope_scaling, parsed.rope_scaling);
  config["rope_parameters"]["sliding_attention"]["rope_type"] = "yarn";
  ExpectRefused(config, {"rope_parameters: sliding_attention", "of layers with windows", "got \"yarn\""});
  config["rope_parameters"].erase("sliding_attention");
  ExpectRefused(config, {"rope_parameters", "sliding_attention", "got nothing"});
  // A window as long as the context hides nothing, but its layers keep their RoPE.
  older["max_position_embeddings"] = 512;
  EXPECT_TRUE(Parse(older).windows.empty());
  EXPECT_EQ(Parse(older).rope_layers, parsed.rope_layers);
}

TEST(HostileConfig, PhiRope) {
  const auto with = [](const char* key, const json& value) {
    json config = Phi4Mini();
    config[key] = value;
    return config;
  };
  const auto scaled = [](const char* key, const json& value) {
    json config = Phi4Mini();
    config["rope_scaling"][key] = value;
    return config;
  };
  ExpectRefused(with("partial_rotary_factor", 0.999), {"partial_rotary_factor", "even number of the 128", "got 127"});
  ExpectRefused(with("partial_rotary_factor", 1.5), {"partial_rotary_factor", "even number of the 128", "got 192"});
  ExpectRefused(with("partial_rotary_factor", 0.001), {"partial_rotary_factor", "got 0"});
  ExpectRefused(scaled("partial_rotary_factor", 0.5), {"partial_rotary_factor", "that of config.json"});
  ExpectRefused(scaled("short_factor", {1.0}), {"short_factor", "a list of 48 numbers", "got 1"});
  ExpectRefused(scaled("short_factor", nullptr), {"short_factor", "a list of 48 numbers", "got nothing"});
  ExpectRefused(scaled("long_factor", std::vector<double>(48, 0.0)), {"long_factor", "above 0"});
  ExpectRefused(scaled("long_factor", "48"), {"long_factor", "a list of 48 numbers", "got a string"});
  ExpectRefused(scaled("factor", 8.0), {"factor", "max_position_embeddings / original"});
  ExpectRefused(with("original_max_position_embeddings", nullptr), {"original_max_position_embeddings", "got nothing"});
  ExpectRefused(with("lm_head_bias", true), {"lm_head_bias", "expected false"});
  ExpectRefused(with("auto_map", {{"AutoModelForCausalLM", "modeling.OtherForCausalLM"}}),
                {"auto_map", "of class Phi3ForCausalLM"});
  ExpectRefused(With("rope_scaling", {{"type", "longrope"}}), {"rope_type", "got \"longrope\""});
}

}  // namespace
}  // namespace stoch
