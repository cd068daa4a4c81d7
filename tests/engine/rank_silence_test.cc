// SPDX-License-Identifier: Apache-2.0
// Ranks that say nothing for too long are lost, those that say that they get on are not, and whoever shares their host sees
// their processes end. Ranks are threads, messages go through queues; a child stands for the process of another rank.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/ranks/job.h"
#include "engine/ranks/peers.h"
#include "models/decoder/rank_link.h"
#include "tests/support/temp_dir.h"
#include "tests/support/thread_link.h"

namespace stoch::test {
namespace {

namespace fs = std::filesystem;

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

// The devices of the rank that computes count, as it says, not those of who waits for it.
TEST(RankSilence, ARankSaysHowLongItMayBeSilent) {
  constexpr std::chrono::milliseconds kLong = std::chrono::seconds(60);
  ThreadLinks slow(3, kSilence);
  const Waiting waiting = WaitForRankOne(slow, [&](RankLink& link) {
    link.LimitRows(kLong);
    link.Heartbeat("layer 3 qkv_proj");
    std::this_thread::sleep_for(kSilence + kLateness);
    SendRows(link, 2, 0, std::vector<float>(4));
  });
  EXPECT_EQ(waiting.rank_2, "");
  EXPECT_EQ(waiting.rank_0, "");

  ThreadLinks fast(3, kLong);
  const Waiting lost = WaitForRankOne(fast, [](RankLink& link) {
    link.LimitRows(kSilence);
    link.Heartbeat("layer 3 qkv_proj");
  });
  EXPECT_EQ(lost.rank_2, "rank 1: sent nothing for 3000 ms");
  EXPECT_EQ(lost.rank_0, lost.rank_2);
}

// A heartbeat carries the limit of its rank: one that was sent to another rank a moment ago counts for that rank alone.
TEST(RankSilence, ANewListenerIsToldAtOnceAndThenOnceASecond) {
  ThreadLinks links(3);
  RankLink& link = links.link(1);
  link.HeartbeatTo(0);
  link.Heartbeat(LoadedBytes{1, 2});
  for (int piece = 0; piece < 3; ++piece) {
    link.HeartbeatTo(2);
    link.Heartbeat("layer 3 qkv_proj");
    link.HeartbeatTo(-1);
  }
  EXPECT_EQ(links.Sent(1, 2), 1);
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

// A process that does nothing until it is killed.
class Child {
 public:
  Child() : pid_(fork()) {
    while (pid_ == 0) pause();
  }
  ~Child() { Kill(true); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  // Until it has ended. `reap`: its number is free afterwards.
  void Kill(bool reap) {
    kill(pid_, SIGKILL);
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | (reap ? 0 : WNOWAIT));
  }

 private:
  pid_t pid_;
};

// The watch that rank 0 has of its peers, where rank 1 answers with answer(what rank 0 told).
std::unique_ptr<RankPeers> PeersOf(const std::function<std::string(const std::string& told)>& answer,
                                   const std::string& proc = "/proc") {
  ThreadLinks links(2);
  std::thread other([&] {
    RankLink& link = links.link(1);
    SendText(link, 0, answer(TakeText(link, 0, RankLink::Wait::kOpening)));
  });
  try {
    auto peers = std::make_unique<RankPeers>(links.link(0), "host", proc);
    other.join();
    return peers;
  } catch (...) {
    other.join();
    throw;
  }
}

// The place of rank 0, with another process.
std::string WithProcess(const std::string& told, const std::string& process) {
  return told.substr(0, told.rfind(':') + 1) + process + "}";
}

TEST(RankPeers, AProcessThatEndsIsSeenBeforeItsParentWaitsForIt) {
  Child child;
  const auto peers = PeersOf([&](const std::string& told) { return WithProcess(told, std::to_string(child.pid())); });
  ASSERT_EQ(peers->count(), 1u);
  EXPECT_EQ(peers->Ended(), std::nullopt);
  kill(child.pid(), SIGSTOP);
  EXPECT_EQ(peers->Ended(), std::nullopt) << "one that is stopped may go on";
  child.Kill(false);
  EXPECT_EQ(peers->Ended(), 1);
}

TEST(RankPeers, AProcessThatIsGoneAlreadyHasEnded) {
  Child child;
  child.Kill(true);
  const auto peers = PeersOf([&](const std::string& told) { return WithProcess(told, std::to_string(child.pid())); });
  EXPECT_EQ(peers->Ended(), 1);
}

TEST(RankPeers, OtherHostsAreNotWatched) {
  Child child;
  child.Kill(true);
  const auto other = [&](const std::string& from, const std::string& to) {
    return PeersOf([&](const std::string& told) {
             std::string place = WithProcess(told, std::to_string(child.pid()));
             return place.replace(place.find(from), from.size(), to);
           })
        ->count();
  };
  EXPECT_EQ(other("host", "host2"), 0u);
  EXPECT_EQ(other("pid:[", "pid:[1"), 0u);
  EXPECT_EQ(other("-", "_"), 0u);  // of the boot
}

TEST(RankPeers, AProcessThatCannotBeIsALostRank) {
  for (const char* process : {"", "0", "-1", "1x", "99999999999", "\"1\"", "[]", "1,2"}) {
    EXPECT_THROW(PeersOf([&](const std::string& told) { return WithProcess(told, process); }), LostRank) << process;
  }
}

TEST(RankPeers, WhereNoSystemIsNamedNobodyIsWatched) {
  const TempDir proc;  // of a container that hides it
  const auto same = [](const std::string& told) { return told; };
  EXPECT_EQ(PeersOf(same)->count(), 1u);
  EXPECT_EQ(PeersOf(same, proc.path())->count(), 0u);
  fs::create_directories(proc / "sys/kernel/random");
  WriteFile(proc / "sys/kernel/random/boot_id", "2a\n");
  EXPECT_EQ(PeersOf(same, proc.path())->count(), 0u);
  fs::create_directories(proc / "self/ns");
  fs::create_symlink("pid:[1]", proc / "self/ns/pid");
  EXPECT_EQ(PeersOf(same, proc.path())->count(), 1u);
}

TEST(RankPeers, AnotherProtocolIsRefusedByName) {
  const auto refused = [](const std::string& says) -> std::string {
    try {
      PeersOf([&](const std::string&) { return says; });
    } catch (const LostRank& lost) {
      return lost.what();
    }
    return "";
  };
  const std::string own = ", this rank " + std::to_string(kRankProtocol) + ": another commit";
  // Protocol 4 began with what rank 0 says of a model, protocol 5 with a place.
  EXPECT_EQ(refused(R"({"protocol":4,"purpose":"load","model":"demo"})"), "rank 1: speaks protocol 4" + own);
  EXPECT_EQ(refused("4f1c pid:[4026531836] host 17"), "rank 1: speaks protocol 5" + own);
  EXPECT_EQ(refused(R"({"protocol":70,"hello":[]})"), "rank 1: speaks protocol 70" + own);
  EXPECT_NE(refused("{}").find("rank 1: its first text cannot be read: "), std::string::npos) << refused("{}");
  EXPECT_NE(refused("{"), "");
}

TEST(RankPeers, AllRanksMeet) {
  constexpr int kRanks = 4;
  ThreadLinks links(kRanks);
  std::vector<std::thread> ranks;
  std::vector<size_t> counts(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const RankPeers peers(links.link(rank), "host");
      counts[static_cast<size_t>(rank)] = peers.Ended() ? 0 : peers.count();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(counts, std::vector<size_t>(kRanks, kRanks - 1));
}

}  // namespace
}  // namespace stoch::test
