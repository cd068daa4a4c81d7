// SPDX-License-Identifier: Apache-2.0
// A model with faults, registers and adders: bits that depend on the model, the sequence and the token, and on nothing
// else.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/generate.h"
#include "engine/prefix_cache.h"
#include "kernels/registry.h"
#include "tests/kernels/gpu/cuda_or_skip.h"
#include "tests/research/tiny_logits.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

constexpr int kTokens = 40;
constexpr size_t kVocab = 96;

constexpr const char* kSettings[] = {
    "fault_product=0.01", "fault_weight=0.02", "fault_activation=0.02", "acc_bits=14,fault_acc=0.01",
    // Everything at once, with an LM head in SC too.
    "lm_head=1,acc_bits=15,fault_product=0.001,fault_weight=0.01,fault_activation=0.01,fault_acc=0.002:3",
    "gate=and,fault_product=0.01", "acc_bits=9,acc_group=8", "adder=or,adder_group=4", "adder=apc,adder_group=6",
    "gate=and,adder=mux,adder_group=4", "arith=int8,acc_bits=18,fault_acc=0.01,fault_weight=0.01"};

class FaultsOnTiny : public testing::Test {
 protected:
  void SetUp() override { WriteTinyModel(scratch_.path(), {}); }

  std::unique_ptr<Engine> OpenModel(const std::string& settings) {
    EngineOptions options;
    options.sc = ParseScModelConfig(std::vector<std::string>{settings});
    options.max_pass_rows = 128;
    options.max_sequences = 8;
    return Engine::Open(OpenBackend("cpu", {.threads = 2, .cpu_variant = ""}, nullptr),
                        OpenModelFiles(scratch_.path().string()), options);
  }

  static std::vector<int32_t> Ids() {
    std::vector<int32_t> ids;
    for (int i = 0; i < kTokens; ++i) ids.push_back((i * 37 + 5) % static_cast<int>(kVocab));
    return ids;
  }

  // Logits of every row of one sequence.
  std::vector<float> Logits(const std::string& settings, const Way& way = {}) {
    return TinyLogits(scratch_.path(), settings, {}, way);
  }
  static bool Same(const std::vector<float>& a, const std::vector<float>& b) { return SameLogits(a, b); }

  TempDir scratch_;
};

class FaultsModel : public FaultsOnTiny, public testing::WithParamInterface<const char*> {};

TEST_P(FaultsModel, AGpuHasTheBitsOfACpu) {
  STOCH_CUDA_OR_SKIP();
  const std::vector<float> expected = Logits(GetParam());
  EXPECT_TRUE(Same(expected, Logits(GetParam(), {.on_gpu = true})));
  EXPECT_TRUE(Same(expected, Logits(GetParam(), {.rows = 1, .on_gpu = true}))) << "steps";
  EXPECT_TRUE(Same(expected, Logits(GetParam(), {.rows = 7, .others = 4, .on_gpu = true}))) << "a batch of 5";
}

TEST_P(FaultsModel, BitsDoNotDependOnBatchCutOrDevices) {
  const std::vector<float> whole = Logits(GetParam());
  EXPECT_FALSE(Same(whole, Logits("preset=halved"))) << "nothing happens";
  EXPECT_TRUE(Same(whole, Logits(GetParam(), {.rows = 1}))) << "cut at every token";
  EXPECT_TRUE(Same(whole, Logits(GetParam(), {.rows = 7}))) << "cut";
  EXPECT_TRUE(Same(whole, Logits(GetParam(), {.others = 4}))) << "a batch of 5";
  EXPECT_TRUE(Same(whole, Logits(GetParam(), {.devices = 2}))) << "two logical devices";
  EXPECT_TRUE(Same(whole, Logits(GetParam(), {.variant = "scalar"}))) << "the scalar variant";
}

// A device draws by the place of a token in its text, which is not its place in the device's share.
TEST_P(FaultsModel, DealtPositionsHaveTheFaultsOfOneDevice) {
  std::string settings = GetParam();
  for (const char* op : {"qk", "av"}) {
    for (const char* fault : {"product", "weight", "activation", "acc"}) {
      settings += "," + std::string(op) + ".fault_" + fault + "=0";
    }
  }
  const std::vector<float> whole = Logits(settings);
  EXPECT_FALSE(Same(whole, Logits("preset=halved"))) << "nothing happens";
  for (const Way& way : {Way{.devices = 2, .dealt = true}, Way{.rows = 1, .devices = 2, .dealt = true},
                         Way{.rows = 7, .others = 2, .devices = 4, .dealt = true}}) {
    EXPECT_TRUE(Same(whole, Logits(settings, way))) << way.rows << " rows over " << way.devices << " devices";
  }
}

