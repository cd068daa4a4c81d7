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

// The route that `asked` names; if `asked` is empty, kPeer with has_peers, else kHost. has_peers: all GPUs reach each
// other's memory, and NCCL_P2P_DISABLE=1 is not set.
// Errors: InvalidInput for an unknown name, and for kPeer without has_peers.
HopRoute ChooseHopRoute(std::string_view asked, bool has_peers);

// The value of the environment variable STOCH_RING_ROUTE; empty if it is not set. Errors: InvalidInput for an unknown
// name.
std::string AskedHopRoute();

}  // namespace stoch
