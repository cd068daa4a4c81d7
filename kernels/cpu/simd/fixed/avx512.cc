// SPDX-License-Identifier: Apache-2.0
// Products of integers with AVX-512.
#include "kernels/cpu/simd/fixed/avx512.h"

namespace stoch::cpu::avx512 {
namespace {

struct File;
using Loops = FixedBy<Avx512Fixed<File>>;

}  // namespace

constinit const FixedLoops kFixed = {Loops::Convert, Loops::Dots, Loops::Stored, 6};

}  // namespace stoch::cpu::avx512
