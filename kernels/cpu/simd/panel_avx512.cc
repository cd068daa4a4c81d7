// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/simd/avx512.h"
#include "kernels/cpu/simd/count_vectors_x86.h"

namespace stoch::cpu::avx512 {
namespace {

struct File;
using Loops = Panel<Register64<File>, Register32<File>, Register16<File>>;

}  // namespace

constinit const PanelLoops kPanelBw = {Loops::Add, Loops::Sums, 17, 2};
constinit const PanelLoops kPanelVbmi = {Loops::Add, Loops::Sums, 49, 1};

}  // namespace stoch::cpu::avx512
