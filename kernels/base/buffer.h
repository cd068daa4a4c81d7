// SPDX-License-Identifier: Apache-2.0
// Owning memory of one device.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "kernels/base/device.h"

namespace stoch {

// A move-only block of bytes that knows its device and how it is freed. Made by Backend::Allocate.
class Buffer {
 public:
  using Deleter = std::function<void(void*, size_t)>;

  Buffer() = default;
  Buffer(void* data, size_t bytes, Device device, Deleter deleter)
      : data_(data), bytes_(bytes), device_(device), deleter_(std::move(deleter)) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (data_ != nullptr && deleter_) deleter_(data_, bytes_);
  }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(device_, other.device_);
    std::swap(deleter_, other.deleter_);
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
  Device device_;
  Deleter deleter_;
};

}  // namespace stoch
