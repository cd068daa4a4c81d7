// SPDX-License-Identifier: Apache-2.0
// Tokens of an answer and their logprobs, as compactly as they can wait for a client.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/request/request.h"

namespace stoch::serve {

// 16 bytes a token and 12 an alternative.
class TokenColumns {
 public:
  // logprob null: none (the first token of a prompt).
  void Add(int32_t id, const TokenLogprob* logprob) {
    ids_.push_back(id);
    logprobs_.push_back(logprob == nullptr ? std::nan("") : logprob->logprob);
    if (logprob != nullptr) {
      for (const auto& [other, value] : logprob->top) {
        top_ids_.push_back(other);
        top_logprobs_.push_back(value);
      }
    }
    ends_.push_back(static_cast<uint32_t>(top_ids_.size()));
  }
  void Reserve(size_t tokens, size_t alternatives) {
    ids_.reserve(tokens);
    logprobs_.reserve(tokens);
    ends_.reserve(tokens);
    top_ids_.reserve(alternatives);
    top_logprobs_.reserve(alternatives);
  }
  // Gives its memory back.
  void Clear() { *this = TokenColumns(); }

  size_t size() const { return ids_.size(); }
  int32_t id(size_t i) const { return ids_[i]; }
  bool has_logprob(size_t i) const { return !std::isnan(logprobs_[i]); }
  double logprob(size_t i) const { return logprobs_[i]; }
  std::span<const int32_t> top_ids(size_t i) const { return Slice(top_ids_, i); }
  std::span<const double> top_logprobs(size_t i) const { return Slice(top_logprobs_, i); }

 private:
  template <class T>
  std::span<const T> Slice(const std::vector<T>& column, size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::span<const T>(column).subspan(begin, ends_[i] - begin);
  }

  std::vector<int32_t> ids_;
  std::vector<double> logprobs_;
  std::vector<uint32_t> ends_;  // of each token's alternatives in the columns below
  std::vector<int32_t> top_ids_;
  std::vector<double> top_logprobs_;
};

}  // namespace stoch::serve
