#include "kernels/cuda/sc/format/direct_ranks.h"

namespace stoch::cuda {

bool RanksAreDirect(const ScOperator& op) {
  const int length = op.config.stoc_len;
  if ((length != 128 && length != 64) || op.levels != 128) return false;
  for (size_t i = 0; i < op.ranks_b.size(); ++i) {
    const size_t q = i % 128;
    const size_t rank = q + (q >> 6);
    if (op.ranks_b[i] != (length == 128 ? rank : (rank + 1) / 2)) return false;
  }
  return true;
}

}  // namespace stoch::cuda
