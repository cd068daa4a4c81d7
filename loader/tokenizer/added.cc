// SPDX-License-Identifier: Apache-2.0
#include "loader/tokenizer/added.h"

#include <algorithm>

#include "loader/tokenizer/unicode/text.h"

namespace stoch {
namespace {

// Where the white space that ends at `end` begins, no further left than `floor`.
size_t SpaceBefore(std::string_view text, size_t floor, size_t end) {
  while (end > floor) {
    size_t begin = end - 1;
    while (begin > floor && (static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) --begin;
    if (!IsUnicodeSpace(Utf8CodePoint(text, begin))) break;
    end = begin;
  }
  return end;
}

size_t SpaceAfter(std::string_view text, size_t begin) {
  while (begin < text.size() && IsUnicodeSpace(Utf8CodePoint(text, begin))) begin += Utf8CharSize(text, begin);
  return begin;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), nodes_(1), starts_(256, false) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    uint32_t at = 0;
    for (const char c : tokens_[i].content) {
      const auto byte = static_cast<uint8_t>(c);
      auto& children = nodes_[at].children;
      const auto child = std::find_if(children.begin(), children.end(), [&](auto& edge) { return edge.first == byte; });
      if (child != children.end()) {
        at = child->second;
      } else {
        const auto next = static_cast<uint32_t>(nodes_.size());
        children.emplace_back(byte, next);
        nodes_.emplace_back();  // invalidates `children`
        at = next;
      }
    }
    if (at == 0) continue;  // an empty token matches nothing
    nodes_[at].token = static_cast<int32_t>(i);
    starts_[static_cast<uint8_t>(tokens_[i].content[0])] = true;
  }
}

const AddedToken* AddedTokenFinder::LongestAt(std::string_view text, size_t pos) const {
  if (!starts_[static_cast<uint8_t>(text[pos])]) return nullptr;
  const AddedToken* longest = nullptr;
  uint32_t at = 0;
  for (; pos < text.size(); ++pos) {
    const auto byte = static_cast<uint8_t>(text[pos]);
    const auto& children = nodes_[at].children;
    const auto child = std::find_if(children.begin(), children.end(), [&](auto& edge) { return edge.first == byte; });
    if (child == children.end()) break;
    at = child->second;
    if (nodes_[at].token >= 0) longest = &tokens_[static_cast<size_t>(nodes_[at].token)];
  }
  return longest;
}

std::vector<TextSegment> AddedTokenFinder::Split(std::string_view text, bool parse_special) const {
  std::vector<TextSegment> segments;
  size_t done = 0;
  const auto add_text = [&](size_t end) {
    if (end > done) segments.push_back({-1, text.substr(done, end - done), done});
  };
  for (size_t pos = 0; pos < text.size();) {
    const AddedToken* token = LongestAt(text, pos);
    if (token == nullptr) {
      ++pos;
      continue;
    }
    size_t end = pos + token->content.size();
    if (!token->special || parse_special) {
      const size_t begin = token->lstrip ? SpaceBefore(text, done, pos) : pos;
      if (token->rstrip) end = SpaceAfter(text, end);
      add_text(begin);
      segments.push_back({token->id, text.substr(begin, end - begin), begin});
      done = end;
    }
    pos = end;
  }
  add_text(text.size());
  return segments;
}

}  // namespace stoch
