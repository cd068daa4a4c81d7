// SPDX-License-Identifier: Apache-2.0
// The two products of attention of one whole window, exactly and at stream lengths, row by row on the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/sc/sc_operator.h"

namespace stoch {

// Reads the operands of a call that OpObserver::OnAttention shows. Positions that a row does not see have p = 0.
// Requires: one sequence from position 0; the views stay valid.
class ExactAttention {
 public:
  ExactAttention(const AttentionCall& call, const PassLayout& layout);

  int64_t rows() const { return rows_; }
  int64_t heads() const { return heads_; }
  int64_t head_dim() const { return head_dim_; }
  int64_t visible(int64_t row) const { return row + 1 - first(row); }  // positions that a row sees
  const float* Query(int64_t head, int64_t row) const;

  // q k of positions 0..row, before 1 / sqrt(head_dim); those that the row does not see are 0. In kDotLanes order.
  std::vector<float> Scores(int64_t head, int64_t row) const;
  // softmax of what Scores gives, times 1 / sqrt(head_dim). [row + 1]
  std::vector<float> Probabilities(std::span<const float> scores, int64_t row) const;
  // p v in kDotLanes order. [head_dim]
  std::vector<float> Weighted(int64_t head, std::span<const float> p) const;

  // The same products of codes at several lengths; codes and scales are those of the first operator.
  // Null operators: length 0, a product of +0.
  // Requires: bipolar operators of one configuration, but for their length, that belong to `mode`: kPerToken, or
  //           kPerRow, whose scales span the whole window.
  class Streams {
   public:
    Streams(const ExactAttention& exact, std::vector<ScOperatorPtr> qk, std::vector<ScOperatorPtr> av,
            AttentionMode mode);
    std::vector<float> Scores(int64_t head, int64_t row, size_t length) const;
    std::vector<float> Weighted(int64_t head, std::span<const float> p, size_t length) const;

   private:
    // Levels of vectors of one length, with a scale each.
    struct Codes {
      int64_t size = 0;
      std::vector<int16_t> levels;
      std::vector<float> scales;
    };
    static void Add(const ScOperator& op, const float* x, int64_t n, Codes* codes);

    const ExactAttention& exact_;
    std::vector<ScOperatorPtr> qk_, av_;
    AttentionMode mode_;
    std::vector<Codes> keys_;    // [kv head], a vector for each position
    std::vector<Codes> values_;  // [kv head], for each position, or for each channel (kPerRow)
  };

 private:
  int64_t first(int64_t row) const { return window_ > 0 && row + 1 > window_ ? row + 1 - window_ : 0; }
  const float* Key(int64_t head, int64_t position) const;
  const float* Value(int64_t head, int64_t position) const;
  int64_t group() const { return heads_ / kv_heads_; }

  const AttentionCall& call_;
  int64_t rows_, heads_, kv_heads_, head_dim_, window_;
};

}  // namespace stoch
