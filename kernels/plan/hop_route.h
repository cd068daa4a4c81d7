// SPDX-License-Identifier: Apache-2.0
// How the keys and values of a ring travel from one GPU to the next.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stoch {

// kPeer: one copy into the next GPU's memory, by a copy engine.
// kHost: two copies, through pinned memory of the host.
enum class HopRoute : uint8_t { kPeer, kHost };
std::string_view HopRouteName(HopRoute route);  // "peer", "host"

// Peer copies where there are peers, else the host; or the route that `asked` names, where it is not empty. has_peers: all
// GPUs reach each other's memory, and NCCL_P2P_DISABLE=1 is not set.
// Errors: InvalidInput for a name that is none, and for a route that the GPUs do not have.
HopRoute ChooseHopRoute(std::string_view asked, bool has_peers);

// The environment's STOCH_RING_ROUTE; empty where that is not set. Errors: InvalidInput for a name that is none.
std::string AskedHopRoute();

}  // namespace stoch
