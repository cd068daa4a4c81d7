// SPDX-License-Identifier: Apache-2.0
// A worker on ranks that a launcher starts, as `stoch serve --launch` has it: whatever part of the job is lost while clients
// read, every answer is the one of a server without ranks, and nothing is left.

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
  std::string rank;  // "" of a launcher
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

// A launcher and all that it started, by what they are.
struct RunningJob {
  pid_t launcher = 0;
  std::vector<pid_t> ranks;  // by their number

  explicit RunningJob(pid_t of) : launcher(of), ranks(2, 0) {
    const std::vector<Process> all = Processes();
    std::vector<pid_t> family = {of};
    for (size_t i = 0; i < family.size(); ++i) {
      for (const Process& process : all) {
        if (process.parent != family[i]) continue;
        family.push_back(process.pid);
        if (process.rank == "0" || process.rank == "1") ranks[process.rank == "1" ? 1 : 0] = process.pid;
      }
    }
  }
  bool is_whole() const { return ranks[0] != 0 && ranks[1] != 0; }
  // Within so long no process of it is there any more.
  bool IsGone(seconds limit) const {
    const auto deadline = Clock::now() + limit;
    const auto is_there = [](pid_t pid) {
      const std::vector<Process> all = Processes();
      return std::any_of(all.begin(), all.end(),
                         [pid](const Process& process) { return process.pid == pid && process.state != 'Z'; });
    };
    for (const pid_t pid : {launcher, ranks[0], ranks[1]}) {
      while (is_there(pid)) {
        if (Clock::now() > deadline) return false;
        std::this_thread::sleep_for(milliseconds(20));
      }
    }
    return true;
  }
};

// Folders where gateways and workers meet, and that nobody has removed.
size_t LeftFolders() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  size_t left = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(runtime == nullptr ? "/tmp" : runtime, error)) {
    left += fs::exists(entry.path() / "page", error) && fs::exists(entry.path() / "socket", error) ? 1 : 0;
  }
  return left;
}

class LaunchedWorker : public WorkerFaults {
 protected:
  void SetUp() override { STOCH_NEEDS_MPI(STOCH_BINARY); }

  static std::vector<std::string> Launch(const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"--launch", "mpirun -n 2", "--rank-limit", "2", "--stall-limit", "20"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
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
  const size_t folders = LeftFolders();
  Serving server(Launch());
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const uint16_t port = server.port();
  constexpr struct {
    const char* name;
    int part;  // of the job: 0, 1 a rank, 2 the launcher
    int signal;
  } kLosses[] = {{"rank 1 is killed", 1, SIGKILL},
                 {"rank 0 is killed", 0, SIGKILL},
                 {"rank 1 is stopped", 1, SIGSTOP},
                 {"the launcher is killed", 2, SIGKILL},
                 {"rank 1 crashes", 1, SIGSEGV}};
  const int losses = NumberFromEnvironment("STOCH_LOSSES", 5);
  const int clients = NumberFromEnvironment("STOCH_FAULT_CLIENTS", 8);
  std::chrono::milliseconds longest{0};
  pid_t lost = 0;
  UnderLoad(port, alone, clients, [&] {
    for (int i = 0; i < losses; ++i) {
      const auto& loss = kLosses[i % std::size(kLosses)];
      SCOPED_TRACE(std::string("loss ") + std::to_string(i) + ": " + loss.name);
      const RunningJob job = JobOf(port, lost);
      ASSERT_TRUE(job.is_whole()) << server.Log();
      lost = job.launcher;
      const double tokens = Metric(port, kTokens) + 40;
      const auto slowest = Clock::now() + seconds(60);
      while (Metric(port, kTokens) < tokens && Clock::now() < slowest) std::this_thread::sleep_for(milliseconds(10));
      std::this_thread::sleep_for(milliseconds(random_() % 200));
      const auto begin = Clock::now();
      kill(loss.part == 2 ? job.launcher : job.ranks[static_cast<size_t>(loss.part)], loss.signal);
      EXPECT_TRUE(job.IsGone(seconds(10))) << server.Log();
      longest = std::max(longest, std::chrono::duration_cast<milliseconds>(Clock::now() - begin));
    }
  });
  std::printf("%d losses under %d clients: %d answers, %zu changed; a lost job was gone after at most %lld ms\n",
              losses, clients, answers_, wrong_.size(), static_cast<long long>(longest.count()));
  EXPECT_GE(Metric(port, "stoch_worker_restarts_total"), losses);
  EXPECT_GT(Metric(port, "stoch_sequences_replayed_total"), 0);
  EXPECT_EQ(Metric(port, "stoch_sequences_refused_total"), 0);
  EXPECT_EQ(Fingerprint(port), fingerprint);
  const RunningJob job = JobOf(port, lost);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(seconds(30)), 0) << server.Log();
  EXPECT_TRUE(job.IsGone(seconds(10)));
  EXPECT_EQ(LeftFolders(), folders);
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
  refused({"--launch", "no-such-launcher -n 2"}, 3, "no-such-launcher");
  refused({"--launch", "; mpirun -n 2"}, 2, "--launch ; mpirun -n 2: expected words");
  refused({"--launch", "mpirun -n 2", "--rank-layers", "2,2"}, 2, "--rank-layers 2,2: expected 2 numbers");
  refused({"--launch", "mpirun -n 1"}, 3, "--ranks mpi: one rank");
  refused({"--launch", "mpirun -n 2", "--in-process"}, 2, "--launch");
}

}  // namespace
}  // namespace stoch::test
