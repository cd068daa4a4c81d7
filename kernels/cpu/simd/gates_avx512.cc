// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/simd/avx512.h"
#include "kernels/cpu/simd/gate_sums.h"

namespace stoch::cpu::avx512 {
namespace {

struct Blocks {
  static constexpr int kBlocks = 4;
  using Planes = uint64_t __attribute__((vector_size(64)));
  __attribute__((always_inline)) static inline Planes Swap(const Planes& x) {
    return __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3);
  }
};

}  // namespace

void SumByGates(const GateCall& call) { GateSums<Blocks>::Sum(call); }

}  // namespace stoch::cpu::avx512
