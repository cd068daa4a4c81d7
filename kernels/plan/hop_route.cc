// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/hop_route.h"

#include <array>
#include <cstdlib>

#include "kernels/base/error.h"

namespace stoch {
namespace {

constexpr const char* kVariable = "STOCH_RING_ROUTE";
constexpr std::array kRoutes = {HopRoute::kPeer, HopRoute::kHost};

[[noreturn]] void Refuse(std::string_view asked, const std::string& why) {
  throw InvalidInput(std::string(kVariable) + "=" + std::string(asked) + ": " + why);
}

HopRoute RouteOf(std::string_view name) {
  for (const HopRoute route : kRoutes) {
    if (HopRouteName(route) == name) return route;
  }
  Refuse(name, "expected peer or host");
}

}  // namespace

std::string_view HopRouteName(HopRoute route) {
  switch (route) {
    case HopRoute::kPeer: return "peer";
    case HopRoute::kHost: return "host";
  }
  return "";
}

HopRoute ChooseHopRoute(std::string_view asked, bool has_peers) {
  if (asked.empty()) return has_peers ? HopRoute::kPeer : HopRoute::kHost;
  const HopRoute route = RouteOf(asked);
  if (route == HopRoute::kPeer && !has_peers) {
    Refuse(asked, "these GPUs do not reach each other's memory, or NCCL_P2P_DISABLE=1 is set");
  }
  return route;
}

std::string AskedHopRoute() {
  const char* asked = std::getenv(kVariable);
  if (asked == nullptr || *asked == '\0') return {};
  (void)RouteOf(asked);
  return asked;
}

}  // namespace stoch
