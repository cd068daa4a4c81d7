// SPDX-License-Identifier: Apache-2.0
// Rows that GPUs make together while graphs are recorded: whoever makes columns of one posts them on every GPU
// (handover/row_channel.h), and whoever reads it polls it on its own. An exchange is then no kernel; it takes the way of a
// word to another GPU.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/all_gather_check.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// The rows of a group. Four take turns, whoever posts to number n sets number n - 2 to 0, and all are 0 when a recording
// begins to use them. That is in time: a device posts to n + 2, where n - 2 was, only once it has all of n + 1, whose
// words each device posts after the kernel has ended that posted to n and cleared n - 2 there. And nobody reads n - 2 any
// more: what posts to n is behind the reader of n - 1.
class SharedRows {
 public:
  // Null where one of the devices cannot, or there are too many. Requires: every device reaches every other's memory;
  // all given outlive the rows. `failed`: mapped host memory. Errors: DeviceError, OutOfMemory.
  static std::unique_ptr<SharedRows> Make(const std::vector<DeviceContext*>& contexts, int* failed);

  // Whether an exchange is of a row that every device makes a part of and reads. Requires: the call was checked.
  bool Takes(const AllGatherCall& call, const GatherPlan& plan) const;
  // Whether this recording uses the rows. If not, Begin, and then every device waits for all.
  bool HasBegun() const;
  void Begin();
  // The op that device `rank` runs next makes its part. Requires: Takes, HasBegun.
  void Announce(size_t rank, const AllGatherCall& call, const GatherPlan& plan);
  // Offers the row to the next op of every device, where each has posted its part: the exchange is done.
  bool Offer(const AllGatherCall& call, const GatherPlan& plan);

 private:
  static constexpr int64_t kTurns = 4;

  SharedRows(const std::vector<DeviceContext*>& contexts, int* failed);
  uint32_t* Row(size_t rank, int64_t number) const;

  std::vector<DeviceContext*> contexts_;
  int* failed_;
  std::vector<Buffer> rows_;                // of each device: [kTurns][kChannelWords]
  int64_t number_ = 0;                      // of the row that is made next
  std::array<int64_t, kTurns> words_ = {};  // of row number, modulo kTurns
};

}  // namespace stoch::cuda
