// SPDX-License-Identifier: Apache-2.0
// Whose turn it is.
#include "engine/request/fair_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace stoch::test {
namespace {

using serve::FairQueue;
using serve::Job;
using serve::Refusal;

// All of it, in order of turns.
std::vector<uint64_t> Drained(FairQueue& queue) {
  std::vector<uint64_t> ids;
  while (const std::optional<uint64_t> next = queue.Next()) {
    ids.push_back(*next);
    EXPECT_TRUE(queue.Remove(*next));
  }
  EXPECT_TRUE(queue.empty());
  return ids;
}

TEST(FairQueue, ClientsTakeTurns) {
  FairQueue queue;
  for (uint64_t id = 1; id <= 5; ++id) queue.Add(id, "many");
  queue.Add(6, "one");
  queue.Add(7, "two");
  queue.Add(8, "two");
  EXPECT_EQ(queue.size(), 8u);
  EXPECT_EQ(queue.size_of("many"), 5u);
  EXPECT_EQ(queue.size_of("nobody"), 0u);
  EXPECT_EQ(Drained(queue), (std::vector<uint64_t>{1, 6, 7, 2, 8, 3, 4, 5}));
}

TEST(FairQueue, OneClientAloneGoesInOrder) {
  FairQueue queue;
  for (uint64_t id = 1; id <= 5; ++id) queue.Add(id, "");
  EXPECT_EQ(Drained(queue), (std::vector<uint64_t>{1, 2, 3, 4, 5}));
}

TEST(FairQueue, WhatHadBegunGoesFirstAndOldestFirst) {
  FairQueue queue;
  queue.Add(1, "a");
  queue.AddFirst(20, 8);
  queue.AddFirst(30, 7);
  EXPECT_EQ(queue.size(), 3u);
  EXPECT_TRUE(queue.Remove(20));
  queue.AddFirst(20, 6);
  EXPECT_EQ(Drained(queue), (std::vector<uint64_t>{20, 30, 1}));
}

TEST(FairQueue, WhoLeavesTheMiddleTakesNobodysTurn) {
  FairQueue queue;
  for (uint64_t id = 1; id <= 3; ++id) queue.Add(id, "a");
  for (uint64_t id = 4; id <= 6; ++id) queue.Add(id, "b");
  EXPECT_FALSE(queue.Remove(9));
  EXPECT_TRUE(queue.Remove(2));  // not the next one: a's turn is still to come
  EXPECT_EQ(queue.Next(), 1u);
  EXPECT_TRUE(queue.Remove(1));  // cancelled or begun, its turn is over
  EXPECT_EQ(queue.Next(), 4u);
  queue.Clear();
  EXPECT_FALSE(queue.Next());
  queue.Add(1, "a");
  EXPECT_EQ(queue.Next(), 1u);
}

// Between two turns of a client each other one that waits has one.
TEST(FairQueue, NobodyWaitsLongerThanARound) {
  std::mt19937 random(5);
  FairQueue queue;
  std::map<std::string, std::vector<uint64_t>> waits;  // turns of others since it had one, per turn
  std::map<std::string, uint64_t> since;
  std::map<uint64_t, std::string> client_of;
  uint64_t next_id = 1;
  for (int step = 0; step < 20000; ++step) {
    if (random() % 2 == 0 || queue.empty()) {
      const std::string client = "c" + std::to_string(random() % 3 == 0 ? random() % 9 : 0);
      if (queue.size_of(client) == 0) since[client] = 0;
      client_of[next_id] = client;
      queue.Add(next_id++, client);
      continue;
    }
    const uint64_t id = queue.Next().value();
    EXPECT_TRUE(queue.Remove(id));
    const std::string client = client_of.at(id);
    EXPECT_LT(since[client], 9u) << step;
    for (auto& [name, turns] : since) ++turns;
    since[client] = 0;
  }
}

TEST(FairQueue, SaysWhyThereIsNoRoom) {
  FairQueue queue;
  for (uint64_t id = 1; id <= 4; ++id) queue.Add(id, "a");
  const auto check = [&](const std::string& client, size_t jobs) {
    std::vector<Job> all(jobs);
    for (Job& job : all) job.client = client;
    return queue.Check(all, 10, 5);
  };
  EXPECT_EQ(check("a", 1), Refusal::kNone);
  EXPECT_EQ(check("a", 2), Refusal::kFullForClient);
  EXPECT_EQ(check("b", 5), Refusal::kNone);
  EXPECT_EQ(check("b", 6), Refusal::kFullForClient);
  EXPECT_EQ(check("b", 7), Refusal::kFull);
  EXPECT_EQ(check("b", 0), Refusal::kNone);
}

}  // namespace
}  // namespace stoch::test
