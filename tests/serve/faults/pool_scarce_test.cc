// SPDX-License-Identifier: Apache-2.0
// Memory that runs out in a pool of workers: on its own thread while no worker can start, and on that of who submits.
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/gateway/worker_pool.h"
#include "tests/serve/faults/failing_new.h"
#include "tests/serve/faults/scarcity.h"

namespace {

stoch::test::Scarcity scarcity;

}  // namespace

bool stoch::test::IsToFail() noexcept { return scarcity.Takes(); }

namespace stoch::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{20};
constexpr int kJobs = 3;

TEST(PoolScarce, GivesUpThoughAnyAllocationMayFail) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers bring their own operator new";
#endif
  scarcity.fails = 1;
  std::strncpy(scarcity.thread, "pool", sizeof(scarcity.thread) - 1);
  int64_t failed = 0;
  for (int64_t at = 1;; ++at) {
    scarcity.count = 0;
    scarcity.fail_at = at;
    serve::WorkerPool::Options options;
    options.commands = {{"/bin/sh", "-c", "sleep 0.02; exit 2"}};
    serve::WorkerPool pool(std::move(options), [](const serve::LogLine&) {});
    std::atomic<int> ended = 0, refused = 0;
    std::vector<serve::Job> jobs(kJobs);
    for (serve::Job& job : jobs) {
      job.request = [] { return GenerateRequest(); };
      job.on_update = [&](const serve::JobUpdate& update) {
        ended += update.last() ? 1 : 0;
        refused += update.error_status >= 500 && !update.error.empty() ? 1 : 0;
      };
    }
    ASSERT_EQ(pool.Submit(std::move(jobs)).refusal, serve::Refusal::kNone) << at;
    const auto deadline = Clock::now() + kPatience;
    while (pool.failure() == nullptr && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    scarcity.fail_at = 0;
    ASSERT_NE(pool.failure(), nullptr) << "allocation " << at;
    ASSERT_EQ(ended, kJobs) << "allocation " << at;
    ASSERT_EQ(refused, kJobs) << "allocation " << at;
    if (scarcity.count < at) break;
    ++failed;
  }
  EXPECT_GT(failed, 20);
  std::cout << failed << " allocations failed" << std::endl;
}

// Whoever is told that there was no memory left no job behind, and no place in the queue: the pool would look for its job.
TEST(PoolScarce, TakesAllJobsOrNone) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers bring their own operator new";
#endif
  constexpr const char* kName = "submits";
  std::thread([&] {
    pthread_setname_np(pthread_self(), kName);
    std::strncpy(scarcity.thread, kName, sizeof(scarcity.thread) - 1);
    serve::WorkerPool::Options options;
    options.commands = {{"/bin/sh", "-c", "sleep 60"}};  // it never becomes ready
    serve::WorkerPool pool(std::move(options), [](const serve::LogLine&) {});
    scarcity.fails = 1;
    int failed = 0;
    for (int64_t at = 1;; ++at) {
      std::vector<serve::Job> jobs(kJobs);
      for (serve::Job& job : jobs) {
        job.client = "a client whose name is longer than a string holds without memory";
        job.on_update = [](const serve::JobUpdate&) {};
      }
      scarcity.count = 0;
      scarcity.fail_at = at;
      bool taken = true;
      try {
        pool.Submit(std::move(jobs));
      } catch (const std::bad_alloc&) {
        taken = false;
        ++failed;
      }
      scarcity.fail_at = 0;
      ASSERT_EQ(pool.load().waiting, taken ? kJobs : 0) << "allocation " << at;
      ASSERT_EQ(pool.Idle(), !taken) << "allocation " << at;
      if (taken) break;
    }
    EXPECT_GT(failed, 10);
  }).join();
}

}  // namespace
}  // namespace stoch::test
