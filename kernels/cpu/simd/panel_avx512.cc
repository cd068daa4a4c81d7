// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/simd/avx512.h"
#include "kernels/cpu/simd/count_vectors_x86.h"

namespace stoch::cpu::avx512 {
namespace {

struct File;
using Loops = Panel<Register64<File>, Register32<File>, Register16<File>>;

}  // namespace

void PanelAdd(const ScPanelLeft* left, int64_t num_left, int64_t dims, int levels, const uint8_t* blocks,
              int64_t block_stride, int64_t num_blocks, uint8_t* table, uint16_t* sums) {
  Loops::Add(left, num_left, dims, levels, blocks, block_stride, num_blocks, table, sums);
}

void PanelSums(const uint16_t* sums, int64_t block, int64_t num_left, int64_t dims, bool add, int32_t* acc) {
  Loops::Sums(sums, block, num_left, dims, add, acc);
}

}  // namespace stoch::cpu::avx512
