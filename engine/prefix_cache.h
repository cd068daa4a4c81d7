// SPDX-License-Identifier: Apache-2.0
// Pages of sequences that were computed before, for sequences that begin with the same tokens.
//
// A tree of whole pages: a page is found by the salt of its request, its own tokens and all that come before them, compared
// one by one, never by a hash alone. So how long an answer takes tells nobody of prompts under a salt that he does not know. Pages that nobody else holds give way, least recently used first, when room is needed.
//
// Prompt logprobs: the logits of reused tokens are not computed again, so every page remembers the logprobs of its own
// tokens, where they were computed. The first token that is not reused gets its logprob from the row before it, which
// is reused; so of the pages with known logprobs the last one is computed again, and only its first logprob is used.
//
// Threads: those of the Engine. Requires: engine.chunk_invariant(); the cache must not outlive the engine.
// Bits:    a page's keys and values, and logprobs, are those that computing it again would give.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "engine/engine.h"
#include "engine/logprobs.h"

namespace stoch {

class PrefixCache {
 public:
  explicit PrefixCache(Engine& engine);
  ~PrefixCache();

  struct Match {
    std::vector<KvPage> pages;  // fewer tokens than the prompt, for Engine::NewSequence; they stay while this does
    // Where asked for: of tokens 0 (none) to pages.size() * kKvPageTokens, that one included. Empty without pages.
    std::vector<std::optional<TokenLogprob>> logprobs;
  };
  // Finds the longest beginning of `prompt` known under `salt`. top_logprobs as in GenerateRequest, if it is the prompt's logprobs that
  // are wanted, else -1.
  Match Find(std::span<const int32_t> prompt, int top_logprobs, const std::string& salt = "");

  // Remembers the sequence's whole pages that are computed. logprobs: of its first tokens, with `top_logprobs`
  // alternatives each; may be shorter than the sequence, or empty.
  void Insert(const Sequence& sequence, std::span<const std::optional<TokenLogprob>> logprobs, int top_logprobs,
              const std::string& salt = "");

  // Forgets pages until `tokens` positions are free, besides those of `but`: pages of a Match that is alive.
  // Returns: false, having forgotten nothing, where that many cannot become free.
  bool MakeRoom(int64_t tokens, std::span<const KvPage> but = {});
  // Positions of pages that are free or that nobody but this holds; those of `but` do not count. Costs nothing but a
  // look at each page of `but`: it is asked for in every pass.
  int64_t free_tokens(std::span<const KvPage> but = {}) const { return engine_.unheld_tokens(but); }

 private:
  struct Node;
  struct Key {
    std::vector<int32_t> tokens;  // of one page
    std::string salt;             // "" but of a first page
    bool operator<(const Key& other) const { return std::tie(tokens, salt) < std::tie(other.tokens, other.salt); }
  };

  Key KeyOf(std::span<const int32_t> ids, int64_t page, const std::string& salt) const;
  Node* Child(Node& parent, const Key& key);
  void Touch(Node& node);
  void Forget(Node& leaf);

  Engine& engine_;
  std::unique_ptr<Node> root_;
  std::list<Node*> recent_;  // latest first, and every node behind its parent
};

}  // namespace stoch
