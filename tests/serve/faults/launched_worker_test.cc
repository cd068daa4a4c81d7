// SPDX-License-Identifier: Apache-2.0
// A worker on ranks that a launcher starts, as `stoch serve --launch` has it: whatever part of the job is lost while clients
// read, every answer is the one of a server without ranks, and nothing is left.
//   STOCH_LOSSES, STOCH_LOSSES_REPORT   so many losses by turns, and a file for what came of them
//   STOCH_LOSS   only the ways to lose part of it whose name has these words
//   STOCH_TEST_LAUNCH, STOCH_TEST_RANKS   the words of another launcher, and how many ranks it starts (tests/tools/ranks/hosts)
//   STOCH_TEST_CUT   a command that cuts the last host off with the argument down, and joins it again with up

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/serve/faults/fault_load.h"
#include "tests/support/mpi.h"

namespace stoch::test {
namespace {

namespace fs = std::filesystem;

std::string TextOf(const fs::path& path) {
  const std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();  // a process that is gone by now is no exception
  return text.str();
}

struct Process {
  pid_t pid = 0, parent = 0;
  char state = 0;
  std::string rank;   // "" of a launcher
  std::string words;  // of its command, each with a zero after it
};

std::vector<Process> Processes() {
  std::vector<Process> all;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string stat = TextOf(entry.path() / "stat");
    const size_t name_end = stat.rfind(") ");
    if (name_end == std::string::npos) continue;
    Process process;
    process.pid = std::stoi(name);
    std::istringstream rest(stat.substr(name_end + 2));
    rest >> process.state >> process.parent;
    process.words = TextOf(entry.path() / "cmdline");
    const std::string environment = std::string(1, '\0') + TextOf(entry.path() / "environ");
    for (const char* variable : {"OMPI_COMM_WORLD_RANK=", "PMI_RANK="}) {
      const size_t at = environment.find(std::string(1, '\0') + variable);
      if (at == std::string::npos) continue;
      const size_t begin = at + 1 + std::string(variable).size();
      process.rank = environment.substr(begin, environment.find('\0', begin) - begin);
    }
    all.push_back(process);
  }
  return all;
}

size_t NumRanks() { return static_cast<size_t>(NumberFromEnvironment("STOCH_TEST_RANKS", 2)); }

// A launcher and its ranks, whatever started them in between: they have the folder in common where rank 0 meets the gateway.
struct RunningJob {
  pid_t launcher = 0;
  std::vector<pid_t> ranks;  // by their number
  pid_t daemon = 0;  // of the launcher, that started the last rank: the launcher itself where all is on one host

  explicit RunningJob(pid_t of) : launcher(of), ranks(NumRanks(), 0) {
    const std::vector<Process> all = Processes();
    std::string gateway;  // its folder
    for (const Process& process : all) {
      const std::string option = std::string("--gateway") + '\0';
      const size_t at = process.pid == of ? process.words.find(option) : std::string::npos;
      if (at != std::string::npos) gateway = process.words.c_str() + at + option.size();
    }
    for (const Process& process : all) {
      if (gateway.empty() || process.rank.empty() || process.words.find(gateway) == std::string::npos) continue;
      const auto rank = static_cast<size_t>(std::stoi(process.rank));
      if (rank < ranks.size()) ranks[rank] = process.pid;
      if (rank + 1 == ranks.size()) daemon = process.parent;
    }
  }
  bool is_whole() const {
    return std::all_of(ranks.begin(), ranks.end(), [](pid_t pid) { return pid != 0; });
  }
  // Within so long no process of it is there any more.
  bool IsGone(seconds limit) const {
    const auto deadline = Clock::now() + limit;
    const auto is_there = [](pid_t pid) {
      const std::vector<Process> all = Processes();
      return std::any_of(all.begin(), all.end(),
                         [pid](const Process& process) { return process.pid == pid && process.state != 'Z'; });
    };
    std::vector<pid_t> processes = ranks;
    processes.push_back(launcher);
    for (const pid_t pid : processes) {
      while (is_there(pid)) {
        if (Clock::now() > deadline) return false;
        std::this_thread::sleep_for(milliseconds(20));
      }
    }
    return true;
  }
};

// Folders of Open MPI's launchers in /tmp, made since then: numbers of processes come again.
std::vector<std::string> LeftSessions(const std::vector<pid_t>& launchers, fs::file_time_type since) {
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator("/tmp")) {
    if (!entry.path().filename().string().starts_with("ompi.")) continue;
    for (const pid_t pid : launchers) {
      const fs::path session = entry.path() / ("pid." + std::to_string(pid));
      if (fs::exists(session) && fs::last_write_time(session) >= since) left.push_back(session);
    }
  }
  return left;
}

