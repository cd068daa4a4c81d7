// SPDX-License-Identifier: Apache-2.0
// Which pages of a KV cache are free. One numbering serves every layer and device of a model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace stoch {

// Pages are handed out lowest number first, so the same requests in the same order get the same pages.
class PageAllocator {
 public:
  explicit PageAllocator(int64_t num_pages);

  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  // `count` pages, or none at all where fewer are free.
  std::vector<int32_t> Allocate(int64_t count);
  // Requires: pages came from Allocate and were not released since.
  void Release(std::span<const int32_t> pages);

 private:
  std::vector<int32_t> free_;  // a heap, the lowest on top
  std::vector<bool> used_;
};

}  // namespace stoch
