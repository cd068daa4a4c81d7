// SPDX-License-Identifier: Apache-2.0
// Launches the kernel of expand.cuh for tokens that are rows of a group of stream lengths, or slots of experts.
#include "kernels/base/check.h"
#include "kernels/cuda/sc/hopper/grouped_kernels.h"
#include "kernels/cuda/sc/hopper/row_group_kernels.h"
#include "kernels/cuda/sc/tensor_core/expand.cuh"

namespace stoch::cuda {

void LaunchExpandGroup(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScStreams& out,
                       int* flags, int flag_count, const GroupRows& rows) {
  expand::LaunchWords(ctx, tables, a, out, flags, flag_count, rows);
}

void LaunchExpandGroup(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScStreams& out,
                       int* flags, int flag_count, const MixedGroupRows& rows) {
  expand::LaunchWords(ctx, tables, a, out, flags, flag_count, rows);
}

void LaunchExpandSlots(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScStreams& out,
                       const SlotRows& rows) {
  STOCH_CHECK(out.words == 2 || out.words == 4);
  const auto launch = out.words == 2 ? expand::Launch<2, SlotRows> : expand::Launch<4, SlotRows>;
  launch(ctx, tables, a, out, nullptr, 0, rows);
}

}  // namespace stoch::cuda
