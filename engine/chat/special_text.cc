// SPDX-License-Identifier: Apache-2.0
#include "engine/chat/special_text.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "loader/quote.h"
#include "loader/tokenizer/unicode/text.h"

namespace stoch {
namespace {

constexpr std::string_view kLead = "\xEF\xB7";  // U+FDD0..U+FDEF are these two bytes and 0x90..0xAF
constexpr uint8_t kFirst = 0x90;
constexpr std::string_view kEscape = "\\ufd";  // then d0..ef
constexpr std::string_view kHex = "0123456789abcdef";

std::string MarkText(size_t number) { return std::string(kLead) + static_cast<char>(kFirst + number); }

std::string EscapedMark(size_t number) {
  const size_t low = 0xD0 + number;
  return std::string(kEscape) + kHex[low >> 4] + kHex[low & 15];
}

std::vector<AddedToken> Names(const Tokenizer& tokenizer) {
  std::vector<AddedToken> names;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.IsSpecial(id)) continue;
    std::string name = tokenizer.TokenText(id);
    if (!name.empty()) names.push_back({.content = std::move(name), .id = id, .special = true});
  }
  return names;
}

// The text of a list's entry that is a text part, else null.
std::string* PartText(OrderedJson& entry) {
  if (!entry.is_object()) return nullptr;
  const auto text = entry.find("text");
  return text == entry.end() ? nullptr : text->get_ptr<OrderedJson::string_t*>();
}

std::string JoinedText(const OrderedJson& list) {
  std::string joined;
  for (const OrderedJson& entry : list) {
    if (const std::string* text = PartText(const_cast<OrderedJson&>(entry))) joined += *text;
  }
  return joined;
}

}  // namespace

SpecialText::SpecialText(const Tokenizer& tokenizer, std::string_view source) : names_(Names(tokenizer)) {
  NoteMarks(source, &source_);
}

bool SpecialText::HasName(std::string_view text) const {
  const std::vector<TextSegment> segments = names_.Split(text, true);
  return std::any_of(segments.begin(), segments.end(), [](const TextSegment& segment) { return segment.id >= 0; });
}

void SpecialText::NoteMarks(std::string_view text, Use* use) {
  for (size_t at = text.find(kLead); at != std::string_view::npos; at = text.find(kLead, at + 1)) {
    const size_t number = at + 2 < text.size() ? static_cast<uint8_t>(text[at + 2]) - size_t{kFirst} : kMarks;
    if (number < kMarks) use->used[number] = true;
  }
  if (text.find(kEscape) == std::string_view::npos) return;
  for (size_t i = 0; i < kMarks; ++i) {
    if (text.find(EscapedMark(i)) != std::string_view::npos) use->used[i] = true;
  }
}

void SpecialText::Look(const OrderedJson& value, Use* use) const {
  if (const auto* text = value.get_ptr<const OrderedJson::string_t*>()) {
    CheckUtf8(*text, "the conversation");
    NoteMarks(*text, use);
    use->has_name = use->has_name || HasName(*text);
  } else if (const auto* object = value.get_ptr<const OrderedJson::object_t*>()) {
    for (const auto& [name, member] : *object) {
      Look(OrderedJson(name), use);
      Look(member, use);
    }
  } else if (const auto* list = value.get_ptr<const OrderedJson::array_t*>()) {
    for (const OrderedJson& entry : *list) Look(entry, use);
    if (list->size() > 1) use->has_name = use->has_name || HasName(JoinedText(value));
  }
}

std::string SpecialText::Mark(OrderedJson* value) const {
  Use use = source_;
  Look(*value, &use);
  if (!use.has_name) return "";
  const auto unused = std::find(use.used.begin(), use.used.end(), false);
  if (unused == use.used.end()) {
    throw InvalidInput("the conversation has the name of a special token and every noncharacter U+FDD0..U+FDEF");
  }
  std::string mark = MarkText(static_cast<size_t>(unused - use.used.begin()));
  *value = Marked(*value, mark);
  return mark;
}

OrderedJson SpecialText::Marked(const OrderedJson& value, std::string_view mark) const {
  if (const auto* text = value.get_ptr<const OrderedJson::string_t*>()) return MarkedText(*text, mark);
  if (const auto* object = value.get_ptr<const OrderedJson::object_t*>()) {
    OrderedJson::object_t marked;
    for (const auto& [name, member] : *object) marked.push_back({MarkedText(name, mark), Marked(member, mark)});
    return OrderedJson(std::move(marked));
  }
  if (!value.is_array()) return value;
  OrderedJson marked = OrderedJson::array();
  for (const OrderedJson& entry : value) marked.push_back(Marked(entry, mark));
  MarkJoined(mark, &marked);
  return marked;
}

// Names may overlap, so one may be left that another one hid.
std::string SpecialText::MarkedText(std::string text, std::string_view mark) const {
  for (bool found = true; std::exchange(found, false);) {
    std::string marked;
    for (const TextSegment& segment : names_.Split(text, true)) {
      if (segment.id < 0) {
        marked += segment.text;
        continue;
      }
      const size_t cut = Utf8CharSize(segment.text, 0);
      if (cut == segment.text.size()) {
        throw InvalidInput("the conversation has " + Quoted(segment.text) + ", the name of a special token");
      }
      marked += std::string(segment.text.substr(0, cut)) + std::string(mark) + std::string(segment.text.substr(cut));
      found = true;
    }
    text = std::move(marked);
  }
  return text;
}

// A name that neighbours make together gets the mark where the first of them ends.
void SpecialText::MarkJoined(std::string_view mark, OrderedJson* list) const {
  for (bool found = true; std::exchange(found, false);) {
    const std::string joined = JoinedText(*list);
    const std::vector<TextSegment> segments = names_.Split(joined, true);
    auto segment = segments.begin();
    size_t end = 0;
    for (OrderedJson& entry : *list) {
      std::string* const text = PartText(entry);
      if (text == nullptr) continue;
      end += text->size();
      const auto before = [&] { return segment->id < 0 || segment->begin + segment->text.size() <= end; };
      while (segment != segments.end() && before()) ++segment;
      if (segment == segments.end()) break;
      if (segment->begin >= end) continue;
      *text += mark;
      ++segment;
      found = true;
    }
  }
}

std::string SpecialText::Unescaped(std::string text, std::string_view mark) {
  if (mark.empty()) return text;
  const size_t number = static_cast<uint8_t>(mark.back()) - size_t{kFirst};
  return ReplaceAll(text, EscapedMark(number), mark);
}

}  // namespace stoch
