// SPDX-License-Identifier: Apache-2.0
// Tasks that wait for their turn: clients in turn, so many of each, none left when it stops.
#include "engine/serve/task_queue.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace stoch::test {
namespace {

using serve::TaskQueue;

// A queue whose thread is busy until it is told.
class TaskQueueTest : public testing::Test {
 protected:
  void SetUp() override {
    EXPECT_TRUE(queue_.Add("first", [this] {
      running_.set_value();
      go_.get_future().wait();
    }));
    running_.get_future().wait();
  }

  bool Add(const std::string& client) {
    return queue_.Add(client, [this, client] {
      const std::lock_guard lock(mutex_);
      ran_.push_back(client);
    });
  }
  // Whose tasks ran, in order.
  std::vector<std::string> RunAll(size_t count) {
    go_.set_value();
    for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      const std::lock_guard lock(mutex_);
      if (ran_.size() == count) return ran_;
    }
  }

  std::promise<void> running_, go_;
  std::mutex mutex_;  // of ran_
  std::vector<std::string> ran_;
  TaskQueue queue_{"test"};
};

TEST_F(TaskQueueTest, ManyTasksOfOneClientAreOneTurnToAnother) {
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Add("many"));
  EXPECT_TRUE(Add("one"));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Add("few"));
  std::vector<std::string> ran = RunAll(104);
  ran.resize(6);
  EXPECT_EQ(ran, (std::vector<std::string>{"many", "one", "few", "many", "few", "many"}));
}

TEST_F(TaskQueueTest, NoClientTakesAllPlaces) {
  for (size_t i = 0; i < TaskQueue::kMaxWaitingOfClient; ++i) ASSERT_TRUE(Add("a"));
  EXPECT_FALSE(Add("a"));
  for (size_t i = TaskQueue::kMaxWaitingOfClient; i < TaskQueue::kMaxWaiting - 1; ++i) ASSERT_TRUE(Add("b"));
  EXPECT_TRUE(Add("c"));
  EXPECT_FALSE(Add("d"));
  go_.set_value();
}

TEST_F(TaskQueueTest, DropsWhatWaitsWhenItStops) {
  const auto held = std::make_shared<int>(0);
  EXPECT_TRUE(queue_.Add("a", [held] { FAIL(); }));
  std::thread stopping([this] { queue_.Stop(); });
  while (Add("b")) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  go_.set_value();
  stopping.join();
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_FALSE(Add("c"));
  EXPECT_TRUE(ran_.empty());
}

}  // namespace
}  // namespace stoch::test