// One way to lose part of a job.
struct Loss {
  enum class Part { kRank, kLauncher, kDaemon, kNetworkOfLast, kRankOfStoppedLauncher };

  std::string name;
  Part part = Part::kRank;
  size_t rank = 0;
  int signal = SIGKILL;
  seconds limit{10};  // until all of the job is gone
};

std::vector<Loss> Losses() {
  using Part = Loss::Part;
  const size_t ranks = NumRanks(), last = ranks - 1;
  std::vector<Loss> losses;
  for (size_t rank = 0; rank < ranks; ++rank) {
    losses.push_back({"rank " + std::to_string(rank) + " is killed", Part::kRank, rank});
  }
  losses.push_back({"the last rank is stopped", Part::kRank, last, SIGSTOP});
  losses.push_back({"the launcher is killed", Part::kLauncher});
  losses.push_back({"the last rank crashes", Part::kRank, last, SIGSEGV});
  losses.push_back({"rank 0 is stopped", Part::kRank, 0, SIGSTOP});
  losses.push_back({"the launcher is stopped, then the last rank killed", Part::kRankOfStoppedLauncher, last});
  if (std::getenv("STOCH_TEST_CUT") != nullptr) {
    losses.push_back({"the launcher's daemon on the last host is killed", Part::kDaemon});
    losses.push_back({"the network is cut", Part::kNetworkOfLast});
  }
  const char* words = std::getenv("STOCH_LOSS");
  if (words != nullptr) {
    std::erase_if(losses, [words](const Loss& loss) { return loss.name.find(words) == std::string::npos; });
  }
  return losses;
}

bool TellNetwork(const char* what) {
  return std::system((std::string(std::getenv("STOCH_TEST_CUT")) + " " + what).c_str()) == 0;
}

class LaunchedWorker : public WorkerFaults {
 protected:
  void SetUp() override {
    STOCH_NEEDS_MPI(STOCH_BINARY);
    setenv("XDG_RUNTIME_DIR", folder_.path().c_str(), 1);
  }

