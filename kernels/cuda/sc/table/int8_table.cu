// SPDX-License-Identifier: Apache-2.0
// Tables of residuals that int8 products sum (Geometry::kInt8). They have a file of their own because
// tests/kernels/cuda_code_test checks that its machine code has no binary mma.
#include "kernels/cuda/sc/table/residual_lookups.cuh"

namespace stoch::cuda::batch_table {

decltype(&LaunchTable<ResidualLookups<Geometry<8, 1, true>>>) Int8TableLaunch(const LinearPlan& plan) {
  return TableLaunch<false, true>(plan);
}

decltype(&LaunchMixedTable<ResidualLookups<Geometry<8, 1, true>, true>>) Int8MixedTableLaunch(const LinearPlan& plan) {
  return TableLaunch<true, true>(plan);
}

}  // namespace stoch::cuda::batch_table
