// SPDX-License-Identifier: Apache-2.0
// Which way hops of a ring take, for GPUs that need not be there.
#include "kernels/cuda/ring/hop_route.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/support/expect_invalid.h"
#include "tests/support/scoped_variables.h"

namespace stoch::test {
namespace {

using cuda::ChooseHopRoute;
using cuda::HopRoute;

// GPUs that NCCL serves where `problem` is empty. asked: how often they were tried.
cuda::HopFacts Gpus(bool has_peers, const std::string& problem, int* asked) {
  *asked = 0;
  return {has_peers, [problem, asked] {
            ++*asked;
            return problem;
          }};
}

TEST(HopRoute, IsWhatTheGpusHave) {
  int asked = 0;
  EXPECT_EQ(ChooseHopRoute("", Gpus(true, "", &asked)), HopRoute::kPeer);
  EXPECT_EQ(ChooseHopRoute("", Gpus(false, "", &asked)), HopRoute::kHost);
  EXPECT_EQ(asked, 0) << "NCCL is not loaded where nobody asks for it";
}

TEST(HopRoute, CanBeAskedForWhereTheGpusHaveIt) {
  int asked = 0;
  EXPECT_EQ(ChooseHopRoute("peer", Gpus(true, "no NCCL", &asked)), HopRoute::kPeer);
  EXPECT_EQ(ChooseHopRoute("host", Gpus(true, "", &asked)), HopRoute::kHost);
  EXPECT_EQ(ChooseHopRoute("host", Gpus(false, "", &asked)), HopRoute::kHost);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(ChooseHopRoute("nccl", Gpus(true, "", &asked)), HopRoute::kNccl);
  EXPECT_EQ(ChooseHopRoute("nccl", Gpus(false, "", &asked)), HopRoute::kNccl);
}

TEST(HopRoute, IsRefusedByNameWhereItIsNotThere) {
  int asked = 0;
  const auto refused = [&](const char* route, const cuda::HopFacts& gpus,
                           std::initializer_list<std::string_view> parts) {
    ExpectInvalid([&] { (void)ChooseHopRoute(route, gpus); }, parts);
  };
  refused("peer", Gpus(false, "", &asked), {"STOCH_RING_ROUTE=peer: these GPUs do not reach each other's memory"});
  refused("nccl", Gpus(true, "no NCCL: it was not found", &asked),
          {"STOCH_RING_ROUTE=nccl: no NCCL: it was not found"});
  refused("NCCL", Gpus(true, "", &asked), {"STOCH_RING_ROUTE=NCCL: expected peer, nccl or host"});
}

TEST(HopRoute, ComesFromTheEnvironment) {
  const char* name = "STOCH_RING_ROUTE";
  const ScopedVariable empty(name, "");  // whatever it was is there again in the end
  EXPECT_EQ(cuda::AskedHopRoute(), "");
  unsetenv(name);
  EXPECT_EQ(cuda::AskedHopRoute(), "");
  for (const HopRoute route : {HopRoute::kPeer, HopRoute::kNccl, HopRoute::kHost}) {
    const ScopedVariable asked(name, std::string(HopRouteName(route)).c_str());
    EXPECT_EQ(cuda::AskedHopRoute(), HopRouteName(route));
    EXPECT_EQ(ChooseHopRoute(cuda::AskedHopRoute(), {true, [] { return std::string(); }}), route);
  }
  const ScopedVariable wrong(name, "nvlink");
  ExpectInvalid([] { (void)cuda::AskedHopRoute(); }, {"STOCH_RING_ROUTE=nvlink", "expected peer, nccl or host"});
}

}  // namespace
}  // namespace stoch::test
