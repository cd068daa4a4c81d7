// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
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

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Stands for any limit: stacks find no room, and creating a thread fails as it does at a limit of processes.
[[noreturn]] void RunAPoolWithoutRoom() {
  constexpr rlim_t kRoom = 128 << 20;
  constexpr rlim_t kStack = 8 << 20;
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  const rlimit memory = {pages * 4096 + kRoom, pages * 4096 + kRoom};
  const rlimit stack = {kStack, kStack};
  if (setrlimit(RLIMIT_AS, &memory) != 0 || setrlimit(RLIMIT_STACK, &stack) != 0) std::_Exit(2);
  {
    ThreadPool pool(4096);
    if (pool.size() >= 4096 || pool.size() < 2) std::_Exit(3);
    std::atomic<int> runs{0};
    pool.ParallelFor(100, [&](int64_t, int) { ++runs; });
    if (runs.load() != 100) std::_Exit(4);
  }
  std::_Exit(0);
}

TEST(ThreadPoolLifeDeathTest, ALimitLeavesTheThreadsThatStarted) {
  EXPECT_EXIT(RunAPoolWithoutRoom(), testing::ExitedWithCode(0), "");
}
#endif

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolTest, testing::Values(1, 2, 3, 5));

}  // namespace
}  // namespace stoch::cpu
