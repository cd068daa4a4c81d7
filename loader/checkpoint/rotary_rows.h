// SPDX-License-Identifier: Apache-2.0
// Rows of q_proj and k_proj where RoPE turns a part of a head.
#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace stoch {

// Checkpoints turn dimension i with i + rotary_dim / 2 and pass those from rotary_dim on; attention turns i with
// i + head_dim / 2 of all. So the rows of every head are put in another order, that of q and k alike: their products are those
// of the checkpoint. [turned, first halves | passed, first half | turned, second halves | passed, second half].
class RotaryRows final : public WeightDecoder {
 public:
  // Requires: source is no generated matrix and outlives this; its rows are a multiple of head_dim; both are even.
  RotaryRows(const WeightSource& source, int64_t head_dim, int64_t rotary_dim);
  void Decode(int64_t first, int64_t count, float* out) const override;
  int64_t StoredBytes(int64_t count) const override;

 private:
  int64_t StoredRow(int64_t row) const;

  WeightSource source_;
  int64_t head_dim_;
  int64_t rotary_dim_;
};

}  // namespace stoch
