// SPDX-License-Identifier: Apache-2.0
// Parts of the shapes behind random:NAME.

#include <gtest/gtest.h>

#include <string>

#include "loader/config/decoder_config.h"
#include "tests/support/expect_invalid.h"

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

}  // namespace
}  // namespace stoch
