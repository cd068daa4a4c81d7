// SPDX-License-Identifier: Apache-2.0
// Guesses at the next tokens of a sequence, which a pass checks: rows of a pass have the bits of single steps where the
// configuration is chunk-invariant, so a text is the same with any guesses, and only its speed depends on them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace stoch {

// A guessed token, and how likely it is right where those before it are: 0..1.
struct DraftedToken {
  int32_t id = 0;
  double likely = 0;
};

// Guesses for one sequence. Threads: that of its engine.
class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // ids: every token of the sequence so far; calls of one source only ever see more of them behind the same ones.
  // Returns: at most `most` tokens that may follow, ids of the vocabulary; none where it has no guess.
  virtual std::vector<DraftedToken> Propose(std::span<const int32_t> ids, int64_t most) = 0;
};

using DraftSourceMaker = std::function<std::unique_ptr<DraftSource>()>;

// Statistics of the drafts of one sequence.
struct DraftCounts {
  int64_t passes = 0;    // with drafts
  int64_t drafted = 0;   // tokens
  int64_t accepted = 0;  // of them, those that were right
};

}  // namespace stoch
