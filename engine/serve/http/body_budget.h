// SPDX-License-Identifier: Apache-2.0
// The memory that the bodies of all requests take together.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace stoch::serve {

// Threads: safe. Outlives its leases.
class BodyBudget {
 public:
  explicit BodyBudget(int64_t bytes) : left_(bytes) {}

  int64_t left() const { return left_; }
  bool Take(int64_t bytes) {
    int64_t left = left_;
    while (left >= bytes) {
      if (left_.compare_exchange_weak(left, left - bytes)) return true;
    }
    return false;
  }
  void Return(int64_t bytes) { left_ += bytes; }

 private:
  std::atomic<int64_t> left_;
};

// What one body has of a budget; it goes back with this.
class BodyLease {
 public:
  BodyLease() = default;
  explicit BodyLease(BodyBudget& budget) : budget_(&budget) {}
  BodyLease(BodyLease&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  BodyLease& operator=(BodyLease&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~BodyLease() {
    if (budget_ != nullptr) budget_->Return(bytes_);
  }

  int64_t bytes() const { return bytes_; }
  // False, and nothing taken, if the budget has not that much.
  bool GrowTo(int64_t bytes) {
    if (budget_ == nullptr || !budget_->Take(bytes - bytes_)) return false;
    bytes_ = bytes;
    return true;
  }

 private:
  BodyBudget* budget_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace stoch::serve
