// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <vector>

#include "tests/policy/rules.h"

namespace stoch::test {
namespace {

constexpr size_t kMaxFunctionLines = 150;
constexpr size_t kMaxKernelLines = 100;  // of kernels/

// The text with comments, literals and preprocessor lines as spaces; line breaks stay.
std::string Blanked(const std::string& text) {
  std::string out = text;
  const auto blank = [&](size_t from, size_t to) {
    for (size_t i = from; i < std::min(to, out.size()); ++i) out[i] = out[i] == '\n' ? '\n' : ' ';
    return to;
  };
  const auto end_of = [&](std::string_view what, size_t from) {
    const size_t at = text.find(what, from);
    return at == std::string::npos ? text.size() : at + what.size();
  };
  bool line_begins = true;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '#' && line_begins) {
      size_t end = text.find('\n', i);
      while (end != std::string::npos && text[end - 1] == '\\') end = text.find('\n', end + 1);
      i = blank(i, end == std::string::npos ? text.size() : end);
    } else if (text.compare(i, 2, "//") == 0) {
      i = blank(i, std::min(text.find('\n', i), text.size()));
    } else if (text.compare(i, 2, "/*") == 0) {
      i = blank(i, end_of("*/", i + 2));
    } else if (text.compare(i, 2, "R\"") == 0) {
      const std::string delimiter = text.substr(i + 2, text.find('(', i) - i - 2);
      i = blank(i, end_of(")" + delimiter + "\"", i));
    } else if (c == '"' || (c == '\'' && (i == 0 || std::isalnum(static_cast<unsigned char>(text[i - 1])) == 0))) {
      size_t end = i + 1;
      while (end < text.size() && text[end] != c) end += text[end] == '\\' ? 2 : 1;
      i = blank(i, end + 1);
    } else {
      line_begins = c == '\n' || (line_begins && std::isspace(static_cast<unsigned char>(c)) != 0);
      ++i;
    }
  }
  return out;
}

bool BeginsScope(std::string_view head) {
  constexpr std::array<std::string_view, 5> kWords = {"namespace", "struct", "class", "enum", "union"};
  if (head.find(" operator") != std::string_view::npos) return false;
  if (head.rfind("template", 0) == 0) {  // behind its parameters, one level of which may hold others
    int depth = 0;
    size_t at = head.find('<');
    for (; at < head.size(); ++at) {
      depth += head[at] == '<' ? 1 : head[at] == '>' ? -1 : 0;
      if (depth == 0) break;
    }
    head = head.substr(std::min(at + 1, head.size()));
    head = head.substr(std::min(head.find_first_not_of(" \n"), head.size()));
  }
  if (head.rfind("extern", 0) == 0 && head.find('(') == std::string_view::npos) return true;
  return std::any_of(kWords.begin(), kWords.end(), [&](std::string_view word) { return head.rfind(word, 0) == 0; });
}

// The name before the first parenthesis of a function's head.
std::string NameOf(std::string_view head) {
  size_t end = head.find('(');
  // Attributes with arguments come before it.
  for (const std::string_view attribute : {"__launch_bounds__", "alignas"}) {
    const size_t at = head.find(attribute);
    if (at != std::string_view::npos && at < end) end = head.find('(', head.find(')', head.find('(', at)) + 1);
  }
  size_t begin = end;
  const auto is_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == ':'; };
  while (begin > 0 && is_name(head[begin - 1])) --begin;
  return std::string(head.substr(begin, end - begin));
}

}  // namespace

std::vector<FunctionSize> FunctionsOf(const SourceFile& file) {
  const std::string code = Blanked(file.text);
  std::vector<FunctionSize> functions;
  size_t line = 1;
  size_t head = std::string::npos;  // where the declaration at hand begins
  size_t head_line = 1;             // its line
  int parentheses = 0;
  int inside = 0;  // braces inside a function or an initializer
  bool is_function = false;
  for (size_t i = 0; i < code.size(); ++i) {
    const char c = code[i];
    line += c == '\n' ? 1 : 0;
    if (inside > 0) {
      inside += c == '{' ? 1 : c == '}' ? -1 : 0;
      if (inside == 0 && is_function) functions.back().lines = line - head_line + 1;
      if (inside == 0) head = std::string::npos;
      continue;
    }
    if (head == std::string::npos && std::isspace(static_cast<unsigned char>(c)) == 0) {
      head = i;
      head_line = line;
    }
    parentheses += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (c == ';' && parentheses == 0) head = std::string::npos;
    if (c == '}') head = std::string::npos;  // of a scope
    if (c != '{') continue;
    const std::string_view whole = code;
    const std::string_view text = whole.substr(head, i - head);
    if (parentheses == 0 && BeginsScope(text)) {
      head = std::string::npos;
      continue;
    }
    const size_t last = text.find_last_not_of(" \n");
    is_function = parentheses == 0 && text.find('(') != std::string_view::npos && text[last] != '=';
    if (is_function) functions.push_back({NameOf(text), head_line, 0});
    inside = 1;
  }
  return functions;
}

std::vector<std::string> CheckFunctions(const SourceFile& file) {
  std::vector<std::string> found;
  if (!IsSource(file.path)) return found;
  const size_t most = file.path.rfind("kernels/", 0) == 0 ? kMaxKernelLines : kMaxFunctionLines;
  for (const FunctionSize& function : FunctionsOf(file)) {
    if (function.lines <= most) continue;
    found.push_back(file.path + ":" + std::to_string(function.line) + ": " + function.name + " has " +
                    std::to_string(function.lines) + " lines, at most " + std::to_string(most) + " are allowed");
  }
  return found;
}

}  // namespace stoch::test
