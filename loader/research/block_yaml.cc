// SPDX-License-Identifier: Apache-2.0
#include "loader/research/block_yaml.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/base/error.h"
#include "loader/quote.h"

namespace stoch {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr int kMaxDepth = 32;

struct Line {
  size_t number = 0;
  size_t indent = 0;
  std::string_view text;  // without indentation, comment and trailing blanks; not empty
};

class Parser {
 public:
  Parser(std::string_view text, const std::string& name) : name_(name) { Cut(text); }

  Json Document() {
    if (lines_.empty()) return nullptr;
    Json json = Block(lines_.front().indent, 0);
    if (next_ < lines_.size()) Reject(lines_[next_].number, "its indentation fits nothing above");
    return json;
  }

 private:
  [[noreturn]] void Reject(size_t line, const std::string& why) const {
    throw InvalidInput(name_ + ": line " + std::to_string(line) + ": " + why);
  }

  void Cut(std::string_view text);
  // Where a comment begins, or the end.
  static size_t EndOfText(std::string_view line);
  Json Block(size_t indent, int depth);
  Json Sequence(size_t indent, int depth);
  Json Mapping(size_t indent, int depth);
  // What follows a key or a dash that has nothing on its line.
  Json Nested(size_t indent, bool in_mapping, int depth);
  Json Inline(std::string_view* at, size_t line, int depth, bool in_flow);
  Json WholeInline(std::string_view text, size_t line, int depth);
  std::string Quote(std::string_view* at, size_t line);
  static Json Scalar(std::string_view text);
  // Splits "key: rest"; false where there is no such key.
  bool SplitKey(const Line& line, std::string* key, std::string_view* rest);

  std::string name_;
  std::vector<Line> lines_;
  size_t next_ = 0;
};

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
  return text;
}

bool IsDash(std::string_view text) { return text == "-" || text.starts_with("- "); }

size_t Parser::EndOfText(std::string_view line) {
  char quote = '\0';
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != '\0') {
      const bool doubled = c == '\'' && quote == c && i + 1 < line.size() && line[i + 1] == c;
      if (doubled || (c == '\\' && quote == '"')) {
        ++i;  // a quote inside of the text
      } else if (c == quote) {
        quote = '\0';
      }
    } else if ((c == '"' || c == '\'') &&
               (i == 0 || IsBlank(line[i - 1]) || line[i - 1] == '[' || line[i - 1] == '{' || line[i - 1] == ',')) {
      quote = c;
    } else if (c == '#' && (i == 0 || IsBlank(line[i - 1]))) {
      return i;
    }
  }
  return line.size();
}

void Parser::Cut(std::string_view text) {
  if (text.size() > kMaxBytes) throw InvalidInput(name_ + ": has more than 64 MiB");
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (++number > kMaxYamlLines) throw InvalidInput(name_ + ": has more than 1000000 lines");
    if (line.find('\0') != std::string_view::npos) Reject(number, "holds a NUL byte");
    size_t indent = 0;
    while (indent < line.size() && line[indent] == ' ') ++indent;
    if (indent < line.size() && line[indent] == '\t') Reject(number, "is indented with a tab");
    line = line.substr(indent);
    line = Trim(line.substr(0, EndOfText(line)));
    if (line.empty() || (indent == 0 && (line == "---" || line == "..."))) continue;
    lines_.push_back({number, indent, line});
  }
}

Json Parser::Block(size_t indent, int depth) {
  if (depth > kMaxDepth) Reject(lines_[next_].number, "is nested deeper than 32");
  if (IsDash(lines_[next_].text)) return Sequence(indent, depth);
  std::string key;
  std::string_view rest;
  if (SplitKey(lines_[next_], &key, &rest)) return Mapping(indent, depth);
  const Line& line = lines_[next_++];
  return WholeInline(line.text, line.number, depth);
}

Json Parser::Nested(size_t indent, bool in_mapping, int depth) {
  if (next_ >= lines_.size()) return nullptr;
  const Line& line = lines_[next_];
  const bool list = in_mapping && line.indent == indent && IsDash(line.text);  // may stand under its key
  if (line.indent <= indent && !list) return nullptr;
  return Block(line.indent, depth + 1);
}

Json Parser::Sequence(size_t indent, int depth) {
  Json list = Json::array();
  while (next_ < lines_.size() && lines_[next_].indent == indent && IsDash(lines_[next_].text)) {
    Line& line = lines_[next_];
    const std::string_view rest = Trim(line.text.substr(1));
    if (rest.empty()) {
      ++next_;
      list.push_back(Nested(indent, false, depth));
      continue;
    }
    // What follows the dash is a block that begins in its column.
    line.indent += static_cast<size_t>(rest.data() - line.text.data());
    line.text = rest;
    list.push_back(Block(line.indent, depth + 1));
  }
  if (next_ < lines_.size() && lines_[next_].indent > indent) Reject(lines_[next_].number, "is no item of the list");
  return list;
}

