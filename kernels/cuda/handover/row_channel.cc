// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/handover/row_channel.h"

#include <utility>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/base/memory.h"

namespace stoch::cuda {
namespace {

constexpr int64_t kTurns = 3;  // rows that the later kernels of a sequence post to in rotation; its first has row 0

}  // namespace

RowChannel::RowChannel(Device device, cudaStream_t stream, bool supported, SharedSlot* shared)
    : device_(device), stream_(stream), supported_(supported), shared_(shared) {
  if (!supported_) return;
  memory_ = AllocateDevice(device, (1 + kTurns) * kChannelWords * static_cast<int64_t>(sizeof(uint32_t)));
  STOCH_CUDA(cudaMemsetAsync(memory_.data(), 0, static_cast<size_t>(memory_.bytes()), stream_));
}

uint32_t* RowChannel::Row(int64_t index) const {
  const int64_t row = index == 0 ? 0 : 1 + (index - 1) % kTurns;
  return static_cast<uint32_t*>(memory_.data()) + row * kChannelWords;
}

RowPost RowChannel::Next(const RowOutputs& outputs, bool is_open, PostPeers* peers) const {
  const std::optional<SharedPart>& part = shared_->announced;
  const RowOutput& only = outputs.parts[0];
  if (outputs.can_share && outputs.size == 1 && part && part->from == only.data && part->count == only.count) {
    *peers = part->peers;
    return part->post;
  }
  // A kernel posts only if the channel is open, or if it polls a row that is shared by several GPUs.
  if (!supported_ || outputs.words == 0 || (!is_open && !shared_->offered) || outputs.words > kChannelWords) return {};
  RowPost post;
  post.words = Row(posts_);
  if (posts_ == 0) {
    post.clear = Row(1);
    post.clear_words = static_cast<int32_t>(kTurns * kChannelWords);
  } else if (posts_ >= 2) {
    post.clear = Row(posts_ - 2);
    post.clear_words = static_cast<int32_t>((last_words_[1] + 3) / 4 * 4);
  }
  return post;
}

RowPost RowChannel::Take(const RowOutputs& outputs, bool is_open, const PolledRow& polled, PostPeers* peers) {
  const RowPost post = Next(outputs, is_open, peers);
  if (post && polled.is_shared_row) shared_->offered.reset();  // this kernel polls the shared row, its only reader
  Settle();
  return post;
}

// Forgets all rows posted before this one: the next kernel that posts zeroes the row before this one (RowChannel), so
// later kernels must not poll it.
void RowChannel::Offer(const RowOutputs& outputs, const RowPost& post) {
  offered_ = {};
  readable_ = {};
  if (post.num_peers > 0) {
    shared_->is_posted = true;  // the all-gather makes the row available to readers
    return;
  }
  ++posts_;
  last_words_ = {outputs.words, last_words_[0]};
  for (int i = 0; i < outputs.size; ++i) {
    const RowOutput& part = outputs.parts[static_cast<size_t>(i)];
    offered_.parts[static_cast<size_t>(offered_.size++)] = {reinterpret_cast<const uint32_t*>(part.data), part.count,
                                                            post.words + part.first};
  }
}

PolledRow RowChannel::Poll(const void* data, int64_t count) const {
  if (const auto& row = shared_->offered; row && row->to == data && row->count == count) {
    return {row->words, row->silu_by, row->wait, true};
  }
  PolledRow polled;
  const auto* first = static_cast<const uint32_t*>(data);
  for (int i = 0; i < readable_.size && !polled; ++i) {
    const Posted& part = readable_.parts[static_cast<size_t>(i)];
    if (first >= part.data && first + count <= part.data + part.count) polled.words = part.words + (first - part.data);
  }
  return polled;
}

void RowChannel::Begin(bool polls_shared) {
  readable_ = std::exchange(offered_, {});
  if (!polls_shared) Settle();
}

void RowChannel::Settle() {
  if (!shared_->offered) return;
  DeviceGuard guard(device_);
  shared_->offered->settle(*shared_->offered, stream_);
  shared_->offered.reset();
}

void RowChannel::Close() {
  Settle();
  // The third posting kernel of a sequence clears the first row. If the sequence ends before that, clear the row here.
  if (posts_ == 1 || posts_ == 2) {
    STOCH_CUDA(cudaMemsetAsync(Row(0), 0, static_cast<size_t>(kChannelWords) * sizeof(uint32_t), stream_));
  }
  posts_ = 0;
  offered_ = {};
  readable_ = {};
  *shared_ = {};
}

}  // namespace stoch::cuda
