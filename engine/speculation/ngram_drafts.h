// SPDX-License-Identifier: Apache-2.0
// Guesses by looking up: what followed the last three tokens when they came before in the sequence (prompt look-up).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/speculation/draft_source.h"

namespace stoch {

// Time a token: a look-up in a hash table. Memory: some 50 bytes a token.
class NgramDrafts final : public DraftSource {
 public:
  std::vector<DraftedToken> Propose(std::span<const int32_t> ids, int64_t most) override;

 private:
  static constexpr int64_t kLength = 3;  // tokens that have to be equal
  // How often guesses were right, by how long the match is: short ones are often chance, long ones are copies. It is
  // learnt from every token, whether a pass checked the guess or not, so that nothing is spent on finding out.
  struct Accuracy {
    double likely = 0;
    void Learn(bool right);
  };
  static constexpr int kMatchClasses = 4;
  static int ClassOf(int64_t matched);

  void Take(std::span<const int32_t> ids);

  std::unordered_map<uint64_t, int64_t> after_;  // hash of kLength tokens -> the position after their last occurrence
  std::array<Accuracy, kMatchClasses> accuracy_;
  int64_t seen_ = 0;     // tokens taken
  int64_t source_ = -1;  // the position that the next token is guessed from; -1: none
  int64_t matched_ = 0;  // tokens before it that are equal to the last ones
};

}  // namespace stoch
