// SPDX-License-Identifier: Apache-2.0
// Parts of the shapes behind random:NAME.

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "loader/config/decoder_config.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/tiny_model.h"

namespace stoch {
namespace {

using test::ExpectInvalid;

TEST(NamedConfigs, ShapesMayHaveFewerLayersAndTokens) {
  const DecoderConfig whole = NamedDecoderConfig("llama-3.1-405b");
  const DecoderConfig cut = NamedDecoderConfig("llama-3.1-405b,layers=2,vocab=512");
  EXPECT_EQ(LinearParameters(cut) * 126, LinearParameters(whole) * 2);
  EXPECT_EQ(cut.vocab_size, 512);
  EXPECT_EQ(cut.bos_token_id, 0);
  EXPECT_TRUE(cut.eos_token_ids.empty());
  EXPECT_EQ(NamedDecoderConfig("mistral-7b,layers=3").windows.size(), 3u);
  EXPECT_EQ(NamedDecoderConfig("qwen3-30b-a3b,vocab=151936,layers=1").sparse_layers.size(), 1u);
  const auto refused = [](const std::string& name, const std::string& part) {
    ExpectInvalid([&] { NamedDecoderConfig(name); }, {name, part});
  };
  refused("llama-3.2-1b,layers=17", "layers = \"17\": allowed is 1..16");
  refused("llama-3.2-1b,layers=0", "layers = \"0\": allowed is 1..16");
  refused("llama-3.2-1b,vocab=1", "vocab = \"1\": allowed is 2..128256");
  refused("llama-3.2-1b,layers=2x", "layers = \"2x\"");
  refused("llama-3.2-1b,layers", "layers = \"\"");
  refused("llama-3.2-1b,", "expected layers=N or vocab=N, got \"\"");
  refused("llama-3.2-1b,heads=2", "expected layers=N or vocab=N, got \"heads=2\"");
}

TEST(NamedConfigs, HaveEveryFamily) {
  std::set<std::string_view> missing;
  for (const Architecture& row : Architectures()) missing.insert(row.model_type);
  for (const std::string_view name : NamedDecoderConfigs()) {
    missing.erase(NamedDecoderConfig(name).architecture->model_type);
  }
  EXPECT_EQ(missing, std::set<std::string_view>());
}

// What config.json of a family may hold at a key where it should not.
nlohmann::json Wrong(std::mt19937& random, const nlohmann::json& right) {
  using Json = nlohmann::json;
  const std::vector<Json> values = {nullptr,
                                    -1,
                                    0,
                                    1,
                                    1.5,
                                    -0.0,
                                    1e308,
                                    5e-324,
                                    int64_t{1} << 62,
                                    UINT64_MAX,
                                    true,
                                    false,
                                    "",
                                    "x\n\xc3\xa9",
                                    Json::array(),
                                    Json::array({1, "a"}),
                                    Json::object(),
                                    Json{{"rope_type", 3}},
                                    Json::array({Json::array({right})}),
                                    right};
  return values[random() % values.size()];
}

// One or two keys of any level, changed, taken away or new.
void Damage(std::mt19937& random, nlohmann::json& config) {
  const auto some_key = [&](const nlohmann::json& object) {
    auto at = object.items().begin();
    for (size_t i = random() % object.size(); i > 0; --i) ++at;
    return at.key();
  };
  for (uint32_t i = 0; i <= random() % 2; ++i) {
    nlohmann::json* object = &config;
    std::string key = some_key(*object);
    if ((*object)[key].is_object() && !(*object)[key].empty() && random() % 2 == 0) {
      object = &(*object)[key];
      key = some_key(*object);
    }
    if (random() % 8 == 0) {
      object->erase(key);
    } else if (random() % 8 == 0) {
      (*object)[key + "s"] = Wrong(random, (*object)[key]);
    } else {
      (*object)[key] = Wrong(random, (*object)[key]);
    }
    if (object->empty() || config.empty()) return;
  }
}

// Damage is refused by one sentence, or makes a model whose sizes fit each other.
TEST(HostileConfig, MutationsOfEveryFamily) {
  std::mt19937 random(3);
  for (const std::string_view name : NamedDecoderConfigs()) {
    SCOPED_TRACE(name);
    const std::string whole = test::ConfigJson(NamedDecoderConfig(name));
    ASSERT_NO_THROW(ParseDecoderConfig(whole, "", "model"));
    int parsed = 0, refused = 0;
    for (int round = 0; round < 500; ++round) {
      std::string text = whole;
      if (round % 2 == 0) {
        nlohmann::json config = nlohmann::json::parse(whole);
        Damage(random, config);
        text = config.dump();
      } else {
        for (uint32_t i = 0; i <= random() % 3; ++i) text[random() % text.size()] = static_cast<char>(random() % 256);
        if (round % 16 == 15) text.resize(random() % text.size());
      }
      try {
        const DecoderConfig config = ParseDecoderConfig(text, "", "model");
        EXPECT_EQ(config.num_attention_heads % config.num_key_value_heads, 0) << text;
        EXPECT_GT(TotalParameters(config), LinearParameters(config)) << text;
        for (int64_t layer = 0; layer < config.num_hidden_layers; layer += 7)
          EXPECT_GE(config.WindowOf(layer), 0) << text;
        ++parsed;
      } catch (const InvalidInput& error) {
        EXPECT_EQ(std::strchr(error.what(), '\n'), nullptr) << error.what();
        EXPECT_LT(std::strlen(error.what()), 2000u) << error.what();
        ++refused;
      }
    }
    EXPECT_GT(parsed, 20);
    EXPECT_GT(refused, 100);
  }
}

}  // namespace
}  // namespace stoch
