// SPDX-License-Identifier: Apache-2.0
// A model in formats of numbers (arith=fp8_e4m3, mxint8): bits that depend on rows alone, and settings with no meaning.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/registry.h"
#include "models/decoder/memory_plan.h"
#include "tests/kernels/gpu/cuda_or_skip.h"
#include "tests/research/tiny_logits.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

constexpr const char* kSettings[] = {"arith=fp8_e4m3",
                                     "lm_head=1,arith=fp8_e4m3,chunk_d=48",
                                     "arith=mxint8,av.arith=fp8_e4m3",
                                     "attention=exact,arith=mxint8",
                                     "1.qk.arith=mxint8,0.av.arith=fp8_e4m3",
                                     "qk.arith=fp8_e4m3,q_proj.arith=mxint8"};

class FormatsModel : public testing::Test {
 protected:
  void SetUp() override {  // heads of two blocks, one of them short
    TinyModel model;
    model.config.head_dim = 48;
    WriteTinyModel(scratch_.path(), model);
  }
  std::vector<float> Logits(const std::string& settings, const Way& way = {}, const ScFileOptions& files = {}) {
    return TinyLogits(scratch_.path(), settings, files, way);
  }

  TempDir scratch_;
};

TEST_F(FormatsModel, BitsAreThoseOfARowWhateverItsPasses) {
  for (const std::string settings : kSettings) {
    const std::vector<float> expected = Logits(settings);
    EXPECT_FALSE(SameLogits(expected, Logits("preset=halved"))) << settings;
    EXPECT_TRUE(SameLogits(expected, Logits(settings, {.rows = 1}))) << settings;
    EXPECT_TRUE(SameLogits(expected, Logits(settings, {.rows = 7, .others = 3}))) << settings;
    EXPECT_TRUE(SameLogits(expected, Logits(settings, {.devices = 2}))) << settings;
    EXPECT_TRUE(SameLogits(expected, Logits(settings, {.devices = 2, .dealt = true}))) << settings;
    EXPECT_TRUE(SameLogits(expected, Logits(settings, {.rows = 1, .devices = 2, .dealt = true}))) << settings;
    for (const char* variant : {"scalar", "avx2"}) {
      EXPECT_TRUE(SameLogits(expected, Logits(settings, {.variant = variant}))) << settings << ' ' << variant;
    }
  }
}

TEST_F(FormatsModel, AGpuHasTheBitsOfACpu) {
  STOCH_CUDA_OR_SKIP();
  for (const std::string settings : kSettings) {
    const std::vector<float> expected = Logits(settings);
    EXPECT_TRUE(SameLogits(expected, Logits(settings, {.on_gpu = true}))) << settings;
    EXPECT_TRUE(SameLogits(expected, Logits(settings, {.rows = 1, .on_gpu = true}))) << settings << ", steps";
    EXPECT_TRUE(SameLogits(expected, Logits(settings, {.rows = 7, .others = 3, .on_gpu = true}))) << settings;
  }
  for (const std::string mode : {"attention=per_row", "attention=per_head"}) {
    const std::string settings = mode + ",qk.arith=mxint8,av.arith=fp8_e4m3";
    EXPECT_TRUE(SameLogits(Logits(settings), Logits(settings, {.on_gpu = true}))) << mode;
  }
}

TEST_F(FormatsModel, NearlyEveryBitOfExactLogitsIsThere) {
  const std::vector<float> exact = Logits("attention=exact,arith=fp");
  const auto distance = [&](const std::string& settings) {
    const std::vector<float> got = Logits(settings);
    double sum = 0;
    for (size_t i = 0; i < exact.size(); ++i) sum += std::abs(static_cast<double>(exact[i]) - got[i]);
    return sum;
  };
  const double int4 = distance("attention=exact,arith=int4");
  EXPECT_LT(distance("attention=exact,arith=fp8_e4m3"), int4 / 2);
  EXPECT_LT(distance("attention=exact,arith=mxint8"), distance("attention=exact,arith=fp8_e4m3"));
}

TEST_F(FormatsModel, WindowsOfAttentionTakeThemToo) {
  for (const std::string mode : {"attention=per_row", "attention=per_head"}) {
    const std::vector<float> formats = Logits(mode + ",qk.arith=mxint8,av.arith=fp8_e4m3");
    EXPECT_FALSE(SameLogits(formats, Logits(mode))) << mode;
    EXPECT_TRUE(SameLogits(formats, Logits(mode + ",qk.arith=mxint8,av.arith=fp8_e4m3", {.variant = "scalar"})))
        << mode;
  }
}

TEST_F(FormatsModel, MasksNameThem) {
  const auto path = scratch_.path() / "mask.json";
  std::ofstream(path) << R"({"default": "fp8_e4m3", "chunk_size": 32, "schedule": {"o_proj": ["mxint8", "sc"]}})";
  ScFileOptions files;
  files.mask = path.string();
  const std::string same = "arith=fp8_e4m3,chunk_d=32,0.o_proj.arith=mxint8,1.o_proj.arith=sc,1.o_proj.chunk_d=128";
  EXPECT_TRUE(SameLogits(Logits("preset=halved", {}, files), Logits(same)));
}

TEST_F(FormatsModel, PlansHaveRoomForTheScalesOfKeys) {
  const auto backend = OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr);
  DecoderConfig config = TinyLlamaConfig();
  config.head_dim = 48;
  const auto bytes = [&](const std::string& settings) {
    const ScModelConfig sc = ParseScModelConfig(std::vector<std::string>{settings});
    return backend->KvCacheBytes(MakeKvCacheSpec(config, Precision::kSc, sc, 2, 3));
  };
  const int64_t more = 2 * 3 * 64 * config.num_key_value_heads * 4;  // layers, pages, positions, heads, bytes
  EXPECT_EQ(bytes("qk.arith=mxint8"), bytes("preset=halved") + more);
  EXPECT_EQ(bytes("1.qk.arith=mxint8"), bytes("preset=halved") + more);
  EXPECT_EQ(bytes("arith=fp8_e4m3"), bytes("preset=halved"));
}

TEST_F(FormatsModel, WhatHasNoMeaningIsRefused) {
  const auto refused = [&](const std::string& settings, std::initializer_list<std::string_view> words) {
    ExpectInvalid([&] { Logits(settings); }, words);
  };
  refused("av.arith=mxint8", {"av.arith = mxint8", "fp8_e4m3"});
  refused("arith=mxint8", {"av.arith = mxint8"});
  refused("attention=dilated,segments=16,dilation=1,av.arith=fp8_e4m3", {"av.arith = fp8_e4m3", "dilated"});
  refused("q_proj.arith=fp8_e4m3,q_proj.fault_weight=0.1", {"fault_weight = 0.1", "arith = fp8_e4m3"});
  refused("q_proj.arith=mxint8,q_proj.acc_bits=20", {"acc_bits = 20", "arith = mxint8"});
  refused("q_proj.arith=fp8_e4m3,q_proj.adder=or,q_proj.adder_group=2", {"adder = or"});
}

}  // namespace
}  // namespace stoch::test
