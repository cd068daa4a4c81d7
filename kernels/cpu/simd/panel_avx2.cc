// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/simd/avx2.h"
#include "kernels/cpu/simd/count_vectors_x86.h"

namespace stoch::cpu::avx2 {
namespace {

struct File;
using Loops = Panel<Register32<File>, Register32<File>, Register16<File>>;

}  // namespace

constinit const PanelLoops kPanel = {Loops::Add, Loops::Sums, 17, 2};

}  // namespace stoch::cpu::avx2
