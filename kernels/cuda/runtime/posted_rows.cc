// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/posted_rows.h"

#include <utility>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/base/memory.h"

namespace stoch::cuda {
namespace {

constexpr int64_t kTurns = 3;  // rows besides the first

}  // namespace

PostedRows::PostedRows(Device device, cudaStream_t stream, bool supported)
    : device_(device), stream_(stream), supported_(supported) {
  if (!supported_) return;
  memory_ = AllocateDevice(device, (1 + kTurns) * kRowWords * static_cast<int64_t>(sizeof(uint32_t)));
  STOCH_CUDA(cudaMemsetAsync(memory_.data(), 0, static_cast<size_t>(memory_.bytes()), stream_));
}

uint32_t* PostedRows::Row(int64_t index) const {
  const int64_t row = index == 0 ? 0 : 1 + (index - 1) % kTurns;
  return static_cast<uint32_t*>(memory_.data()) + row * kRowWords;
}

RowPost PostedRows::Next(int64_t words) const {
  // A kernel that polls posts, too.
  if (!supported_ || (!enabled_ && !shared_) || words > kRowWords) return {};
  RowPost post;
  post.words = Row(posts_);
  if (posts_ == 0) {
    post.clear = Row(1);
    post.clear_words = static_cast<int32_t>(kTurns * kRowWords);
  } else if (posts_ >= 2) {
    post.clear = Row(posts_ - 2);
    post.clear_words = static_cast<int32_t>((last_words_[1] + 3) / 4 * 4);
  }
  return post;
}

RowPost PostedRows::Next(const float* out, int64_t count, int64_t words, PostPeers* peers) const {
  if (!share_ || share_->from != out || share_->count != count) return Next(words);
  *peers = share_->peers;
  return share_->post;
}

void PostedRows::Posted(const RowPost& post, int64_t words) {
  offered_ = {};
  readable_ = {};
  if (post.num_peers > 0) {
    is_shared_ = true;
    return;
  }
  ++posts_;
  last_words_ = {words, last_words_[0]};
}

void PostedRows::Offer(const void* data, int64_t count, const uint32_t* words) {
  STOCH_CHECK(offered_.size < kMaxParts);
  offered_.parts[static_cast<size_t>(offered_.size++)] = {static_cast<const uint32_t*>(data), count, words};
}

const uint32_t* PostedRows::Find(const void* data, int64_t count) const {
  const auto* first = static_cast<const uint32_t*>(data);
  for (int i = 0; i < readable_.size; ++i) {
    const Part& part = readable_.parts[static_cast<size_t>(i)];
    if (first >= part.data && first + count <= part.data + part.count) return part.words + (first - part.data);
  }
  return nullptr;
}

void PostedRows::CountCall(bool polls_shared) {
  readable_ = std::exchange(offered_, {});
  if (!polls_shared) Settle();
}

bool PostedRows::TakeShared(const float* from) {
  const bool taken = is_shared_ && share_->from == from;
  share_.reset();
  is_shared_ = false;
  return taken;
}

const SharedRow* PostedRows::FindShared(const void* data, int64_t count) const {
  return shared_ && shared_->to == data && shared_->count == count ? &*shared_ : nullptr;
}

void PostedRows::Settle() {
  if (!shared_) return;
  DeviceGuard guard(device_);
  shared_->settle(*shared_, stream_);
  shared_.reset();
}

void PostedRows::End() {
  Settle();
  // The third kernel of a sequence clears the first row.
  if (posts_ == 1 || posts_ == 2) {
    STOCH_CUDA(cudaMemsetAsync(Row(0), 0, static_cast<size_t>(kRowWords) * sizeof(uint32_t), stream_));
  }
  posts_ = 0;
  offered_ = {};
  readable_ = {};
  share_.reset();
  is_shared_ = false;
  shared_by_ = nullptr;
}

}  // namespace stoch::cuda
