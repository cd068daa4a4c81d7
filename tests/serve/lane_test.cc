// SPDX-License-Identifier: Apache-2.0
// What a connection's answer takes: one after another, in order, on whichever thread.
#include "engine/serve/http/lane.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace stoch::serve {
namespace {

class Lane : public testing::Test {
 protected:
  ~Lane() override {
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
  }
  void StartThreads(int count) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        for (;;) {
          try {
            context_.run();
            return;
          } catch (const std::runtime_error&) {
            ++thrown_;
          }
        }
      });
    }
  }
  // Once everything that was posted before has run.
  void Wait() {
    const auto done = std::make_shared<std::promise<void>>();
    lane_.Post([done] { done->set_value(); });
    done->get_future().wait();
  }

  boost::asio::io_context context_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{context_.get_executor()};
  HttpLane lane_{context_};
  std::atomic<int> thrown_ = 0;
  std::vector<std::thread> threads_;
};

TEST_F(Lane, RunsAtOnceWhereNothingElseDoes) {
  StartThreads(1);
  const std::thread::id here = std::this_thread::get_id();
  const auto runs_here = [&] {
    const auto ran = std::make_shared<std::atomic<bool>>(false);
    lane_.Run([ran, here] { *ran = std::this_thread::get_id() == here; });
    return ran->load();
  };
  EXPECT_TRUE(runs_here());
  EXPECT_TRUE(runs_here());
  Wait();
  bool again = false;  // once the thread of the context has let go of it
  for (int i = 0; i < 1000 && !again; ++i) {
    again = runs_here();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(again);
}

TEST_F(Lane, WaitsForWhatCameBefore) {
  std::vector<int> order;
  lane_.Post([&] { order.push_back(1); });
  lane_.Run([&] { order.push_back(2); });  // nobody has run the first one yet
  EXPECT_TRUE(order.empty());
  StartThreads(2);
  Wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST_F(Lane, WhatRunsInsideAnotherComesAfterIt) {
  StartThreads(1);
  std::vector<int> order;
  lane_.Run([&] {
    lane_.Run([&] { order.push_back(2); });
    order.push_back(1);
  });
  Wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST_F(Lane, NeverRunsTwoAtOnceAndKeepsEachThreadsOrder) {
  StartThreads(3);
  constexpr int kThreads = 4;
  constexpr int kEach = 5000;
  std::atomic<bool> inside = false;
  std::atomic<int> overlaps = 0;
  std::vector<std::vector<int>> seen(kThreads);
  std::vector<std::thread> callers;
  for (int t = 0; t < kThreads; ++t) {
    callers.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        auto body = [&, t, i] {
          overlaps += inside.exchange(true) ? 1 : 0;
          seen[static_cast<size_t>(t)].push_back(i);
          inside = false;
        };
        if (i % 3 == 0) {
          lane_.Post(body);
        } else {
          lane_.Run(body);
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  Wait();
  EXPECT_EQ(overlaps, 0);
  for (const std::vector<int>& numbers : seen) {
    ASSERT_EQ(numbers.size(), static_cast<size_t>(kEach));
    for (int i = 0; i < kEach; ++i) ASSERT_EQ(numbers[static_cast<size_t>(i)], i);
  }
}

TEST_F(Lane, GoesOnAfterAnError) {
  int ran = 0;
  lane_.Post([] { throw std::runtime_error("of one"); });
  lane_.Post([&] { ++ran; });
  StartThreads(1);
  Wait();
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(thrown_, 1);
}

}  // namespace
}  // namespace stoch::serve
