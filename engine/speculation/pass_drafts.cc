// SPDX-License-Identifier: Apache-2.0
#include "engine/speculation/pass_drafts.h"

#include <algorithm>

namespace stoch {

std::vector<std::vector<DraftedToken>> DraftsForTurns(std::span<const DraftTurn> turns, int64_t max_rows,
                                                      const PassTimes& times) {
  std::vector<std::vector<DraftedToken>> drafts(turns.size());
  const auto first =
      std::find_if(turns.begin(), turns.end(), [](const DraftTurn& turn) { return turn.source != nullptr; });
  if (first == turns.end()) return drafts;
  if (auto* group = dynamic_cast<GroupDraftSource*>(first->source)) group->Prepare(turns, max_rows, times);
  for (size_t i = 0; i < turns.size(); ++i) {
    if (turns[i].source != nullptr) drafts[i] = turns[i].source->Propose(turns[i].ids, turns[i].most);
  }
  const std::vector<int64_t> lengths = ChooseDraftLengths(drafts, max_rows, times);
  for (size_t i = 0; i < drafts.size(); ++i) drafts[i].resize(static_cast<size_t>(lengths[i]));
  return drafts;
}

}  // namespace stoch
