// SPDX-License-Identifier: Apache-2.0
// The scheduler by itself: turns of clients, and jobs that are cancelled at any moment.

#include <atomic>
#include <iostream>
#include <new>

#include "tests/serve/queue/turns.h"
#include "tests/serve/server_fixture.h"

namespace stoch::test {
namespace {

using serve::Job;
using serve::JobUpdate;
using serve::Scheduler;

class SchedulerTest : public ServerFixture {
 protected:
  SchedulerTest() : ServerFixture(256) {}
};

TEST_F(SchedulerTest, AThousandJobsOfOneClientAreOneTurnToAnother) {
  const auto engine = OpenEngine();
  runner_options_.max_queue = 2000;
  Scheduler scheduler(*engine, runner_options_);
  constexpr int kMany = 1000;
  const int same = Turns(scheduler).Before("greedy", kMany, 20);
  const int other = Turns(scheduler).Before("other", kMany, 20);
  std::cout << other << " of " << kMany << " jobs begin before it, " << same << " before one of the same client"
            << std::endl;
  EXPECT_LE(other, 2 * 4);  // of four places
  EXPECT_GT(same, kMany / 2);
}

// A job that gave its pages back in the turn in which it was cancelled used to go on when its turn came.
TEST_F(SchedulerTest, ACancelledJobNeverGoesOn) {
  constexpr int kTokens = 120;
  constexpr uint64_t kVictim = 3;  // the youngest of four
  engine_options_.kv_tokens = 7 * 64;
  engine_options_.max_sequences = 5;
  const auto engine = OpenEngine();
  int64_t preempted = 0;
  for (int moment = 1; moment < kTokens && !HasFailure(); ++moment) {
    Scheduler* self = nullptr;
    std::atomic<uint64_t> first = 0;
    std::atomic<int> tokens = 0, since = 0;
    std::atomic<bool> cancelled = false;
    // It finds no memory, which it is told between the moment in which the scheduler looks for what was cancelled and its
    // next pass.
    const auto cancel = [&] {
      Job job;
      job.request = []() -> GenerateRequest { throw std::bad_alloc(); };
      job.on_update = [&](const JobUpdate&) {
        cancelled = true;
        self->Cancel(first + kVictim);
      };
      std::vector<Job> jobs;
      jobs.push_back(std::move(job));
      self->Submit(std::move(jobs));
    };
    Scheduler scheduler(*engine, runner_options_);
    self = &scheduler;
    std::vector<Job> jobs;
    for (uint64_t i = 0; i <= kVictim; ++i) {
      Job job;
      job.request = [i] {
        GenerateRequest request;
        for (uint64_t t = 0; t < 20 + 9 * i; ++t) request.prompt.push_back(static_cast<int32_t>(3 + (7 * i + t) % 80));
        request.max_tokens = kTokens;
        request.ignore_eos = true;
        return request;
      };
      job.on_update = [&, i](const JobUpdate&) {
        if (i == 0 && ++tokens == moment && first != 0) cancel();
        since += i == kVictim && cancelled ? 1 : 0;
      };
      jobs.push_back(std::move(job));
    }
    first = scheduler.Submit(std::move(jobs)).first;
    ASSERT_TRUE(Eventually([&] { return scheduler.Idle(); }));
    EXPECT_LE(since, 1) << "cancelled at token " << moment;  // of a pass that was in flight
    preempted += scheduler.faults().preemptions;
  }
  std::cout << preempted << " preemptions" << std::endl;
  EXPECT_GT(preempted, 50);
}

}  // namespace
}  // namespace stoch::test