  static std::vector<std::string> Launch() {
    const char* launch = std::getenv("STOCH_TEST_LAUNCH");
    return {"--launch", launch == nullptr ? "mpirun -n 2" : launch, "--rank-limit", "2", "--stall-limit", "20"};
  }
  // Folders of gateways and launchers that nobody has removed.
  std::vector<std::string> LeftFolders() const {
    std::vector<std::string> left;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) left.push_back(entry.path());
    return left;
  }
  // The job that serves, once it is another one than that of the launcher `lost`: a launcher that is gone counts as ready
  // until the gateway has heard of its end.
  static RunningJob JobOf(uint16_t port, pid_t lost = 0) {
    const auto deadline = Clock::now() + seconds(60);
    for (;;) {
      const auto launcher = WaitUntilReady(port).workers[0]["pid"].get<pid_t>();
      if (launcher != lost) return RunningJob(launcher);
      if (Clock::now() > deadline) throw std::runtime_error("no other launcher");
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  static std::string Fingerprint(uint16_t port) {
    const Json request = {{"prompt", "Once"}, {"max_tokens", 1}};
    return Call(port, "POST", "/v1/completions", request.dump()).Json()["system_fingerprint"];
  }
  // A hop from each rank to the next, and waiting for the last one.
  static void ExpectRankTimes(uint16_t port) {
    const std::string text = Call(port, "GET", "/metrics").body;
    const auto number = [&text](const std::string& series) {
      const size_t at = text.find("\n" + series);
      return at == std::string::npos ? -1 : std::stod(text.substr(text.find(' ', at + 1)));
    };
    const size_t ranks = NumRanks();
    for (size_t from = 0; from < ranks; ++from) {
      const double hop = number("stoch_rank_hop_seconds{from=\"" + std::to_string(from) + "\",to=\"" +
                                std::to_string((from + 1) % ranks) + "\",worker=\"0\"");
      EXPECT_GT(hop, 0) << from << "\n" << text;
      EXPECT_LT(hop, 10);
    }
    EXPECT_GT(number("stoch_rank_waited_seconds_total{rank=\"" + std::to_string(ranks - 1) + "\",worker=\"0\""), 0)
        << text;
  }

  // Waits until so many more tokens are there, or for a minute.
  static void AwaitTokens(uint16_t port, double more) {
    const double tokens = Metric(port, kTokens) + more;
    const auto slowest = Clock::now() + seconds(60);
    while (Metric(port, kTokens) < tokens && Clock::now() < slowest) std::this_thread::sleep_for(milliseconds(10));
    EXPECT_GE(Metric(port, kTokens), tokens);
  }
  // Returns when.
  static Clock::time_point Lose(const Loss& loss, const RunningJob& job, uint16_t port) {
    if (loss.part == Loss::Part::kRankOfStoppedLauncher) {
      kill(job.launcher, SIGSTOP);
      AwaitTokens(port, 40);  // a job needs its launcher when it begins and when it ends
    }
    const auto when = Clock::now();
    switch (loss.part) {
      case Loss::Part::kRank:
      case Loss::Part::kRankOfStoppedLauncher: kill(job.ranks[loss.rank], loss.signal); break;
      case Loss::Part::kLauncher: kill(job.launcher, loss.signal); break;
      case Loss::Part::kDaemon:
        EXPECT_NE(job.daemon, job.launcher);
        kill(job.daemon, loss.signal);
        break;
      case Loss::Part::kNetworkOfLast: EXPECT_TRUE(TellNetwork("down")); break;
    }
    return when;
  }

  // On standard output, and in the file STOCH_LOSSES_REPORT. `gone_ms`: how long jobs were still there, of each kind.
  void Tell(const std::vector<Loss>& kinds, const std::vector<std::vector<int64_t>>& gone_ms, int losses, int clients,
            const Json& version) const {
    Json report = {{"commit", version["commit"]},
                   {"ranks", NumRanks()},
                   {"losses", losses},
                   {"clients", clients},
                   {"answers", answers_},
                   {"changed", wrong_.size()},
                   {"ms_until_gone", Json::object()}};
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (!gone_ms[i].empty()) report["ms_until_gone"][kinds[i].name] = gone_ms[i];
    }
    std::printf("%s\n", report.dump(1).c_str());
    if (const char* file = std::getenv("STOCH_LOSSES_REPORT")) WriteFile(file, report.dump(1) + "\n");
  }

  const TempDir folder_;  // of gateways
};

TEST_F(LaunchedWorker, AnyPartOfItIsLostAndEveryAnswerIsThatOfOneProcess) {
  std::vector<Json> alone;
  std::string fingerprint;
  {
    Serving plain;
    ASSERT_TRUE(plain.Logs("weights_digest")) << plain.Log();
    alone = AskedAlone(plain.port());
    fingerprint = Fingerprint(plain.port());
  }
  Serving server(Launch());
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const uint16_t port = server.port();
  const std::vector<Loss> kinds = Losses();
  ASSERT_FALSE(kinds.empty());
  const int losses = NumberFromEnvironment("STOCH_LOSSES", 5);
  const int clients = NumberFromEnvironment("STOCH_FAULT_CLIENTS", 8);
  std::vector<std::vector<int64_t>> gone_ms(kinds.size());
  pid_t lost = 0;
  std::vector<pid_t> launchers;
  const auto begin_of_all = fs::file_time_type::clock::now();
  UnderLoad(port, alone, clients, [&] {
    for (int i = 0; i < losses; ++i) {
      const size_t kind = static_cast<size_t>(i) % kinds.size();
      const Loss& loss = kinds[kind];
      SCOPED_TRACE("loss " + std::to_string(i) + ": " + loss.name);
      const RunningJob job = JobOf(port, lost);
      ASSERT_TRUE(job.is_whole()) << server.Log();
      lost = job.launcher;
      launchers.push_back(lost);
      AwaitTokens(port, 40);
      std::this_thread::sleep_for(milliseconds(random_() % 200));
      const auto begin = Lose(loss, job, port);
      EXPECT_TRUE(job.IsGone(loss.limit)) << server.Log();
      gone_ms[kind].push_back(std::chrono::duration_cast<milliseconds>(Clock::now() - begin).count());
      if (loss.part == Loss::Part::kNetworkOfLast) {
        ASSERT_TRUE(TellNetwork("up"));
      }
    }
  });
  Tell(kinds, gone_ms, losses, clients, Call(port, "GET", "/version").Json());
  EXPECT_GE(Metric(port, "stoch_worker_restarts_total"), losses);
  EXPECT_EQ(Metric(port, "stoch_ranks_lost_total"), losses);
  ExpectRankTimes(port);
  EXPECT_GT(Metric(port, "stoch_sequences_replayed_total"), 0);
  EXPECT_EQ(Metric(port, "stoch_sequences_refused_total"), 0);
  EXPECT_EQ(Fingerprint(port), fingerprint);
  const RunningJob job = JobOf(port, lost);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(seconds(30)), 0) << server.Log();
  EXPECT_TRUE(job.IsGone(seconds(10)));
  EXPECT_EQ(LeftFolders(), std::vector<std::string>()) << server.Log();
  EXPECT_EQ(LeftSessions(launchers, begin_of_all), std::vector<std::string>());
}

