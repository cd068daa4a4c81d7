// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/whole_answer.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "kernels/base/check.h"

namespace stoch::serve {
namespace {

using List = LogprobWriter::List;

struct ListName {
  const char* open;  // what stands in front of its entries
  List list;
};
constexpr std::array<ListName, 4> kCompletionLists = {{{"{\"tokens\":[", List::kTokens},
                                                       {"],\"token_logprobs\":[", List::kLogprobs},
                                                       {"],\"top_logprobs\":[", List::kTop},
                                                       {"],\"text_offset\":[", List::kOffsets}}};
constexpr std::array<ListName, 1> kChatLists = {{{"{\"content\":[", List::kTokens}}};

std::span<const ListName> Lists(bool chat) {
  return chat ? std::span<const ListName>(kChatLists) : std::span<const ListName>(kCompletionLists);
}

// "a,b" of [a,b], "a:1" of {a:1}.
std::string Inside(OrderedJson container) {
  const std::string text = Dump(std::move(container));
  return text.substr(1, text.size() - 2);
}

}  // namespace

WholeAnswer::WholeAnswer(ResponseFrame frame, std::vector<AnswerChoice*> choices, int alternatives, const Usage& usage)
    : frame_(std::move(frame)), choices_(std::move(choices)), alternatives_(alternatives), usage_(usage) {
  STOCH_CHECK(!choices_.empty());
}

std::string WholeAnswer::Next() {
  switch (at_) {
    case At::kHead: at_ = At::kChoice; return "{" + Inside(frame_.Body(false)) + ",\"choices\":[";
    case At::kChoice: return ChoiceBegin();
    case At::kLists: return ListPiece();
    case At::kChoiceEnd: return ChoiceEnd();
    case At::kTail: at_ = At::kEnd; return "],\"usage\":" + Dump(UsageJson(usage_)) + "}";
    case At::kEnd: break;
  }
  return "";
}

std::string WholeAnswer::ChoiceBegin() {
  AnswerChoice& choice = *choices_[choice_];
  std::string piece = choice_ == 0 ? "{" : ",{";
  piece += "\"index\":" + std::to_string(choice_);
  if (frame_.chat) {
    OrderedJson message = {{"role", "assistant"}};
    if (!choice.reasoning.empty()) message["reasoning_content"] = std::exchange(choice.reasoning, {});
    message["content"] = choice.calls.empty() || !choice.text.empty() ? OrderedJson(choice.text) : OrderedJson(nullptr);
    if (!choice.calls.empty()) message["tool_calls"] = frame_.Calls(false, choice_, std::exchange(choice.calls, {}));
    piece += ",\"message\":" + Dump(message);
  } else {
    piece += ",\"text\":" + Dump(choice.text);
  }
  choice.text = {};
  piece += ",\"logprobs\":";
  at_ = At::kLists;
  list_ = token_ = 0;
  if (alternatives_ < 0) {
    at_ = At::kChoiceEnd;
    piece += "null";
  }
  return piece;
}

std::string WholeAnswer::ListPiece() {
  AnswerChoice& choice = *choices_[choice_];
  const std::span<const ListName> lists = Lists(frame_.chat);
  std::string piece;
  if (token_ == 0) {
    piece = lists[list_].open;
    any_ = false;
  }
  const size_t end = std::min(choice.tokens.size(), token_ + PieceTokens(alternatives_));
  const std::string entries = Inside(choice.writer.Entries(lists[list_].list, choice.tokens, token_, end));
  if (any_ && !entries.empty()) piece += ",";
  piece += entries;
  any_ = any_ || !entries.empty();
  token_ = end;
  if (token_ < choice.tokens.size()) return piece;
  token_ = 0;
  if (++list_ == lists.size()) {
    piece += "]}";
    choice.tokens.Clear();
    at_ = At::kChoiceEnd;
  }
  return piece;
}

std::string WholeAnswer::ChoiceEnd() {
  const AnswerChoice& choice = *choices_[choice_];
  std::string piece = ",\"finish_reason\":" + Dump(choice.finish);
  if (!choice.logits_sha256.empty()) piece += ",\"logits_sha256\":" + Dump(choice.logits_sha256);
  at_ = ++choice_ == choices_.size() ? At::kTail : At::kChoice;
  return piece + "}";
}

}  // namespace stoch::serve
