// SPDX-License-Identifier: Apache-2.0
// Rows that GPUs make together while graphs are recorded. A kernel that computes columns of such a row posts them on
// every GPU (handover/row_channel.h), and a kernel that reads the row polls it in its own GPU's memory. So an exchange
// is not a kernel, and takes only as long as a word needs to reach another GPU.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/all_gather_check.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Shared row buffers of a group of devices. Each device has four row buffers that take turns: row number n uses buffer
// n mod 4, the kernel that posts to row n zeroes row n - 2, and all buffers are zero when a recording begins to use
// them.
//
// The zeros are in time for row n + 2, which uses the buffer of row n - 2: a device posts to row n + 2 only once it has
// all of row n + 1, and every device posts to row n + 1 only after its kernel that posted to row n and zeroed row n - 2
// has ended. No kernel still reads row n - 2 then: the kernel that posts to row n starts after the reader of row n - 1.
class SharedRows {
 public:
  // Returns null if a device does not support shared rows, or there are too many devices. Requires: every device
  // reaches every other device's memory; contexts and `failed` outlive the object. failed: int in mapped host memory, 0
  // or the mark of a device that did not come in time. Errors: DeviceError, OutOfMemory.
  static std::unique_ptr<SharedRows> Make(const std::vector<DeviceContext*>& contexts, int* failed);

  // Whether a call exchanges one row of which every device makes a part and which every device reads. Requires: the
  // call was checked.
  bool Takes(const AllGatherCall& call, const GatherPlan& plan) const;
  // HasBegun: whether the current recording uses shared rows. If it does not, call Begin, which zeroes all buffers, and
  // then let all devices wait for each other.
  bool HasBegun() const;
  void Begin();
  // Announces that the next op of device `rank` makes this device's part of the row. Requires: Takes(call, plan) and
  // HasBegun().
  void Announce(size_t rank, const AllGatherCall& call, const GatherPlan& plan);
  // If every device has posted its part, offers the row to the next op of every device and returns true: the exchange
  // is done. Otherwise returns false.
  bool Offer(const AllGatherCall& call, const GatherPlan& plan);

 private:
  static constexpr int64_t kTurns = 4;

  SharedRows(const std::vector<DeviceContext*>& contexts, int* failed);
  uint32_t* Row(size_t rank, int64_t number) const;

  std::vector<DeviceContext*> contexts_;
  int* failed_;
  std::vector<Buffer> rows_;                // [device] memory of its rows: [kTurns][kChannelWords]
  int64_t number_ = 0;                      // number of the row that is made next
  std::array<int64_t, kTurns> words_ = {};  // [n mod kTurns] words in use of row n
};

}  // namespace stoch::cuda
