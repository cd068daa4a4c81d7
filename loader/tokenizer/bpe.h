// SPDX-License-Identifier: Apache-2.0
// Byte-pair merging of one word in O(n log n): a heap of candidates over a linked list of symbols.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <queue>
#include <string_view>
#include <vector>

namespace stoch {

// One symbol of a word while it is merged. begin/size are bytes of the word.
struct BpeSymbol {
  int32_t id = 0;
  uint32_t begin = 0;
  uint32_t size = 0;
  int32_t prev = -1;
  int32_t next = -1;
};

// A rule for two neighbours: the lowest rank goes first, the leftmost among equals.
struct BpeMerge {
  int32_t rank = 0;
  int32_t id = 0;  // of the symbol they become
};

// The bytes of a word as linked symbols; `ids` by byte.
inline std::vector<BpeSymbol> ByteSymbols(std::string_view word, const std::array<int32_t, 256>& ids) {
  std::vector<BpeSymbol> symbols(word.size());
  for (size_t i = 0; i < word.size(); ++i) {
    const auto at = static_cast<int32_t>(i);
    symbols[i] = {ids[static_cast<uint8_t>(word[i])], static_cast<uint32_t>(i), 1, at - 1,
                  i + 1 < word.size() ? at + 1 : -1};
  }
  return symbols;
}

// Merges until no rule applies; appends the ids left. `find_merge(left, right)` is the rule for two neighbouring
// symbols as std::optional<BpeMerge>.
// Requires: prev and next of `symbols` link them in order; fewer than 2^31 of them.
// Source:   huggingface/tokenizers, models/bpe/word.rs (merge_all).
template <typename FindMerge>
void MergeSymbols(std::vector<BpeSymbol>& symbols, const FindMerge& find_merge, std::vector<int32_t>& ids) {
  struct Candidate {
    BpeMerge merge;
    int32_t at;    // left symbol
    int32_t left;  // ids of both when the rule was looked up
    int32_t right;
  };
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.merge.rank != b.merge.rank ? a.merge.rank > b.merge.rank : a.at > b.at;
  };
  std::priority_queue<Candidate, std::vector<Candidate>, decltype(later)> candidates(later);
  const auto symbol = [&](int32_t index) -> BpeSymbol& { return symbols[static_cast<size_t>(index)]; };
  const auto consider = [&](int32_t at) {
    if (at < 0 || symbol(at).next < 0) return;
    const BpeSymbol& left = symbol(at);
    const BpeSymbol& right = symbol(left.next);
    if (const auto merge = find_merge(left, right)) candidates.push({*merge, at, left.id, right.id});
  };

  for (size_t i = 0; i + 1 < symbols.size(); ++i) consider(static_cast<int32_t>(i));
  while (!candidates.empty()) {
    const Candidate top = candidates.top();
    candidates.pop();
    BpeSymbol& left = symbol(top.at);
    if (left.size == 0 || left.next < 0) continue;  // merged away since
    BpeSymbol& right = symbol(left.next);
    if (left.id != top.left || right.id != top.right) {
      // Other neighbours by now. They merge at this candidate's turn if they become the same symbol.
      const auto merge = find_merge(left, right);
      if (!merge || merge->id != top.merge.id) continue;
    }
    left.id = top.merge.id;
    left.size += right.size;
    right.size = 0;
    left.next = right.next;
    if (left.next >= 0) symbol(left.next).prev = top.at;
    consider(left.prev);
    consider(top.at);
  }
  for (int32_t at = symbols.empty() ? -1 : 0; at >= 0; at = symbol(at).next) ids.push_back(symbol(at).id);
}

}  // namespace stoch
