// SPDX-License-Identifier: Apache-2.0
// A guide of the tests' own, for builds without grammars: ids that are alike modulo a number, then the end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/request/grammar.h"
#include "kernels/base/error.h"

namespace stoch::test {

// Id number i of an answer is i modulo `step`, is not the end, and differs from the one before; after `length` of them comes the end. For
// vocabularies of 96 tokens.
class CountingGuide final : public TokenGuide {
 public:
  static constexpr int32_t kEnd = 2;
  static constexpr int32_t kVocab = 96;

  CountingGuide(int32_t step, size_t length) : step_(step), length_(length) {}
  bool Allows(int32_t id) const {
    if (ids_.size() == length_) return id == kEnd;
    return id != kEnd && id % step_ == static_cast<int32_t>(ids_.size()) % step_ && (ids_.empty() || id != ids_.back());
  }
  void Fill(std::span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0);
    for (int32_t id = 0; id < kVocab; ++id) {
      if (Allows(id)) mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    }
  }
  void Accept(int32_t id) override {
    if (!Allows(id)) throw InvalidInput("the grammar does not allow it");
    ids_.push_back(id);
  }

 private:
  const int32_t step_;
  const size_t length_;
  std::vector<int32_t> ids_;
};

}  // namespace stoch::test
