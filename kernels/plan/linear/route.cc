// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/linear/route.h"

namespace stoch {

std::string_view LinearRouteName(LinearRoute route) {
  using enum LinearRoute;
  switch (route) {
    case kScDecode: return "decode";
    case kScFew: return "few";
    case kScTable: return "table";
    case kScBatch: return "batch-wgmma";
    case kScPrompt: return "prefill-wgmma";
    case kScTiles: return "tiles";
    case kScTilesSplit: return "tiles-split";
    case kScGeneric: return "generic";
    case kMixedDecode: return "mixed decode";
    case kMixedFew: return "mixed few";
    case kMixedTable: return "mixed table";
    case kMixedBatch: return "mixed batch-wgmma";
    case kMixedPrompt: return "mixed prefill-wgmma";
    case kMixedGroups: return "mixed prefill-wgmma by group";
    case kMixedSorted: return "rows by length";
    case kMixedGeneric: return "mixed generic";
    case kExpertLookup: return "expert-lookup";
    case kExpertGroups: return "expert-groups";
    case kExpertGeneric: return "expert-generic";
    case kExpertSorted: return "rows by expert";
    case kExactVector: return "exact vector";
    case kExactBatch: return "exact batch";
    case kExactTiles: return "exact tiles";
    case kExactExpert: return "exact expert";
    case kFixedScreen: return "fixed screen";
    case kFixedVector: return "fixed vector";
    case kFixedTiles: return "fixed tiles";
    case kFixedWgmma: return "fixed wgmma";
    case kHalfGemm: return "half gemm";
    case kHalfExpert: return "half expert";
  }
  return "?";
}

}  // namespace stoch
