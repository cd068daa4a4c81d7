// SPDX-License-Identifier: Apache-2.0
// Which way hops of a ring take, for GPUs that need not be there.
#include "kernels/plan/hop_route.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/support/expect_invalid.h"
#include "tests/support/scoped_variables.h"

namespace stoch::test {
namespace {

TEST(HopRoute, IsWhatTheGpusHave) {
  EXPECT_EQ(ChooseHopRoute("", true), HopRoute::kPeer);
  EXPECT_EQ(ChooseHopRoute("", false), HopRoute::kHost);
}

TEST(HopRoute, CanBeAskedForWhereTheGpusHaveIt) {
  EXPECT_EQ(ChooseHopRoute("peer", true), HopRoute::kPeer);
  EXPECT_EQ(ChooseHopRoute("host", true), HopRoute::kHost);
  EXPECT_EQ(ChooseHopRoute("host", false), HopRoute::kHost);
}

TEST(HopRoute, IsRefusedByNameWhereItIsNotThere) {
  ExpectInvalid([] { (void)ChooseHopRoute("peer", false); },
                {"STOCH_RING_ROUTE=peer: these GPUs do not reach each other's memory"});
  ExpectInvalid([] { (void)ChooseHopRoute("nccl", true); }, {"STOCH_RING_ROUTE=nccl: expected peer or host"});
}

TEST(HopRoute, ComesFromTheEnvironment) {
  const char* name = "STOCH_RING_ROUTE";
  const ScopedVariable empty(name, "");  // whatever it was is there again in the end
  EXPECT_EQ(AskedHopRoute(), "");
  unsetenv(name);
  EXPECT_EQ(AskedHopRoute(), "");
  for (const HopRoute route : {HopRoute::kPeer, HopRoute::kHost}) {
    const ScopedVariable asked(name, std::string(HopRouteName(route)).c_str());
    EXPECT_EQ(AskedHopRoute(), HopRouteName(route));
    EXPECT_EQ(ChooseHopRoute(AskedHopRoute(), true), route);
  }
  const ScopedVariable wrong(name, "nvlink");
  ExpectInvalid([] { (void)AskedHopRoute(); }, {"STOCH_RING_ROUTE=nvlink", "expected peer or host"});
}

}  // namespace
}  // namespace stoch::test
