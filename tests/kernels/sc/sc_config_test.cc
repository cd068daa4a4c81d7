// SPDX-License-Identifier: Apache-2.0
// Every rule between SC parameters, each with its error; text round trips.
#include "kernels/sc/sc_config.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "tests/kernels/sc/config_with.h"

namespace stoch {
namespace {

ScConfig Parse(const std::string& text) { return test::With({}, text); }

std::string ErrorOf(const std::string& text) {
  try {
    Resolve(Parse(text));
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "no error";
}

TEST(ScConfig, DefaultsFollowPrecisionAndHalving) {
  EXPECT_EQ(Resolve(Parse("")).stoc_len, 256);
  EXPECT_EQ(Resolve(Parse("")).rng_levels, 256);
  EXPECT_EQ(Resolve(Parse("halve=1")).stoc_len, 128);
  EXPECT_EQ(Resolve(Parse("halve=1")).rng_levels, 128);
  EXPECT_EQ(Resolve(Parse("sc_prec=4,halve=1")).stoc_len, 8);
  EXPECT_EQ(Resolve(Parse("stoc_len=64")).rng_levels, 256);  // a shorter stream keeps the full grid
  EXPECT_EQ(Resolve(Parse("sc_prec=4,scramble_masks=256")).scramble_masks, 16);
}

TEST(ScConfig, WrongCombinationsNameParameterValueAndAllowed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"sc_prec=2", "SC parameter sc_prec = 2: allowed is 3..8"},
      {"sc_prec=9", "SC parameter sc_prec = 9: allowed is 3..8"},
      {"stoc_len=0",
       "SC parameter stoc_len = 0: allowed is 1..2^sc_prec, or 1..2^(sc_prec-1) with halve, or 1..32767 with "
       "gate=counts"},
      {"stoc_len=99999999999999999999",
       "SC parameter stoc_len = 99999999999999999999: allowed is 1..2^sc_prec, or 1..2^(sc_prec-1) with halve, or "
       "1..32767 with gate=counts"},
      {"sc_prec=99999999999", "SC parameter sc_prec = 99999999999: allowed is 3..8"},
      {"source_seed=18446744073709551616", "SC parameter source_seed = 18446744073709551616: allowed is 0..2^64-1"},
      {"source_seed_b=18446744073709551616", "SC parameter source_seed_b = 18446744073709551616: allowed is 0..2^64-1"},
      {"stoc_len=257", "SC parameter stoc_len = 257: allowed is 1..256"},
      {"sc_prec=5,stoc_len=33", "SC parameter stoc_len = 33: allowed is 1..32"},
      {"halve=1,stoc_len=129", "SC parameter stoc_len = 129: allowed is 1..128 with halve = 1"},
      {"halve=1,rng_levels=256", "SC parameter rng_levels = 256: allowed is 1..128 with halve = 1"},
      {"mode=unipolar,halve=1", "SC parameter halve = 1: allowed is 0 with mode = unipolar (halving needs signs)"},
      {"mode=unipolar,chunk_d=128", "SC parameter chunk_d = 128: allowed is 0 with mode = unipolar"},
      {"mode=unipolar,granularity=per_head",
       "SC parameter granularity = per_head: allowed is per_tensor, per_row with mode = unipolar"},
      {"mode=unipolar,gate=xnor", "SC parameter gate = xnor: allowed is enabled, and with mode = unipolar"},
      {"gate=xnor,halve=1", "SC parameter halve = 1: allowed is 0 with gate = xnor (its streams carry the sign)"},
      {"granularity=per_tensor,chunk_d=128", "SC parameter chunk_d = 128: allowed is 0 with granularity = per_tensor"},
      {"granularity=per_head,group_a=2", "SC parameter group_a = 2: allowed is 1 with granularity = per_head"},
      {"group_b=0", "SC parameter group_b = 0: allowed is 1..2147483647"},
      {"chunk_d=-1", "SC parameter chunk_d = -1: allowed is 0..2147483647"},
      {"scramble_masks=48", "SC parameter scramble_masks = 48: allowed is a power of two in 1..256"},
      {"scramble=twist", "SC parameter scramble = 'twist': allowed is bitrev, counter, random, off"},
      {"halve=maybe", "SC parameter halve = 'maybe': allowed is 0 or 1"},
      {"stoc_len=12x", "SC parameter stoc_len = '12x': allowed is a whole number"},
      {"source=list", "SC parameter source_list_a = a list of 0 values: allowed is at least stoc_len = 256 values"},
      {"source=list,stoc_len=1,source_list_a=3,source_list_b=256",
       "SC parameter source_list_b[0] = 256: allowed is 0..255"},
      {"source_list_a=1:2",
       "SC parameter source = sobol: allowed is list, when source_list_a or source_list_b is given"},
      {"lfsr_restart=mask", "SC parameter lfsr_restart = mask: allowed is product, unless source = lfsr"},
      {"source=lfsr,lfsr_restart=mask", "SC parameter scramble = bitrev: allowed is off, with lfsr_restart = mask"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(ErrorOf(text), message) << text;
}

TEST(ScConfig, SourceFollowsTheGateUnlessGiven) {
  EXPECT_EQ(Resolve(Parse("gate=enabled")).source, ScSource::kSobol);
  EXPECT_EQ(Resolve(Parse("gate=and")).source, ScSource::kVanDerCorput);
  EXPECT_EQ(Resolve(Parse("gate=xnor")).source, ScSource::kVanDerCorput);
  EXPECT_EQ(Resolve(Parse("gate=and,gate=enabled")).source, ScSource::kSobol);
  EXPECT_EQ(Resolve(Parse("gate=and,source=sobol")).source, ScSource::kSobol);
  EXPECT_EQ(Resolve(Parse("source=sobol,gate=and")).source, ScSource::kSobol);
  ScConfig set_directly;
  set_directly.gate = ScGate::kAnd;
  EXPECT_EQ(Resolve(set_directly).source, ScSource::kVanDerCorput);
  // Text names the source with these gates, so that it means the same to every version.
  EXPECT_EQ(Describe(Parse("gate=and")), "gate=and,source=vdc");
  EXPECT_EQ(Describe(Parse("gate=and,source=sobol")), "gate=and,source=sobol");
  EXPECT_EQ(Describe(Parse("source=sobol")), "");
}

TEST(ScConfig, RegistersHaveTheLongestPeriod) {
  EXPECT_EQ(ErrorOf("source=lfsr,lfsr_taps=8:4"), "SC parameter lfsr_taps = 8:4: period 12, allowed is 255");
  EXPECT_EQ(ErrorOf("source=lfsr,lfsr_taps_b=8:7"), "SC parameter lfsr_taps_b = 8:7: period 63, allowed is 255");
  EXPECT_EQ(ErrorOf("lfsr_taps=8:6:5:4"), "SC parameter lfsr_taps = 8:6:5:4: allowed is nothing, unless source = lfsr");
  EXPECT_EQ(ErrorOf("source=lfsr,lfsr_taps=7:6"),
            "SC parameter lfsr_taps = 7:6: allowed is stages of which the highest is sc_prec = 8");
  EXPECT_EQ(ErrorOf("source=lfsr,lfsr_taps=8:9"), "SC parameter lfsr_taps = 8:9: allowed is stages in 1..8");
  EXPECT_EQ(ErrorOf("source=lfsr,lfsr_taps=8:8"), "SC parameter lfsr_taps = 8:8: allowed is every stage once");
  EXPECT_EQ(ErrorOf("source=lfsr,lfsr_taps=8:6:5:4"), "no error");
}

TEST(ScConfig, AGridMayFollowTheLength) {
  EXPECT_EQ(Resolve(Parse("rng_grid=pow2")).rng_levels, 256);
  EXPECT_EQ(Resolve(Parse("rng_grid=pow2,stoc_len=96")).rng_levels, 64);
  EXPECT_EQ(Resolve(Parse("rng_grid=pow2,halve=1,stoc_len=1")).rng_levels, 1);
  // One operator with that of the grid written out.
  EXPECT_EQ(Resolve(Parse("rng_grid=pow2,stoc_len=96")), Resolve(Parse("rng_levels=64,stoc_len=96")));
  EXPECT_EQ(Describe(Parse("rng_grid=pow2")), "rng_grid=pow2");
  EXPECT_EQ(ErrorOf("rng_grid=pow2,rng_levels=64"),
            "SC parameter rng_levels = 64: allowed is nothing with rng_grid = pow2");
  EXPECT_EQ(ErrorOf("rng_grid=half"), "SC parameter rng_grid = 'half': allowed is full, pow2");
}

TEST(ScConfig, UnknownParameterListsTheKnownOnes) {
  const std::string message = ErrorOf("stoc_length=3");
  EXPECT_NE(message.find("'stoc_length'"), std::string::npos) << message;
  EXPECT_NE(message.find("stoc_len, rng_levels"), std::string::npos) << message;
}

TEST(ScConfig, DescribeParsesBack) {
  for (const std::string text :
       {"", "halve=1,stoc_len=96,chunk_d=128", "mode=unipolar,granularity=per_tensor,scramble=random,source_seed=7",
        "sc_prec=6,group_a=4,group_b=3,scramble=off,scramble_masks=32,gate=and,source=lfsr,lfsr_restart=mask",
        "stoc_len=3,source=list,source_list_a=0:5:3,source_list_b=9:1:255", "gate=xnor,rng_levels=200,source=vdc",
        "rng_grid=pow2,stoc_len=96", "gate=and", "gate=and,source=sobol",
        "source=lfsr,source_seed_b=0,lfsr_taps=8:7:6:1,lfsr_taps_b=8:6:5:3",
        "source=random,source_seed_b=18446744073709551615", "source=sobol", "gate=table,table=none"}) {
    const ScConfig config = Parse(text);
    EXPECT_EQ(Parse(Describe(config)), config) << text;
    EXPECT_EQ(Parse(Describe(Resolve(config))), Resolve(config)) << text;
  }
}

}  // namespace
}  // namespace stoch