TEST_P(FaultsModel, FaultsOfASequenceAreThoseOfItsNumber) {
  const std::string settings = GetParam();
  const bool by_row = settings.find("fault_product") != std::string::npos ||
                      settings.find("fault_activation") != std::string::npos ||
                      settings.find("fault_acc") != std::string::npos;
  // Codes of k and v are stored with the faults of their token.
  const bool by_token = by_row || settings.find("fault_weight") != std::string::npos;
  EXPECT_EQ(Same(Logits(settings), Logits(settings, {.number = 3})), !by_token);
  EXPECT_EQ(Same(Logits(settings), Logits(settings + ",fault_seed=2")), !by_token);
}

TEST_P(FaultsModel, PrefixesAreReusedBetweenEqualNumbers) {
  const auto engine = OpenModel(std::string(GetParam()));
  PrefixCache prefixes(*engine);
  const auto generate = [&](uint32_t number, PrefixCache* cache, int64_t* reused) {
    GenerateRequest request;
    for (int i = 0; i < 2; ++i) {
      for (const int32_t id : Ids()) request.prompt.push_back(id);
    }
    request.max_tokens = 4;
    request.ignore_eos = true;
    request.sequence_number = number;
    Generation generation(*engine, request, cache);
    *reused = generation.prompt_reused();
    while (!generation.done()) {
      const StepItem item = generation.Next(128);
      engine->Step({&item, 1});
      generation.Accept(item, 0);
    }
    return generation.result().ids;
  };
  int64_t reused = 0;
  const std::vector<int32_t> alone = generate(0, nullptr, &reused);
  EXPECT_EQ(generate(0, &prefixes, &reused), alone);
  EXPECT_EQ(generate(0, &prefixes, &reused), alone);
  EXPECT_EQ(reused, 64);
  const std::vector<int32_t> other = generate(5, nullptr, &reused);
  EXPECT_EQ(generate(5, &prefixes, &reused), other);
  EXPECT_EQ(reused, 0);
  EXPECT_EQ(generate(5, &prefixes, &reused), other);
  EXPECT_EQ(reused, 64);
}

INSTANTIATE_TEST_SUITE_P(Settings, FaultsModel, testing::ValuesIn(kSettings),
                         [](const auto& one) { return "Case" + std::to_string(one.index); });

TEST_F(FaultsOnTiny, AreRefusedWhereTheyAreNotDefined) {
  const auto refused = [&](const std::string& settings, std::initializer_list<std::string_view> parts) {
    ExpectInvalid([&] { Logits(settings); }, parts);
  };
  refused("fault_product=0.1,arith=int8", {"fault_product", "0 with arith = int8"});
  refused("fault_acc=0.1", {"fault_acc", "acc_bits"});
  refused("acc_bits=8,fault_acc=0.1:8", {"fault_acc", "a bit below acc_bits = 8"});
  refused("fault_weight=2", {"fault_weight", "1e-12..1"});
  refused("fault_weight=1e-13", {"fault_weight", "1e-12..1"});
  refused("acc_bits=1", {"acc_bits", "2..32"});
  refused("acc_group=8", {"acc_group", "0 without acc_bits"});
  refused("acc_bits=8,acc_group=8,fault_product=0.1", {"fault_product", "acc_group"});
  refused("adder=or,adder_group=4,fault_product=0.1", {"fault_product", "adder"});
  refused("adder=or", {"adder_group", "1..256"});
  refused("adder=apc,adder_group=3", {"adder_group", "even"});
  refused("adder_group=4", {"adder_group", "counter"});
  refused("q_proj.gate=xnor,q_proj.halve=0,q_proj.stoc_len=64,q_proj.adder=or,q_proj.adder_group=2",
          {"q_proj", "adder", "xnor"});
  refused("attention=per_row,fault_weight=0.1", {"fault_weight", "per_row"});
  refused("q_proj.arith=fp,fault_weight=0.1", {"q_proj", "fault_weight", "fp"});
}

TEST_F(FaultsOnTiny, InAttentionAreRefusedWherePositionsAreDealt) {
  const std::shared_ptr<Backend> backend = OpenBackend("cpu:2", {.threads = 1, .cpu_variant = ""}, nullptr);
  EngineOptions options;
  options.placement = SequenceSplit(TinyLlamaConfig(), backend->devices(), 2);
  for (const char* fault : {"qk.fault_weight", "qk.fault_product", "av.fault_activation"}) {
    options.sc = ParseScModelConfig(std::vector<std::string>{std::string(fault) + "=0.1"});
    ExpectInvalid([&] { Engine::Open(backend, OpenModelFiles(scratch_.path().string()), options); },
                  {"--split sequence", "faults of " + std::string(fault).substr(0, 2), "places in its own share"});
  }
}

}  // namespace
}  // namespace stoch::test
