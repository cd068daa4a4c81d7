// SPDX-License-Identifier: Apache-2.0
#include "research/products/gate_notices.h"

#include <gtest/gtest.h>

namespace stoch {
namespace {

// SCC of 128 cycles over four masks.
TEST(GateNotices, GatesOfCorrelatedStreamsAreTold) {
  const auto notices = [](const std::string& setting) {
    return GateNotices(ParseScModelConfig(std::vector<std::string>{setting}));
  };
  using Notices = std::vector<std::string>;
  EXPECT_EQ(notices("preset=halved"), Notices{});
  EXPECT_EQ(notices("preset=published,source=random"), Notices{});
  EXPECT_EQ(notices("gate=and"), Notices{"gate=and without source: vdc (before version 0.2.0: sobol)"});
  EXPECT_EQ(notices("gate=and,source=vdc"), Notices{});
  const std::string sobol =
      "gate=and with source=sobol: streams are correlated (SCC 0.84), so the gate computes nearly min(a, b), not a "
      "product: source=vdc has 0.04";
  EXPECT_EQ(notices("gate=and,source=sobol"), Notices{sobol});
  EXPECT_EQ(notices("2.qk.gate=and,2.qk.source=sobol,2.qk.stoc_len=64").size(), 1u);
  EXPECT_EQ(notices("attention=exact,gate=and,source=sobol,qk.source=lfsr"), Notices{sobol});
  // What does not run, or has no streams, has no gate.
  EXPECT_EQ(notices("gate=and,source=sobol,arith=int8"), Notices{});
  EXPECT_EQ(notices("attention=exact,qk.gate=and,qk.source=sobol,lm_head.gate=and"), Notices{});
  const Notices unlike =
      notices("stoc_len=4,source=list,source_list_a=0:64:128:192,source_list_b=192:128:64:0,gate=and");
  ASSERT_EQ(unlike.size(), 1u);
  EXPECT_NE(unlike[0].find("nearly max(a + b - 1, 0)"), std::string::npos) << unlike[0];
  const Notices xnor = notices("attention=exact,halve=0,gate=xnor,source=sobol,stoc_len=128");
  ASSERT_EQ(xnor.size(), 1u);
  EXPECT_NE(xnor[0].find("nearly 1 - |a - b|"), std::string::npos) << xnor[0];
}

}  // namespace
}  // namespace stoch
