// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/page_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <vector>

#include "kernels/math/random.h"

namespace stoch {
namespace {

TEST(PageAllocator, HandsOutLowestPagesFirstAndAllOrNothing) {
  PageAllocator pages(4);
  EXPECT_EQ(pages.Allocate(2), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(pages.Allocate(1), (std::vector<int32_t>{2}));
  EXPECT_TRUE(pages.Allocate(2).empty());
  EXPECT_EQ(pages.free_pages(), 1);
  pages.Release(std::vector<int32_t>{1});
  EXPECT_EQ(pages.Allocate(2), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(pages.free_pages(), 0);
}

TEST(PageAllocator, RefusesPagesThatAreNotOut) {
  PageAllocator pages(2);
  const std::vector<int32_t> page = pages.Allocate(1);
  pages.Release(page);
  EXPECT_THROW(pages.Release(page), std::logic_error);
  EXPECT_THROW(pages.Release(std::vector<int32_t>{2}), std::logic_error);
}

TEST(PageAllocator, NeverSharesOrLosesAPage) {
  constexpr int64_t kPages = 37;
  PageAllocator pages(kPages);
  std::vector<std::vector<int32_t>> held;
  for (uint64_t step = 0; step < 5000; ++step) {
    if (held.empty() || RandomUniform(1, 2, step) < 0.5f) {
      const auto count = static_cast<int64_t>(RandomBits(1, 3, step) % 9) + 1;
      std::vector<int32_t> got = pages.Allocate(count);
      if (!got.empty()) held.push_back(std::move(got));
    } else {
      const size_t victim = RandomBits(1, 4, step) % held.size();
      pages.Release(held[victim]);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    std::set<int32_t> distinct;
    size_t total = 0;
    for (const auto& run : held) {
      distinct.insert(run.begin(), run.end());
      total += run.size();
    }
    ASSERT_EQ(distinct.size(), total);
    ASSERT_EQ(static_cast<int64_t>(total) + pages.free_pages(), kPages);
  }
}

}  // namespace
}  // namespace stoch
