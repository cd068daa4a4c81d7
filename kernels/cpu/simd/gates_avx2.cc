// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/simd/avx2.h"
#include "kernels/cpu/simd/gate_sums.h"

namespace stoch::cpu::avx2 {
namespace {

struct Blocks {
  static constexpr int kBlocks = 2;
  using Planes = uint64_t __attribute__((vector_size(32)));
  __attribute__((always_inline)) static inline Planes Swap(const Planes& x) {
    return __builtin_shufflevector(x, x, 2, 3, 0, 1);
  }
};

}  // namespace

void SumByGates(const GateCall& call) { GateSums<Blocks>::Sum(call); }

}  // namespace stoch::cpu::avx2
