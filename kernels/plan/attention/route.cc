// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/attention/route.h"

namespace stoch {

std::string_view AttentionRouteName(AttentionRoute route) {
  using enum AttentionRoute;
  switch (route) {
    case kScFreshRows: return "rows fresh";
    case kScRows: return "rows";
    case kScWindowRows: return "window-rows";
    case kScLookup: return "split-lookup";
    case kScResident: return "split-resident";
    case kScSplit: return "split";
    case kMixedFresh: return "mixed-rows fresh";
    case kMixedRows: return "mixed-rows";
    case kPlainRows: return "plain-rows";
    case kPlainWindow: return "plain-window";
    case kDealtSplit: return "dealt-split";
    case kDealtRows: return "dealt-rows";
    case kScTiles: return "tiles";
    case kScWide: return "wide-tiles";
    case kMixedWide: return "mixed-wide-tiles";
    case kExactRows: return "exact-rows";
    case kExactSplit: return "exact-split";
    case kHalfTiles: return "half-tiles";
  }
  return "?";
}

}  // namespace stoch
