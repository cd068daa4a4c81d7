// SPDX-License-Identifier: Apache-2.0
// Turns of clients in front of worker processes, and in them.

#include <gtest/gtest.h>

#include <iostream>

#include "engine/gateway/worker_pool.h"
#include "tests/serve/queue/turns.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

TEST(FairPool, AThousandJobsOfOneClientAreOneTurnToAnother) {
  TempDir folder;
  TinyModel model;
  model.config.max_position_embeddings = 128;
  WriteTinyModel(folder.path(), model);
  serve::WorkerPool::Options options;
  options.commands = {{STOCH_POISON_WORKER, "--model", folder.path().string(), "--poison", "-1"}};
  serve::WorkerPool pool(options, [](const serve::LogLine&) {});
  while (!pool.model() && pool.failure() == nullptr) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_EQ(pool.failure(), nullptr);
  constexpr int kMany = 1000;
  const int same = Turns(pool).Before("greedy", kMany, 20);
  const int other = Turns(pool).Before("other", kMany, 20);
  std::cout << other << " of " << kMany << " jobs begin before it, " << same << " before one of the same client"
            << std::endl;
  // Its worker has 8 places, and two jobs wait there.
  EXPECT_LE(other, 3 * 8);
  EXPECT_GT(same, kMany / 2);  // in order of arrival
}

TEST(FairPool, ASharePerClientIsAlimitOfItsOwn) {
  serve::WorkerPool::Options options;
  options.commands = {{"/bin/sh", "-c", "exec sleep 60"}};  // never ready
  options.max_queue = 10;
  options.max_queue_per_client = 4;
  serve::WorkerPool pool(options, [](const serve::LogLine&) {});
  const auto submit = [&](const std::string& client, size_t count) {
    std::vector<serve::Job> jobs(count);
    for (serve::Job& job : jobs) {
      job.client = client;
      job.on_update = [](const serve::JobUpdate&) {};
    }
    return pool.Submit(std::move(jobs)).refusal;
  };
  EXPECT_EQ(submit("a", 3), serve::Refusal::kNone);
  EXPECT_EQ(submit("a", 2), serve::Refusal::kFullForClient);
  EXPECT_EQ(submit("a", 1), serve::Refusal::kNone);
  EXPECT_EQ(submit("b", 4), serve::Refusal::kNone);
  EXPECT_EQ(submit("c", 3), serve::Refusal::kFull);
  EXPECT_EQ(submit("c", 2), serve::Refusal::kNone);
}

}  // namespace
}  // namespace stoch::test
