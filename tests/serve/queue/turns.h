// SPDX-License-Identifier: Apache-2.0
// A client that has very many jobs, and the single one of another that comes later: for any runner.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/request/job_runner.h"

namespace stoch::test {

class Turns {
 public:
  explicit Turns(serve::JobRunner& runner) : runner_(runner) {}

  // Returns: how many of `many` jobs of the client "greedy" begin between the arrival of one of `client` and its first
  // token. Before, `ended` of them have ended.
  int Before(const std::string& client, int many, int ended) {
    begun_ = ended_ = 0;
    begun_before_ = -1;
    std::vector<serve::Job> jobs;
    for (int i = 0; i < many; ++i) jobs.push_back(MakeJob("greedy", i, false));
    EXPECT_EQ(runner_.Submit(std::move(jobs)).refusal, serve::Refusal::kNone);
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return ended_ >= ended; }));
    const int at_arrival = begun_;
    lock.unlock();
    std::vector<serve::Job> single;
    single.push_back(MakeJob(client, many, true));
    EXPECT_EQ(runner_.Submit(std::move(single)).refusal, serve::Refusal::kNone);
    lock.lock();
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return ended_ == many + 1; }));
    return begun_before_ - at_arrival;
  }

 private:
  static constexpr std::chrono::minutes kPatience{2};

  serve::Job MakeJob(const std::string& client, int seed, bool is_single) {
    serve::Job job;
    job.client = client;
    job.request = [seed] {
      GenerateRequest request;
      for (int t = 0; t < 4; ++t) request.prompt.push_back((3 * seed + t) % 60 + 3);
      request.max_tokens = 4;
      request.ignore_eos = true;
      return request;
    };
    // It is copied, so that what it remembers is elsewhere.
    job.on_update = [this, is_single, told = std::make_shared<bool>(false)](const serve::JobUpdate& update) {
      const std::lock_guard lock(mutex_);
      EXPECT_EQ(update.error_status, 0) << update.error;
      if (!std::exchange(*told, true)) {
        if (is_single) begun_before_ = begun_;
        if (!is_single) ++begun_;
      }
      ended_ += update.last() ? 1 : 0;
      changed_.notify_all();
    };
    return job;
  }

  serve::JobRunner& runner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int begun_ = 0, ended_ = 0, begun_before_ = -1;
};

}  // namespace stoch::test
