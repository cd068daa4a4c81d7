#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace stoch::cpu {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, EveryIterationRunsOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.size(), GetParam());
  for (int64_t count = 0; count < 200; ++count) {
    std::vector<int> runs(static_cast<size_t>(count));
    pool.ParallelFor(count, [&](int64_t i, int thread) {
      ASSERT_GE(thread, 0);
      ASSERT_LT(thread, GetParam());
      ++runs[static_cast<size_t>(i)];
    });
    EXPECT_EQ(runs, std::vector<int>(static_cast<size_t>(count), 1));
  }
}

// Scratch indexed by `thread` needs no lock, and what a loop wrote is visible after it.
TEST_P(ThreadPoolTest, ThreadIndicesDoNotMeet) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> sums(static_cast<size_t>(GetParam()));
    pool.ParallelFor(50, [&](int64_t i, int thread) { sums[static_cast<size_t>(thread)] += i; });
    EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), int64_t{0}), 49 * 50 / 2);
  }
}

TEST_P(ThreadPoolTest, TheFirstExceptionComesOutAndThePoolLives) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.ParallelFor(100,
                                  [](int64_t i, int) {
                                    if (i % 10 == 3) throw std::runtime_error("three");
                                  }),
                 std::runtime_error);
    std::atomic<int> runs{0};
    pool.ParallelFor(10, [&](int64_t, int) { ++runs; });
    EXPECT_EQ(runs.load(), 10);
  }
}

TEST(ThreadPoolLife, PoolsComeAndGo) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool unused(3);
    ThreadPool used(2);
    used.ParallelFor(2, [](int64_t, int) {});
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolTest, testing::Values(1, 2, 3, 5));

}  // namespace
}  // namespace stoch::cpu
