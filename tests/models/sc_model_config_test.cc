// SPDX-License-Identifier: Apache-2.0
#include "models/sc_model_config.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/base/error.h"

namespace stoch {
namespace {

using enum ScOperatorId;

ScModelConfig Parse(const std::vector<std::string>& settings) { return ParseScModelConfig(settings); }

std::string ErrorOf(const std::vector<std::string>& settings) {
  try {
    Parse(settings);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "";
}

TEST(ScModelConfig, DefaultIsTheHalvedPreset) {
  const ScModelConfig config = Parse({});
  EXPECT_EQ(config, HalvedScModelConfig());
  EXPECT_EQ(config.attention, AttentionMode::kPerToken);
  EXPECT_FALSE(config.sc_lm_head);
  for (const ScConfig& op : config.operators) {
    const ScConfig resolved = Resolve(op);
    EXPECT_TRUE(resolved.halve);
    EXPECT_EQ(resolved.stoc_len, 128);
    EXPECT_EQ(resolved.rng_levels, 128);
    EXPECT_EQ(resolved.scramble, ScScramble::kBitrev);
    EXPECT_EQ(resolved.scramble_masks, 64);
  }
  EXPECT_EQ(config.at(kDownProj).chunk_d, 128);
  EXPECT_EQ(config.at(kQk).chunk_d, 0);
}

TEST(ScModelConfig, PublishedPresetIsTheFullGrid) {
  const ScModelConfig config = Parse({"preset=published"});
  EXPECT_EQ(config.attention, AttentionMode::kPerHead);
  for (const ScConfig& op : config.operators) {
    const ScConfig resolved = Resolve(op);
    EXPECT_FALSE(resolved.halve);
    EXPECT_EQ(resolved.stoc_len, 256);
    EXPECT_EQ(resolved.rng_levels, 256);
    EXPECT_EQ(resolved.scramble_masks, 256);
  }
  EXPECT_EQ(config.at(kQk).granularity, ScGranularity::kPerHead);
  EXPECT_EQ(config.at(kAv).granularity, ScGranularity::kPerHead);
  EXPECT_EQ(config.at(kQProj).granularity, ScGranularity::kPerRow);
  EXPECT_EQ(config.at(kQProj).chunk_d, 128);
}

TEST(ScModelConfig, LaterSettingsOverrideEarlierOnes) {
  EXPECT_EQ(Parse({"stoc_len=64,stoc_len=32"}).at(kQProj).stoc_len, 32);
  EXPECT_EQ(Parse({"stoc_len=64", "down_proj.stoc_len=48"}).at(kDownProj).stoc_len, 48);
  EXPECT_EQ(Parse({"down_proj.stoc_len=48", "stoc_len=64"}).at(kDownProj).stoc_len, 64);
  EXPECT_EQ(Parse({"stoc_len=64", "preset=published"}), PublishedScModelConfig());
}

TEST(ScModelConfig, ParametersReachTheOperatorsTheyBelongTo) {
  const ScModelConfig config = Parse({"chunk_d=64,stoc_len=96,granularity=per_row,group_b=2"});
  EXPECT_EQ(config.at(kQProj).chunk_d, 64);
  EXPECT_EQ(config.at(kLmHead).chunk_d, 64);
  EXPECT_EQ(config.at(kQk).chunk_d, 0);
  EXPECT_EQ(config.at(kAv).stoc_len, 96);
  EXPECT_EQ(config.at(kQk).group_b, 1);
  EXPECT_EQ(Parse({"qk.stoc_len=32"}).at(kAv).stoc_len, 128);
}

TEST(ScModelConfig, ErrorsNameParameterValueAndWhatIsAllowed) {
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"stoc_len=300", {"stoc_len", "300", "1..128"}},
      {"stoc_len=200", {"q_proj", "stoc_len", "200", "1..128", "halve"}},
      {"down_proj.stoc_len=200", {"down_proj", "stoc_len", "200", "1..128"}},
      {"preset=fast", {"preset", "fast", "halved, published"}},
      {"attention=global", {"attention", "global", "per_token, per_head, per_row, exact, dilated"}},
      {"attention=dilated", {"segments", "a list", "dilated"}},
      {"attention=dilated,segments=8", {"dilation", "a list", "dilated"}},
      {"segments=8,dilation=1", {"segments", "8", "nothing", "per_token"}},
      {"attention=dilated,segments=8:16,dilation=1", {"dilation", "1", "as many numbers as segments = 8:16"}},
      {"attention=dilated,segments=8:0,dilation=1:2", {"segments", "8:0", "1..2^31-1"}},
      {"attention=dilated,segments=8:,dilation=1:2", {"segments", "8:", "1..2^31-1"}},
      {"attention=dilated,segments=1:1:1:1:1:1:1:1:1,dilation=1", {"segments", "9 numbers", "at most 8"}},
      {"attention=dilated,segments=8,dilation=2147483648", {"dilation", "2147483648", "1..2^31-1"}},
      {"attention=dilated,segments=8,dilation=1,av.arith=int4",
       {"av.arith = int4: allowed is sc with attention = dilated (a scale belongs to 128 positions in a row)"}},
      {"attention=dilated,segments=8,dilation=1,av.arith=fp8_e4m3", {"av.arith = fp8_e4m3", "(a scale belongs to"}},
      {"attention=dilated,segments=8,dilation=1,av.acc_bits=12",
       {"av.acc_bits = 12: allowed is 0 with attention = dilated (at positions that a row skips it is not defined)"}},
      {"attention=per_head,qk.fault_weight=0.1",
       {"qk.fault_weight = 0.1: allowed is 0 with attention = per_head (a pass quantizes every key and value again)"}},
      {"attention=per_row,qk.acc_bits=12,qk.fault_acc=0.1", {"qk.fault_acc = 0.1", "per_row"}},
      {"attention=dilated,segments=8,dilation=1,qk.gate=xnor,halve=0,chunk_d=0", {"qk.gate", "xnor", "dilated"}},
      {"0-3.segments=8", {"0-3.segments", "attention is one mode"}},
      {"q_proj.attention=exact",
       {"SC setting q_proj.attention = exact: attention is one mode for the whole model: it takes no operator"}},
      {"3.q_proj.attention=exact", {"q_proj.attention = exact: attention is one mode"}},
      {"qk.segments=8", {"qk.segments = 8: attention is one mode"}},
      {"q_proj.silu=x", {"q_proj.silu = x: a table is one for the whole model"}},
      {"q_proj.preset=halved", {"q_proj.preset = halved: a preset is for the whole model"}},
      {"qk.arith=fp", {"SC setting qk.arith = fp: allowed in attention is attention = exact, for the whole model"}},
      {"av.arith=fp", {"SC setting av.arith = fp: allowed in attention is attention = exact"}},
      {"arith=fp", {"SC setting qk.arith = fp: allowed in attention is attention = exact"}},
      {"3.av.arith=fp", {"SC setting 3.av.arith = fp: allowed in attention is attention = exact"}},
      {"lm_head=yes", {"lm_head", "yes", "0, 1"}},
      {"mlp.stoc_len=64", {"mlp", "q_proj", "down_proj", "av"}},
      {"qk.chunk_d=128", {"qk.chunk_d", "128", "down_proj"}},
      {"av.granularity=per_row", {"av.granularity", "per_row", "q_proj"}},
      {"stoch_len=64", {"'stoch_len': known are sc_prec, ", ", table_order; did you mean stoc_len?"}},
      {"down_proj.stoc_length=64", {"'stoc_length'", "; did you mean stoc_len?"}},
      {"down_prj.stoc_len=64", {"down_prj.stoc_len", ", av; did you mean down_proj?"}},
      {"0-3.sorce=lfsr", {"'sorce'", "; did you mean source?"}},
      {"atention=exact", {"'atention'", "; did you mean attention?"}},
      {"stoc_len", {"stoc_len", "NAME=VALUE"}},
      {"", {"NAME=VALUE"}},
      {"granularity=per_head,chunk_d=0", {"q_proj.granularity", "per_head", "per_row"}},
      {"lm_head=1,lm_head.granularity=per_tensor", {"lm_head.granularity", "q_proj"}},
      {"mode=unipolar", {"q_proj", "halve"}},
      {"halve=0,chunk_d=0,gate=xnor",
       {"qk.gate = 'xnor': allowed is 'enabled' or 'and' with attention = per_token: add qk.gate=enabled,"
        "av.gate=enabled"}},
      {"qk.mode=unipolar", {"qk.mode", "unipolar"}},
      {"qk.sc_prec=9", {"qk", "sc_prec", "9", "3..8"}},
  };
  for (const auto& [setting, words] : cases) {
    const std::string error = ErrorOf({setting});
    ASSERT_NE(error, "") << setting;
    for (const char* word : words) EXPECT_NE(error.find(word), std::string::npos) << setting << ": " << error;
  }
}

TEST(ScModelConfig, DilatedAttentionIsItsPairs) {
  const std::vector<DilatedPair> expected = {{2048, 1}, {8192, 4}};
  const ScModelConfig config = Parse({"attention=dilated,segments=2048:8192,dilation=1:4"});
  EXPECT_EQ(config.DilatedPairs(), expected);
  EXPECT_EQ(config.attention, AttentionMode::kPerToken);
  EXPECT_TRUE(IsChunkInvariant(config));
  EXPECT_EQ(Parse({"segments=2048:8192", "dilation=1:4", "attention=dilated"}), config);
  // Another mode forgets the lists; per_token itself has none.
  EXPECT_EQ(Parse({"attention=dilated,segments=8,dilation=1,attention=per_token"}), HalvedScModelConfig());
  EXPECT_TRUE(HalvedScModelConfig().DilatedPairs().empty());
  EXPECT_EQ(AttentionName(config), "dilated");
}

TEST(ScModelConfig, OperatorsThatDoNotRunAreNotChecked) {
  EXPECT_EQ(ErrorOf({"attention=exact,halve=0,gate=xnor"}), "");
  EXPECT_EQ(ErrorOf({"attention=exact,qk.stoc_len=256"}), "");
  EXPECT_EQ(ErrorOf({"lm_head.stoc_len=256"}), "");
  EXPECT_NE(ErrorOf({"lm_head.stoc_len=256,lm_head=1"}), "");
}

// A length of a preset is one of streams: own counts have theirs.
TEST(ScModelConfig, OwnCountsNeedALengthOfTheirOwn) {
  const auto refused = [](const std::vector<std::string>& settings, const std::string& op) {
    EXPECT_EQ(ErrorOf(settings), op + ": SC parameter stoc_len = none: allowed is 1..32767 with gate = counts, to be "
                                      "given (its cycles)");
  };
  refused({"gate=counts,counts=x"}, "q_proj");
  refused({"stoc_len=64,preset=published,gate=counts,counts=x"}, "q_proj");  // which a preset takes back
  refused({"q_proj.stoc_len=64,gate=counts,counts=x"}, "k_proj");
  refused({"down_proj.gate=counts,down_proj.counts=x,q_proj.stoc_len=64"}, "down_proj");
  refused({"1.av.gate=counts,1.av.counts=x,0.av.stoc_len=64"}, "1.av");
  for (const char* settings :
       {"gate=counts,counts=x,stoc_len=128", "stoc_len=128,gate=counts,counts=x",
        "preset=halved,stoc_len=9,gate=counts,counts=x",
        "down_proj.gate=counts,down_proj.counts=x,down_proj.stoc_len=128",
        "stoc_len=128,1.av.gate=counts,1.av.counts=x", "1.av.gate=counts,1.av.counts=x,1.av.stoc_len=128",
        "gate=counts,counts=x,arith=int8", "attention=exact,qk.gate=counts,qk.counts=x"}) {
    EXPECT_EQ(ErrorOf({settings}), "") << settings;
  }
  // So a description names it, whatever the preset has.
  EXPECT_EQ(Describe(Parse({"gate=counts,counts=x,stoc_len=128"})), "preset=halved,stoc_len=128,gate=counts,counts=x");
  // Settings on top of such a configuration keep its length.
  const ScModelConfig base = Parse({"gate=counts,counts=x,stoc_len=128"});
  EXPECT_EQ(ParseScModelConfig(std::vector<std::string>{"source_seed=1"}, base).at(kQProj).stoc_len, 128);
}

TEST(ScModelConfig, DescriptionsAreShortAndRoundTrip) {
  const std::pair<const char*, const char*> cases[] = {
      {"preset=halved", "preset=halved"},
      {"preset=published", "preset=published"},
      {"stoc_len=64", "preset=halved,stoc_len=64"},
      {"stoc_len=64,down_proj.stoc_len=32", "preset=halved,stoc_len=64,down_proj.stoc_len=32"},
      {"preset=published,attention=per_row", "preset=published,attention=per_row"},
      {"lm_head=1,lm_head.stoc_len=96", "preset=halved,lm_head=1,lm_head.stoc_len=96"},
      {"attention=dilated,segments=8:16,dilation=1:2", "preset=halved,attention=dilated,segments=8:16,dilation=1:2"},
      {"preset=published,scramble_masks=64", "preset=published,scramble_masks=64"},
      {"halve=0,chunk_d=0,mode=unipolar,attention=exact", nullptr},
      {"scramble=off,qk.scramble=counter,av.scramble=random,source_seed=5", nullptr},
      {"attention=exact,halve=0,gate=xnor,source=lfsr,sc_prec=6,stoc_len=64", nullptr},
      {"granularity=per_tensor,chunk_d=0", nullptr},
      {"source=list,stoc_len=2,source_list_a=3:1,source_list_b=0:2", nullptr},
      {"chunk_d=0,o_proj.chunk_d=64,group_a=4,rng_levels=100", nullptr},
      {"source=lfsr,down_proj.source=sobol", "preset=halved,source=lfsr,down_proj.source=sobol"},
      {"gate=and", "preset=halved,gate=and,source=vdc"},
      {"gate=and,source=sobol", "preset=halved,gate=and,source=sobol"},
      {"qk.gate=and", "preset=halved,qk.gate=and,qk.source=vdc"},
      {"qk.gate=and,qk.source=sobol", "preset=halved,qk.gate=and,source=sobol"},
      {"2.qk.gate=and,2.qk.source=sobol", "preset=halved,2.qk.gate=and,2.qk.source=sobol"},
      {"gate=and,3.gate=enabled", nullptr},
      {"gate=counts,counts=x,stoc_len=128", nullptr},
      {"gate=counts,counts=x,stoc_len=300,halve=0,down_proj.stoc_len=256,down_proj.gate=and,down_proj.counts=",
       nullptr},
      {"preset=published,qk.gate=counts,qk.counts=x,qk.stoc_len=256,attention=per_token", nullptr},
      {"2.qk.gate=counts,2.qk.counts=x,2.qk.stoc_len=128", nullptr},
      {"gate=counts,counts=x,stoc_len=128,2.stoc_len=64", nullptr},
      {"gate=and,source=sobol,1.source=vdc", nullptr},
  };
  for (const auto& [setting, expected] : cases) {
    const ScModelConfig config = Parse({setting});
    const std::string description = Describe(config);
    EXPECT_EQ(Parse({description}), config) << setting << " -> " << description;
    if (expected != nullptr) {
      EXPECT_EQ(description, expected);
    }
  }
}

TEST(ScModelConfig, SaysWhatMayBeCutAndBatched) {
  const auto flags = [](const std::string& setting) {
    const ScModelConfig config = Parse({setting});
    return std::pair(IsBatchInvariant(config), IsChunkInvariant(config));
  };
  EXPECT_EQ(flags("preset=halved"), std::pair(true, true));
  EXPECT_EQ(flags("attention=exact"), std::pair(true, true));
  EXPECT_EQ(flags("attention=per_head"), std::pair(true, false));
  EXPECT_EQ(flags("attention=per_row"), std::pair(true, false));
  EXPECT_EQ(flags("up_proj.chunk_d=0,up_proj.granularity=per_tensor"), std::pair(false, false));
  EXPECT_EQ(flags("down_proj.group_a=2"), std::pair(false, false));
  EXPECT_EQ(flags("down_proj.group_b=2"), std::pair(true, true));
}

TEST(ScModelConfig, LayersHaveSettingsOfTheirOwn) {
  const ScModelConfig config = Parse({"stoc_len=64,0-3+28.q_proj.stoc_len=32,2.arith=int8"});
  EXPECT_EQ(config.at(0, kQProj).stoc_len, 32);
  EXPECT_EQ(config.at(28, kQProj).stoc_len, 32);
  EXPECT_EQ(config.at(4, kQProj).stoc_len, 64);
  EXPECT_EQ(config.at(0, kKProj).stoc_len, 64);
  EXPECT_EQ(config.at(2, kDownProj).arith, ScArith::kInt8);
  EXPECT_EQ(config.at(3, kDownProj).arith, ScArith::kSc);
  EXPECT_EQ(Parse({Describe(config)}), config) << Describe(config);
  // Later settings win, in layers too.
  EXPECT_EQ(Parse({"0.q_proj.stoc_len=32,stoc_len=48"}).at(0, kQProj).stoc_len, 48);
  EXPECT_NE(ErrorOf({"3.attention=exact"}).find("attention is one mode for the whole model"), std::string::npos);
  EXPECT_NE(ErrorOf({"3-1.stoc_len=4"}).find("layers"), std::string::npos);
  EXPECT_NE(ErrorOf({"9999.stoc_len=4"}).find("0..4095"), std::string::npos);
  EXPECT_NE(ErrorOf({"3.q_proj.stoc_len=999"}).find("999"), std::string::npos);
}

TEST(ScModelConfig, NewPresetIsThePublishedOne) {
  const ScModelConfig config = Parse({"preset=published-2026,halve=1,stoc_len=128"});
  EXPECT_EQ(config.attention, AttentionMode::kPerRow);
  EXPECT_EQ(Resolve(config.at(kQProj)).scramble_masks, 64);
  EXPECT_EQ(Parse({Describe(config)}), config);
}

}  // namespace
}  // namespace stoch