// A launcher that is stopped ends no job, and without limits given nobody takes a rank for lost in less than 120 s.
TEST_F(LaunchedWorker, ARankThatAStoppedLauncherLosesIsMissed) {
  const auto lose = [](uint16_t port) {
    const RunningJob job = JobOf(port);
    ASSERT_TRUE(job.is_whole());
    kill(job.launcher, SIGSTOP);
    kill(job.ranks.back(), SIGKILL);
    EXPECT_TRUE(job.IsGone(seconds(10)));
  };
  // Ranks of one host see that the process has ended, after the 5 s that others need too: who is first says so.
  const auto noticed = [](const Serving& server, const std::string& by_others) {
    return server.Log().find("has ended, and the launcher does not end the others") != std::string::npos ||
           server.Log().find(by_others) != std::string::npos;
  };
  // By shared memory no message tells of it: rank 0 waits for rows.
  Serving shared({"--launch", "mpirun -n 2"});
  ASSERT_TRUE(shared.Logs("ready")) << shared.Log();
  const Json request = {{"prompt", "Once"}, {"max_tokens", 400}, {"ignore_eos", true}, {"seed", 3}, {"stream", true}};
  const Json alone = Ask(shared.port(), request);
  std::thread client([&] { EXPECT_EQ(Ask(shared.port(), request), alone); });
  AwaitTokens(shared.port(), 40);
  lose(shared.port());
  client.join();
  EXPECT_TRUE(noticed(shared, "worker_stalled")) << shared.Log();
  if (std::system("mpirun --version 2>/dev/null | grep -q 'Open MPI'") != 0) return;
  // Over TCP its connection ends: Open MPI asks the launcher to end the job, and waits in the call, also where nobody asks for tokens.
  Serving tcp({"--launch", "mpirun -n 2 --mca pml ob1 --mca btl tcp,self"});
  ASSERT_TRUE(tcp.Logs("ready")) << tcp.Log();
  lose(tcp.port());
  EXPECT_EQ(Ask(tcp.port(), request), alone);
  EXPECT_TRUE(noticed(tcp, "MPI does not return from a call")) << tcp.Log();
}

TEST_F(LaunchedWorker, ItEndsWithItsGateway) {
  Serving server(Launch());
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const RunningJob job = JobOf(server.port());
  ASSERT_TRUE(job.is_whole());
  server.Signal(SIGKILL);
  EXPECT_EQ(server.Wait(seconds(5)), 128 + SIGKILL);
  EXPECT_TRUE(job.IsGone(seconds(10)));
}

TEST_F(LaunchedWorker, WhatCannotBeStartedIsOneSentence) {
  const auto refused = [](const std::vector<std::string>& words, int exit_code, const std::string& part) {
    Serving server(words);
    EXPECT_EQ(server.Wait(seconds(60)), exit_code) << server.Log();
    EXPECT_NE(server.Log().find(part), std::string::npos) << server.Log();
  };
  refused({"--launch", "no-such-launcher -n 2"}, 2, "no-such-launcher");
  refused({"--launch", "; mpirun -n 2"}, 2, "--launch ; mpirun -n 2: expected words");
  refused({"--launch", "mpirun -n 2", "--rank-layers", "2,2"}, 2, "--rank-layers 2,2: expected 2 numbers");
  refused({"--launch", "mpirun -n 1"}, 3, "--ranks mpi: one rank");
  refused({"--launch", "mpirun -n 2", "--in-process"}, 2, "--launch");
}

}  // namespace
}  // namespace stoch::test
