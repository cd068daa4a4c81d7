// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/fabric/comm/shared_rows.h"

#include <algorithm>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/fabric/comm/gather_kernels.h"

namespace stoch::cuda {
namespace {

constexpr int64_t kRowBytes = kChannelWords * static_cast<int64_t>(sizeof(uint32_t));

int64_t WordsOf(const AllGatherCall& call, const GatherPlan& plan) {
  return plan.cols() * (HasSecondOperand(call) ? 2 : 1);
}

}  // namespace

std::unique_ptr<SharedRows> SharedRows::Make(const std::vector<DeviceContext*>& contexts, int* failed) {
  bool can = contexts.size() <= kMaxPostPeers + 1;
  for (DeviceContext* ctx : contexts) can = can && ctx->traits.has_hopper_code;
  return can ? std::unique_ptr<SharedRows>(new SharedRows(contexts, failed)) : nullptr;
}

SharedRows::SharedRows(const std::vector<DeviceContext*>& contexts, int* failed)
    : contexts_(contexts), failed_(failed) {
  for (const DeviceContext* ctx : contexts_) {
    DeviceGuard guard(ctx->device);
    rows_.push_back(AllocateDevice(ctx->device, static_cast<size_t>(kTurns * kRowBytes)));
  }
}

uint32_t* SharedRows::Row(size_t rank, int64_t number) const {
  return static_cast<uint32_t*>(rows_[rank].data()) + number % kTurns * kChannelWords;
}

bool SharedRows::Takes(const AllGatherCall& call, const GatherPlan& plan) const {
  if (plan.rows != 1 || call.to.size() != contexts_.size() || WordsOf(call, plan) > kChannelWords) return false;
  for (size_t i = 0; i < contexts_.size(); ++i) {
    if (plan.cols_of(i) == 0) return false;
  }
  return true;
}

bool SharedRows::HasBegun() const {
  return std::all_of(contexts_.begin(), contexts_.end(),
                     [this](DeviceContext* ctx) { return ctx->shared_slot.by == this; });
}

void SharedRows::Begin() {
  number_ = 0;
  for (size_t i = 0; i < contexts_.size(); ++i) {
    DeviceGuard guard(contexts_[i]->device);
    contexts_[i]->shared_slot.by = this;
    STOCH_CUDA(cudaMemsetAsync(rows_[i].data(), 0, static_cast<size_t>(kTurns * kRowBytes), contexts_[i]->stream));
  }
}

void SharedRows::Announce(size_t rank, const AllGatherCall& call, const GatherPlan& plan) {
  SharedPart part;
  const int64_t own = plan.cols_of(rank);
  part.from = call.from[rank].ptr<const float>();
  part.count = own;
  part.peers.first = static_cast<int>(plan.begin[rank]);
  if (HasSecondOperand(call)) {
    if (call.from2[rank].ptr<const float>() != part.from + own) return;
    part.count = 2 * own;
    part.peers.half = static_cast<int>(own);
    part.peers.half_shift = static_cast<int>(plan.cols() - own);
  }
  part.post.words = Row(rank, number_);
  if (number_ >= 2) {
    part.post.clear = Row(rank, number_ - 2);
    part.post.clear_words = static_cast<int32_t>((words_[static_cast<size_t>((number_ - 2) % kTurns)] + 3) / 4 * 4);
  }
  for (size_t i = 0; i < contexts_.size(); ++i) {
    if (i != rank) part.peers.words[part.post.num_peers++] = Row(i, number_);
  }
  contexts_[rank]->shared_slot.announced = part;
}

bool SharedRows::Offer(const AllGatherCall& call, const GatherPlan& plan) {
  size_t posted = 0;
  for (size_t i = 0; i < contexts_.size(); ++i) {
    SharedSlot& slot = contexts_[i]->shared_slot;
    const bool is_posted = slot.is_posted && slot.announced->from == call.from[i].ptr<const float>();
    slot.announced.reset();
    slot.is_posted = false;
    posted += is_posted ? 1 : 0;
  }
  if (posted == 0) return false;
  // Only some devices posted: their words stay in buffers that a later row would read. Without `by`, HasBegun is false,
  // and Begin zeroes all buffers before the next row is announced.
  if (posted < contexts_.size()) {
    for (DeviceContext* ctx : contexts_) ctx->shared_slot.by = nullptr;
    return false;
  }
  for (const TensorView& to : call.to) {
    for (size_t i = 0; i < contexts_.size(); ++i) {
      if (contexts_[i]->device != to.device) continue;
      SharedRow row;
      row.words = Row(i, number_);
      if (HasSecondOperand(call)) row.silu_by = row.words + plan.cols();
      row.to = to.ptr<float>();
      row.count = plan.cols();
      if (IsInPlace(call, plan, i, to)) {
        row.own_begin = plan.begin[i];
        row.own_end = plan.begin[i + 1];
      }
      row.settle = LaunchSettleRow;
      row.wait.failed = failed_;
      row.wait.mark = contexts_.size() == 2 ? 2 - static_cast<int>(i) : static_cast<int>(contexts_.size()) + 1;
      contexts_[i]->shared_slot.offered = row;
    }
  }
  words_[static_cast<size_t>(number_ % kTurns)] = WordsOf(call, plan);
  ++number_;
  return true;
}

}  // namespace stoch::cuda
