// SPDX-License-Identifier: Apache-2.0
// How the keys and values of a ring travel from one GPU to the next.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace stoch::cuda {

// kPeer: one copy into the next GPU's memory, by a copy engine.
// kNccl: ncclSend and ncclRecv, by kernels on both GPUs, over what links NCCL finds.
// kHost: two copies, through pinned memory of the host.
enum class HopRoute : uint8_t { kPeer, kNccl, kHost };
std::string_view HopRouteName(HopRoute route);  // "peer", "nccl", "host"

// Capabilities of the GPUs.
struct HopFacts {
  bool has_peers = false;  // all reach each other's memory, and NCCL_P2P_DISABLE=1 is not set
  // Why NCCL does not carry their hops, as one clause; empty where it does. Asked for at most once, and only where
  // the answer matters: it loads NCCL and makes communicators.
  std::function<std::string()> nccl_problem;
};

// Peer copies where there are peers, else the host; or the route that `asked` names, where it is not empty. NCCL is for
// those who ask: its communicators take memory that no plan counts, and it was not measured between GPUs without peers.
// Errors: InvalidInput for a name that is none, and for a route that the GPUs do not have.
HopRoute ChooseHopRoute(std::string_view asked, const HopFacts& facts);

// The environment's STOCH_RING_ROUTE; empty where that is not set. Errors: InvalidInput for a name that is none.
std::string AskedHopRoute();

}  // namespace stoch::cuda
