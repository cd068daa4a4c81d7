// SPDX-License-Identifier: Apache-2.0
#include <arm_neon.h>

#include "kernels/cpu/simd/count_vectors.h"
#include "kernels/cpu/simd/neon.h"

namespace stoch::cpu::neon {
namespace {

// The register of count_vectors.h.
struct Register {
  static constexpr int kBytes = 16;
  using Bytes = uint8_t __attribute__((vector_size(kBytes)));
  using Words = uint16_t __attribute__((vector_size(kBytes)));
  static Bytes Gather(const uint8_t* const* rows, int64_t at) { return vld1q_u8(rows[0] + at); }
  static void Settle(Words& v) { asm("" : "+w"(v)); }
};
using Loops = Panel<Register, Register, Register>;

}  // namespace

constinit const PanelLoops kPanel = {Loops::Add, Loops::Sums, 17, 2};

}  // namespace stoch::cpu::neon