Json Parser::Mapping(size_t indent, int depth) {
  Json map = Json::object();
  while (next_ < lines_.size() && lines_[next_].indent == indent && !IsDash(lines_[next_].text)) {
    const Line line = lines_[next_];
    std::string key;
    std::string_view rest;
    if (!SplitKey(line, &key, &rest)) Reject(line.number, "is no key");
    if (map.contains(key)) Reject(line.number, "key " + Quoted(key) + " is given twice");
    ++next_;
    map[key] = rest.empty() ? Nested(indent, true, depth) : WholeInline(rest, line.number, depth + 1);
  }
  if (next_ < lines_.size() && lines_[next_].indent > indent) Reject(lines_[next_].number, "fits no key above");
  return map;
}

bool Parser::SplitKey(const Line& line, std::string* key, std::string_view* rest) {
  std::string_view at = line.text;
  if (at.front() == '{' || at.front() == '[') return false;
  if (at.front() == '"' || at.front() == '\'') {
    *key = Quote(&at, line.number);
    at = Trim(at);
    if (at.empty() || at.front() != ':') return false;
    *rest = Trim(at.substr(1));
    return true;
  }
  for (size_t i = 0; i < at.size(); ++i) {
    if (at[i] != ':' || (i + 1 < at.size() && !IsBlank(at[i + 1]))) continue;
    *key = std::string(Trim(at.substr(0, i)));
    *rest = Trim(at.substr(i + 1));
    return !key->empty();
  }
  return false;
}

std::string Parser::Quote(std::string_view* at, size_t line) {
  const char quote = at->front();
  std::string text;
  for (size_t i = 1; i < at->size(); ++i) {
    char c = (*at)[i];
    if (c == quote) {
      if (quote == '\'' && i + 1 < at->size() && (*at)[i + 1] == '\'') {
        text += '\'';
        ++i;
        continue;
      }
      at->remove_prefix(i + 1);
      return text;
    }
    if (c == '\\' && quote == '"') {
      c = ++i < at->size() ? (*at)[i] : '\0';
      if (c != '"' && c != '\\' && c != '/') Reject(line, "an escape in a text is not read here");
    }
    text += c;
  }
  Reject(line, "a text has no end");
}

Json Parser::Scalar(std::string_view text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return nullptr;
  if (text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  const std::string_view digits = text.front() == '+' ? text.substr(1) : text;
  double value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (code == std::errc() && end == digits.data() + digits.size() && std::isfinite(value)) return value;
  return std::string(text);
}

Json Parser::Inline(std::string_view* at, size_t line, int depth, bool in_flow) {
  if (depth > kMaxDepth) Reject(line, "is nested deeper than 32");
  *at = Trim(*at);
  if (at->empty()) return nullptr;
  const char first = at->front();
  if (first == '"' || first == '\'') return Quote(at, line);
  if (first == '&' || first == '*' || first == '!' || first == '|' || first == '>' || first == '%' || first == '@' ||
      first == '`' || first == '?') {
    Reject(line, Quoted(std::string(1, first)) + " is not read here: anchors, tags and block texts are not known");
  }
  if (first == '{' || first == '[') {
    const char close = first == '{' ? '}' : ']';
    Json json = first == '{' ? Json::object() : Json::array();
    at->remove_prefix(1);
    for (bool any = false;; any = true) {
      *at = Trim(*at);
      if (!at->empty() && at->front() == close) break;
      if (any) {
        if (at->empty() || at->front() != ',') Reject(line, "a collection has no end on its line");
        *at = Trim(at->substr(1));
        if (!at->empty() && at->front() == close) break;
      }
      Json item = Inline(at, line, depth + 1, true);
      if (first == '[') {
        json.push_back(std::move(item));
        continue;
      }
      *at = Trim(*at);
      if (item.is_structured()) Reject(line, "a key of a collection is a collection");
      const std::string key = item.is_string() ? item.get<std::string>() : item.dump(-1, ' ', true);
      if (at->empty() || at->front() != ':') Reject(line, "a key of a collection has no value");
      at->remove_prefix(1);
      if (json.contains(key)) Reject(line, "key " + Quoted(key) + " is given twice");
      json[key] = Inline(at, line, depth + 1, true);
    }
    at->remove_prefix(1);
    return json;
  }
  size_t end = 0;
  while (end < at->size()) {
    const char c = (*at)[end];
    if (in_flow && (c == ',' || c == ']' || c == '}' || c == '{' || c == '[')) break;
    if (in_flow && c == ':' && (end + 1 == at->size() || IsBlank((*at)[end + 1]))) break;
    ++end;
  }
  Json json = Scalar(Trim(at->substr(0, end)));
  at->remove_prefix(end);
  return json;
}

Json Parser::WholeInline(std::string_view text, size_t line, int depth) {
  Json json = Inline(&text, line, depth, false);
  if (!Trim(text).empty()) Reject(line, "something follows a value");
  return json;
}

}  // namespace

Json ParseBlockYaml(std::string_view text, const std::string& name) { return Parser(text, name).Document(); }

}  // namespace stoch
