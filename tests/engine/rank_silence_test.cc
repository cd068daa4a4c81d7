// SPDX-License-Identifier: Apache-2.0
// Ranks that say nothing for too long are lost, those that say that they get on are not. Ranks are threads, messages go through queues.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine/ranks/job.h"
#include "models/decoder/rank_link.h"
#include "tests/support/thread_link.h"

namespace stoch::test {
namespace {

// Rank 2 waits for rows of rank 1, and rank 0 for those of rank 2, which hands on what it hears.
struct Waiting {
  std::string rank_2, rank_0;      // why their rows are not there, "" if they are
  std::vector<std::string> heard;  // by rank 0
};
Waiting WaitForRankOne(ThreadLinks& links, const std::function<void(RankLink&)>& rank_1) {
  Waiting waiting;
  std::thread one([&] {
    links.link(1).HeartbeatTo(2);
    rank_1(links.link(1));
  });
  std::thread two([&] {
    RankLink& link = links.link(2);
    link.HeartbeatTo(0);
    std::vector<float> row(4);
    try {
      TakeRows(link, 1, 0, row, 4);
      SendRows(link, 0, 0, row);
    } catch (const LostRank& lost) {
      waiting.rank_2 = lost.what();
      SendLost(link, 0, lost.rank(), lost.why());
    }
  });
  std::vector<float> row(4);
  links.link(0).OnHeartbeat([&waiting](const std::string& where) { waiting.heard.push_back(where); });
  try {
    TakeRows(links.link(0), 2, 0, row, 4);
  } catch (const LostRank& lost) {
    waiting.rank_0 = lost.what();
  }
  one.join();
  two.join();
  return waiting;
}

// Whoever gets on or waits says so once a second: limits leave two seconds in which a busy machine may keep a thread from it.
constexpr std::chrono::milliseconds kLateness(2000), kSilence = std::chrono::seconds(1) + kLateness;

TEST(RankSilence, ASlowRankThatSaysSoIsNotLost) {
  using Clock = std::chrono::steady_clock;
  ThreadLinks links(3, kSilence);
  std::chrono::duration<double> elapsed{};
  const Waiting waiting = WaitForRankOne(links, [&elapsed](RankLink& link) {
    const auto begin = Clock::now();
    while (elapsed < kSilence + kLateness) {  // longer than the limit
      link.Heartbeat("layer 3 qkv_proj");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      elapsed = Clock::now() - begin;
    }
    SendRows(link, 2, 0, std::vector<float>(4));
  });
  EXPECT_EQ(waiting.rank_2, "");
  EXPECT_EQ(waiting.rank_0, "");
  ASSERT_FALSE(waiting.heard.empty());
  EXPECT_NE(std::find(waiting.heard.begin(), waiting.heard.end(), "layer 3 qkv_proj"), waiting.heard.end());
  EXPECT_LE(links.Sent(1, 2), 2 + elapsed.count()) << "heartbeats are one a second, and rows follow";
}

TEST(RankSilence, ALostRankIsNamedByWhoeverWaitsForIt) {
  ThreadLinks links(3, kSilence);
  const Waiting waiting = WaitForRankOne(links, [](RankLink&) {});
  EXPECT_EQ(waiting.rank_2, "rank 1: sent nothing for 3000 ms");
  EXPECT_EQ(waiting.rank_0, waiting.rank_2);
  EXPECT_FALSE(waiting.heard.empty());
  EXPECT_EQ(std::count(waiting.heard.begin(), waiting.heard.end(), "waits for rank 1"), std::ssize(waiting.heard));
}

TEST(RankSilence, AFollowerEndsAfterRankZero) {
  using std::chrono::milliseconds;
  ThreadLinks links(2, std::chrono::seconds(60), kSilence);
  std::string why;
  std::atomic<bool> has_ended = false;
  std::jthread follower([&] {
    try {
      FollowJob(links.link(1), {});
    } catch (const LostRank& lost) {
      why = lost.what();
    }
    has_ended = true;
  });
  {
    const RankJob job(links.link(0), "", "");
    std::this_thread::sleep_for(kSilence + milliseconds(1500));  // it may have nothing to do for longer than the limit
    EXPECT_FALSE(has_ended);
  }
  follower.join();
  EXPECT_EQ(why, "rank 0: sent nothing for 3000 ms");
}

}  // namespace
}  // namespace stoch::test
