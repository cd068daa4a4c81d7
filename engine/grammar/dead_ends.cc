// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/dead_ends.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "loader/quote.h"

namespace stoch {
namespace {

constexpr std::string_view kDefined = " ::= ";

bool IsOfName(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.'; }

// A rule, a sequence, a choice, or a leaf of the grammar.
struct Part {
  std::vector<size_t> inside;   // parts that it is made of
  std::vector<size_t> parents;  // parts that are made of it
  size_t missing = 0;           // how many of `inside` have to have a text still; 0: it has one
  std::string rule;             // of a rule: its name
};

class Graph {
 public:
  explicit Graph(std::string_view text) : text_(text) {
    while (at_ < text_.size()) ReadRule();
  }

  std::string WhyNoText() {
    const auto root = rules_.find("root");
    if (root == rules_.end()) return "";
    FindTexts();
    if (parts_[root->second].missing > 0) return "accepts no text";
    std::string rule, around;  // without a text; with such an alternative
    for (const auto& [part, of] : ReachedFrom(root->second)) {
      if (parts_[part].missing == 0) continue;
      if (rule.empty()) rule = parts_[part].rule;
      if (around.empty()) around = parts_[of].rule;
    }
    if (!rule.empty()) return "has a rule " + Quoted(rule) + " that accepts no text";
    return around.empty() ? "" : "has an alternative in rule " + Quoted(around) + " that accepts no text";
  }

 private:
  // missing: 0 for a leaf with a text, 1 where one of `inside` is enough (or for a leaf without a text).
  size_t Add(std::vector<size_t> inside, size_t missing) {
    for (const size_t part : inside) parts_[part].parents.push_back(parts_.size());
    parts_.push_back({std::move(inside), {}, missing, {}});
    return parts_.size() - 1;
  }
  size_t AddLeaf(bool has_text) { return Add({}, has_text ? 0 : 1); }

  size_t Rule(std::string_view name) {
    const auto [found, is_new] = rules_.try_emplace(std::string(name), parts_.size());
    if (is_new) {
      Add({}, 1);
      parts_.back().rule = name;
    }
    return found->second;
  }

  bool Is(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool Skip(std::string_view words) {
    if (text_.substr(at_, words.size()) != words) return false;
    at_ += words.size();
    return true;
  }

  // A literal, "..." or [...].
  std::string_view SkipLiteral() {
    const size_t begin = at_;
    const char last = text_[at_] == '"' ? '"' : ']';
    for (++at_; at_ < text_.size() && text_[at_] != last; ++at_) at_ += text_[at_] == '\\' ? 1 : 0;
    at_ = std::min(at_ + 1, text_.size());
    return text_.substr(begin, at_ - begin);
  }

  // From an opening parenthesis to behind the one that closes it.
  void SkipParentheses() {
    for (size_t depth = 0; at_ < text_.size();) {
      if (Is('"')) {
        SkipLiteral();
        continue;
      }
      if (Is('(')) ++depth;
      if (Is(')')) --depth;
      ++at_;
      if (depth == 0) return;
    }
  }

  std::string_view Name() {
    const size_t begin = at_;
    while (at_ < text_.size() && IsOfName(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  // name[attributes] ::= body (=lookahead)
  void ReadRule() {
    const std::string_view name = Name();
    if (Is('[')) {
      while (at_ < text_.size() && !Is(']')) {
        if (Is('"'))
          SkipLiteral();
        else
          ++at_;
      }
      Skip("]");
    }
    if (!name.empty() && Skip(kDefined)) {
      const size_t rule = Rule(name);
      const size_t body = Read();
      parts_[rule].inside.push_back(body);
      parts_[body].parents.push_back(rule);
    }
    at_ = std::min(text_.find('\n', at_), text_.size() - 1) + 1;
  }

  size_t Read() {
    if (Is('(')) return ReadList();
    if (Is('"')) {
      SkipLiteral();
      return AddLeaf(true);
    }
    if (Is('[')) {
      const bool is_empty = SkipLiteral() == "[]";
      return AddLeaf(Skip("*") || !is_empty);
    }
    const std::string_view name = Name();
    if (Is('(')) {  // tokens, and tags between texts
      SkipParentheses();
      return AddLeaf(true);
    }
    if (name.empty()) {
      ++at_;
      return AddLeaf(true);
    }
    const bool may_be_absent = Skip("{0, ");
    if (may_be_absent || Is('{')) at_ = std::min(text_.find('}', at_), text_.size() - 1) + 1;
    const size_t rule = Rule(name);
    return may_be_absent ? Add({rule}, 0) : rule;
  }

  // A choice or a sequence in parentheses; xgrammar nests one in the other once.
  size_t ReadList() {
    Skip("(");
    bool is_choice = false;
    std::vector<size_t> inside;
    while (at_ < text_.size() && !Skip(")")) {
      if (Skip(" | "))
        is_choice = true;
      else if (!Skip(" "))
        inside.push_back(Read());
    }
    const size_t needed = is_choice ? 1 : inside.size();
    return Add(std::move(inside), needed);
  }

  void FindTexts() {
    std::vector<size_t> found;
    for (size_t part = 0; part < parts_.size(); ++part) {
      if (parts_[part].missing == 0) found.push_back(part);
    }
    while (!found.empty()) {
      const std::vector<size_t>& parents = parts_[found.back()].parents;
      found.pop_back();
      for (const size_t parent : parents) {
        if (parts_[parent].missing > 0 && --parts_[parent].missing == 0) found.push_back(parent);
      }
    }
  }

  // Parts, and the rule that each stands in.
  std::map<size_t, size_t> ReachedFrom(size_t root) const {
    std::map<size_t, size_t> reached = {{root, root}};
    for (std::vector<size_t> next = {root}; !next.empty();) {
      const size_t part = next.back();
      next.pop_back();
      const size_t of = parts_[part].rule.empty() ? reached.at(part) : part;
      for (const size_t inside : parts_[part].inside) {
        if (reached.try_emplace(inside, of).second) next.push_back(inside);
      }
    }
    return reached;
  }

  std::string_view text_;
  size_t at_ = 0;
  std::vector<Part> parts_;
  std::map<std::string, size_t> rules_;
};

}  // namespace

std::string WhyNoText(const std::string& grammar) { return Graph(grammar).WhyNoText(); }

}  // namespace stoch
