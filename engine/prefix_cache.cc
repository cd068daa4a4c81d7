// SPDX-License-Identifier: Apache-2.0
#include "engine/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace stoch {
namespace {

std::span<const int32_t> PageTokens(std::span<const int32_t> ids, int64_t page) {
  return ids.subspan(static_cast<size_t>(page * kKvPageTokens), kKvPageTokens);
}

int64_t WholePages(int64_t tokens) { return tokens / kKvPageTokens; }

std::optional<TokenLogprob> WithTop(const std::optional<TokenLogprob>& known, int top_logprobs) {
  std::optional<TokenLogprob> logprob = known;
  if (logprob) logprob->top.resize(std::min(logprob->top.size(), static_cast<size_t>(top_logprobs)));
  return logprob;
}

}  // namespace

struct PrefixCache::Node {
  Node* parent = nullptr;
  KvPage page;
  std::vector<std::optional<TokenLogprob>> logprobs;  // of the page's tokens, or empty
  int top_logprobs = -1;                              // alternatives of each
  std::map<Key, std::unique_ptr<Node>> children;
  std::map<Key, std::unique_ptr<Node>>::iterator self;  // in the parent's children
  std::list<Node*>::iterator recent;
};

PrefixCache::PrefixCache(Engine& engine) : engine_(engine), root_(std::make_unique<Node>()) {
  STOCH_CHECK(engine.chunk_invariant());
}

PrefixCache::~PrefixCache() {
  // Leaf by leaf: a long prefix is a deep tree, too deep for nested destructors.
  while (!recent_.empty()) Forget(*recent_.back());
}

PrefixCache::Key PrefixCache::KeyOf(std::span<const int32_t> ids, int64_t page, const std::string& salt) const {
  const std::span<const int32_t> tokens = PageTokens(ids, page);
  return {{tokens.begin(), tokens.end()}, page == 0 ? salt : ""};
}

PrefixCache::Node* PrefixCache::Child(Node& parent, const Key& key) {
  const auto child = parent.children.find(key);
  return child == parent.children.end() ? nullptr : child->second.get();
}

// To the front, its parents before it.
void PrefixCache::Touch(Node& node) {
  for (Node* at = &node; at != root_.get(); at = at->parent) recent_.splice(recent_.begin(), recent_, at->recent);
}

void PrefixCache::Forget(Node& leaf) {
  STOCH_CHECK(leaf.children.empty());
  recent_.erase(leaf.recent);
  leaf.parent->children.erase(leaf.self);
}

PrefixCache::Match PrefixCache::Find(std::span<const int32_t> prompt, int top_logprobs, const std::string& salt) {
  std::vector<Node*> path;
  Node* last = root_.get();
  for (int64_t i = 0; i < WholePages(static_cast<int64_t>(prompt.size())); ++i) {
    Node* next = Child(*last, KeyOf(prompt, i, salt));
    if (next == nullptr || next->top_logprobs < top_logprobs) break;
    path.push_back(next);
    last = next;
  }
  Touch(*last);

  Match match;
  if (path.empty()) return match;
  // At least one token must be left to compute; for prompt logprobs, see above, a page.
  const bool whole = path.size() * kKvPageTokens == prompt.size();
  const size_t reused = path.size() - (top_logprobs >= 0 || whole ? 1 : 0);
  if (reused == 0) return match;
  for (size_t i = 0; i < reused; ++i) match.pages.push_back(path[i]->page);
  if (top_logprobs < 0) return match;
  for (size_t i = 0; i < reused; ++i) {
    for (const auto& logprob : path[i]->logprobs) match.logprobs.push_back(WithTop(logprob, top_logprobs));
  }
  match.logprobs.push_back(WithTop(path[reused]->logprobs.front(), top_logprobs));
  return match;
}

void PrefixCache::Insert(const Sequence& sequence, std::span<const std::optional<TokenLogprob>> logprobs,
                         int top_logprobs, const std::string& salt) {
  Node* node = root_.get();
  for (int64_t i = 0; i < WholePages(sequence.computed()); ++i) {
    Key key = KeyOf(sequence.ids(), i, salt);
    Node* next = Child(*node, key);
    if (next == nullptr) {
      const auto self = node->children.emplace(std::move(key), std::make_unique<Node>()).first;
      next = self->second.get();
      next->parent = node;
      next->page = sequence.page(i);
      next->self = self;
      next->recent = recent_.insert(recent_.end(), next);
    }
    const auto begin = static_cast<size_t>(i * kKvPageTokens);
    if (top_logprobs > next->top_logprobs && begin + kKvPageTokens <= logprobs.size()) {
      const auto first = logprobs.begin() + static_cast<std::ptrdiff_t>(begin);
      next->logprobs.assign(first, first + kKvPageTokens);
      next->top_logprobs = top_logprobs;
    }
    node = next;
  }
  Touch(*node);
}

bool PrefixCache::MakeRoom(int64_t tokens, std::span<const KvPage> but) {
  if (engine_.free_tokens() >= tokens) return true;
  if (free_tokens(but) < tokens) return false;
  // Pages in use that come by here go too: they are as old, and leave nothing behind them reachable.
  while (engine_.free_tokens() < tokens) Forget(*recent_.back());
  return true;
}

}  // namespace stoch
