// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/page_allocator.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "kernels/base/check.h"

namespace stoch {

PageAllocator::PageAllocator(int64_t num_pages)
    : free_(static_cast<size_t>(num_pages)), used_(static_cast<size_t>(num_pages), false) {
  std::iota(free_.begin(), free_.end(), 0);  // ascending order is a valid min-heap
}

std::vector<int32_t> PageAllocator::Allocate(int64_t count) {
  std::vector<int32_t> pages;
  if (count > free_pages()) return pages;
  for (int64_t i = 0; i < count; ++i) {
    std::pop_heap(free_.begin(), free_.end(), std::greater<>());
    pages.push_back(free_.back());
    free_.pop_back();
    used_[static_cast<size_t>(pages.back())] = true;
  }
  return pages;
}

void PageAllocator::Release(std::span<const int32_t> pages) {
  for (const int32_t page : pages) {
    STOCH_CHECK(page >= 0 && static_cast<size_t>(page) < used_.size() && used_[static_cast<size_t>(page)]);
    used_[static_cast<size_t>(page)] = false;
    free_.push_back(page);
    std::push_heap(free_.begin(), free_.end(), std::greater<>());
  }
}

}  // namespace stoch
