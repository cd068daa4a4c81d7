// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/format/reasoning.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/base/check.h"

namespace stoch::serve {
namespace {

constexpr std::string_view kOpen = "<think>", kClose = "</think>";

std::string_view WithoutSpaceAtEnd(std::string_view text) {
  return text.substr(0, text.find_last_not_of(" \n\r\t") + 1);
}

// The end of `text` that may become `tag`, and line ends in front of it.
size_t HeldAtEnd(std::string_view text, std::string_view tag) {
  size_t held = std::min(text.size(), tag.size() - 1);
  while (held > 0 && text.substr(text.size() - held) != tag.substr(0, held)) --held;
  while (held < text.size() && text[text.size() - held - 1] == '\n') ++held;
  return held;
}

void DropLineEnds(std::string* text) { text->erase(0, std::min(text->find_first_not_of('\n'), text->size())); }

}  // namespace

ReasoningFormat ReasoningFormatNamed(std::string_view name) {
  const auto found = std::find(std::begin(kReasoningFormats), std::end(kReasoningFormats), name);
  STOCH_CHECK(found != std::end(kReasoningFormats));
  return static_cast<ReasoningFormat>(found - std::begin(kReasoningFormats));
}

ReasoningStart ReasoningStartOf(ReasoningFormat format, std::string_view prompt) {
  if (format == ReasoningFormat::kNone) return ReasoningStart::kNone;
  const std::string_view said = WithoutSpaceAtEnd(prompt);
  if (said.ends_with(kClose)) return ReasoningStart::kNone;
  if (said.ends_with(kOpen) || format == ReasoningFormat::kDeepSeekR1) return ReasoningStart::kInside;
  return ReasoningStart::kMaybe;
}

ReasoningSplitter::Piece ReasoningSplitter::Push(std::string_view text) {
  Piece piece;
  held_ += text;
  Move(false, &piece);
  return piece;
}

ReasoningSplitter::Piece ReasoningSplitter::Finish() {
  Piece piece;
  Move(true, &piece);
  return piece;
}

void ReasoningSplitter::Move(bool last, Piece* piece) {
  if (!at_) at_ = start_ == ReasoningStart::kNone ? At::kContent : At::kBegin;
  if (*at_ == At::kBegin) {
    const size_t begin = std::min(held_.find_first_not_of(" \n\r\t"), held_.size());
    const std::string_view all = held_;
    const std::string_view rest = all.substr(begin);
    if (!last && rest.size() < kOpen.size() && kOpen.starts_with(rest)) return;
    const bool opens = rest.starts_with(kOpen);
    at_ = opens || start_ == ReasoningStart::kInside ? At::kReasoning : At::kContent;
    if (opens) held_.erase(0, begin + kOpen.size());
  }
  if (*at_ == At::kReasoning) {
    if (!begun_) DropLineEnds(&held_);
    const size_t close = held_.find(kClose);
    const size_t end = close != std::string::npos ? close : held_.size() - (last ? 0 : HeldAtEnd(held_, kClose));
    piece->reasoning = held_.substr(0, end);
    begun_ = begun_ || end > 0;
    if (close != std::string::npos || last) {
      while (piece->reasoning.ends_with('\n')) piece->reasoning.pop_back();
    }
    held_.erase(0, close != std::string::npos ? close + kClose.size() : end);
    if (close == std::string::npos) return;
    at_ = At::kAfter;
  }
  if (*at_ == At::kAfter) {
    DropLineEnds(&held_);
    if (held_.empty()) return;
    at_ = At::kContent;
  }
  piece->content = std::exchange(held_, {});
}

}  // namespace stoch::serve
