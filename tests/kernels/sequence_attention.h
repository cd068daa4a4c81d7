// SPDX-License-Identifier: Apache-2.0
// Attention over parts of sequences whose q, k and v a test gives.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "tests/kernels/definition.h"

namespace stoch::test {

// Random q, k and v of a whole sequence, a row for each position.
struct SequenceInputs {
  SequenceInputs(uint64_t seed, int64_t tokens, int64_t q_cols, int64_t kv_cols);
  Matrix q, k, v;
};

Matrix RowsOf(const Matrix& m, int64_t begin, int64_t count);
// The columns of one head.
Matrix HeadOf(const Matrix& m, int64_t head, int64_t head_dim);

// Positions [begin, begin + count) of a sequence whose cache is in `pages`.
struct SequencePart {
  const SequenceInputs* inputs;
  int64_t begin, count;
  std::vector<int32_t> pages;
};

// Runs `call`, whose q, k, v, pass and out this fills in, over all parts in one pass; a norm of heads, of whose q and k
// the same holds, as part of the op, or apart in front of it. Returns: the outputs of the parts' rows, in order.
Matrix RunAttentionParts(Backend& backend, Pass& pass, AttentionCall call, const std::vector<SequencePart>& parts,
                         bool norm_apart = false);

}  // namespace stoch::test
