// SPDX-License-Identifier: Apache-2.0
// Jobs in worker processes, some of which a request crashes. Links no engine and no kernel, as a gateway.
#include "engine/gateway/worker_pool.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <fstream>
#include <iostream>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

constexpr int32_t kPoison = 77;
constexpr int kJobs = 32;

struct Answer {
  std::vector<int32_t> ids;
  std::vector<double> logprobs;
  std::string logits_sha256;
  int error_status = 0;
  std::string error;
  bool ended = false;
};

class WorkerPoolTest : public testing::Test {
 protected:
  void SetUp() override {
    TinyModel model;
    model.config.max_position_embeddings = 128;
    WriteTinyModel(scratch_.path(), model);
  }
  // poison: of its workers; -1: none. more: their further words.
  std::unique_ptr<serve::WorkerPool> Open(int32_t poison, int replicas = 1, const std::vector<std::string>& more = {}) {
    serve::WorkerPool::Options options;
    options.stall_limit = stall_limit_;
    for (int i = 0; i < replicas; ++i) {
      options.commands.push_back(
          {STOCH_POISON_WORKER, "--model", scratch_.path().string(), "--poison", std::to_string(poison)});
      options.commands.back().insert(options.commands.back().end(), more.begin(), more.end());
    }
    return std::make_unique<serve::WorkerPool>(std::move(options), [this](const serve::LogLine& line) {
      const std::lock_guard lock(mutex_);
      log_ += serve::FormatLogLine(line) + "\n";
    });
  }
  static GenerateRequest Request(int i) {
    GenerateRequest request;
    for (int t = 0; t < 5 + i % 7; ++t) request.prompt.push_back((3 * i + t) % 70 + 3);
    request.max_tokens = 10 + i % 5;
    request.ignore_eos = true;
    request.sampling.temperature = i % 2;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.hash_logits = i % 4 == 3;
    request.top_logprobs = i % 3 == 0 ? 2 : -1;
    request.sampling.logit_bias = {{kPoison, -1000.0f}};
    return request;
  }
  std::vector<Answer> Run(serve::JobRunner& runner, const std::vector<GenerateRequest>& requests) {
    std::vector<Answer> answers(requests.size());
    std::vector<serve::Job> jobs;
    for (size_t i = 0; i < requests.size(); ++i) {
      serve::Job job;
      job.request = [request = requests[i]] { return request; };
      job.on_update = [this, &answers, i](const serve::JobUpdate& update) {
        const std::lock_guard lock(mutex_);
        answers[i].ids.insert(answers[i].ids.end(), update.ids.begin(), update.ids.end());
        for (const TokenLogprob& logprob : update.logprobs) {
          answers[i].logprobs.push_back(logprob.logprob);
          for (const auto& [id, value] : logprob.top) answers[i].logprobs.push_back(id + value);
        }
        answers[i].logits_sha256 = update.logits_sha256;
        answers[i].error_status = update.error_status;
        answers[i].error = update.error;
        answers[i].ended = update.last();
        changed_.notify_all();
      };
      jobs.push_back(std::move(job));
    }
    EXPECT_EQ(runner.Submit(std::move(jobs)).refusal, serve::Refusal::kNone);
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::minutes(2), [&] {
      for (const Answer& answer : answers) {
        if (!answer.ended) return false;
      }
      return true;
    })) << log_;
    return answers;
  }

  TempDir scratch_;
  std::chrono::seconds stall_limit_{5};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string log_;
};

TEST_F(WorkerPoolTest, OnePoisonedRequestOfManyIsRefusedAndTheOthersComplete) {
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < kJobs; ++i) requests.push_back(Request(i));
  const std::vector<Answer> alone = Run(*Open(-1), requests);
  for (const Answer& answer : alone) EXPECT_EQ(answer.error_status, 0) << answer.error;

  constexpr size_t kPoisoned = 11;
  requests[kPoisoned].prompt.back() = kPoison;
  const auto pool = Open(kPoison);
  const std::vector<Answer> answers = Run(*pool, requests);
  for (size_t i = 0; i < answers.size(); ++i) {
    if (i == kPoisoned) continue;
    EXPECT_EQ(answers[i].error_status, 0) << i << answers[i].error;
    EXPECT_EQ(answers[i].ids, alone[i].ids) << i;
  }
  EXPECT_EQ(answers[kPoisoned].error_status, 500);
  EXPECT_NE(answers[kPoisoned].error.find("ended 3 workers"), std::string::npos) << answers[kPoisoned].error;
  EXPECT_LE(pool->faults().restarts, 3);
  EXPECT_EQ(pool->faults().refused, 1);
  EXPECT_NE(log_.find("job_refused"), std::string::npos) << log_;
  EXPECT_NE(log_.find("prompt_tokens=" + std::to_string(requests[kPoisoned].prompt.size())), std::string::npos) << log_;
  EXPECT_TRUE(pool->Idle());
}

// Somebody kills workers faster than tokens come: nobody is blamed as for a crash.
TEST_F(WorkerPoolTest, KillsFromOutsideRefuseNobody) {
  GenerateRequest request = Request(1);
  request.prompt.back() = kPoison;
  const std::vector<Answer> alone = Run(*Open(-1), {request});
  constexpr int kKills = 5;
  const std::string file = scratch_.path().string() + "/kills";
  std::ofstream(file) << std::string(kKills, 'x');
  const auto pool = Open(kPoison, 1, {"--kills", file});
  const std::vector<Answer> answers = Run(*pool, {request});
  EXPECT_EQ(answers[0].error_status, 0) << answers[0].error << log_;
  EXPECT_EQ(answers[0].ids, alone[0].ids);
  EXPECT_EQ(pool->faults().restarts, kKills);
  EXPECT_EQ(pool->faults().refused, 0);
}

// What another process does to a worker is not the doing of the request that it happens to be at.
TEST_F(WorkerPoolTest, SignalsOfOthersRefuseNobody) {
  GenerateRequest request = Request(1);
  request.prompt.back() = kPoison;
  const std::vector<Answer> alone = Run(*Open(-1), {request});
  constexpr int kTimes = 4;
  const std::string file = scratch_.path().string() + "/kills";
  stall_limit_ = std::chrono::seconds(1);
  for (const int number : {SIGSEGV, SIGABRT, SIGSTOP}) {
    std::ofstream(file) << std::string(kTimes, 'x');
    const auto pool = Open(kPoison, 1, {"--kills", file, "--sent", std::to_string(number)});
    const std::vector<Answer> answers = Run(*pool, {request});
    EXPECT_EQ(answers[0].error_status, 0) << number << answers[0].error << log_;
    EXPECT_EQ(answers[0].ids, alone[0].ids) << number;
    EXPECT_GE(pool->faults().restarts, kTimes) << number;
    EXPECT_EQ(pool->faults().refused, 0) << number;
  }
  EXPECT_NE(log_.find("\"signal 11 from process "), std::string::npos) << log_;
  EXPECT_NE(log_.find("how=stopped"), std::string::npos) << log_;
}

// A pass that never ends is its request's doing: the rest of the worker went on.
TEST_F(WorkerPoolTest, ARequestThatHangsIsRefused) {
  stall_limit_ = std::chrono::seconds(1);
  GenerateRequest request = Request(1);
  request.prompt.back() = kPoison;
  const std::string file = scratch_.path().string() + "/hangs";
  std::ofstream(file) << "xxx";
  const auto pool = Open(kPoison, 1, {"--kills", file, "--hangs", "yes"});
  const std::vector<Answer> answers = Run(*pool, {request, Request(2)});
  EXPECT_EQ(answers[0].error_status, 500) << log_;
  EXPECT_EQ(answers[1].error_status, 0) << answers[1].error << log_;
  EXPECT_EQ(pool->faults().refused, 1);
  EXPECT_NE(log_.find("how=stalled"), std::string::npos) << log_;
}

// A device that is lost takes its worker with it, and no token; one that only refuses a call does not.
TEST_F(WorkerPoolTest, DeviceErrorsEndTheWorkerOnlyWhereTheyMust) {
  GenerateRequest request = Request(1);
  request.prompt.back() = kPoison;
  const std::vector<Answer> alone = Run(*Open(-1), {request});
  const std::string file = scratch_.path().string() + "/failures";
  for (const int code : {700, 719, 1, 701}) {
    const bool is_sticky = code == 700 || code == 719;
    std::ofstream(file) << "xx";
    const auto pool = Open(kPoison, 1, {"--kills", file, "--code", std::to_string(code)});
    const std::vector<Answer> answers = Run(*pool, {request});
    EXPECT_EQ(pool->faults().restarts, is_sticky ? 2 : 0) << code << log_;
    EXPECT_EQ(answers[0].error_status, is_sticky ? 0 : 500) << code << answers[0].error;
    if (is_sticky) {
      EXPECT_EQ(answers[0].ids, alone[0].ids) << code;
    }
    const std::vector<Answer> after = Run(*pool, {Request(2)});
    EXPECT_EQ(after[0].error_status, 0) << code << after[0].error;
  }
  EXPECT_NE(log_.find("why=sticky"), std::string::npos) << log_;
}

// Drivers may take seconds to let go of a device that is lost: nobody waits for that.
TEST_F(WorkerPoolTest, AWorkerThatSaysThatItEndsIsLostAtOnce) {
  GenerateRequest request = Request(1);
  request.prompt.back() = kPoison;
  const std::vector<Answer> alone = Run(*Open(-1), {request});
  const std::string file = scratch_.path().string() + "/failures";
  std::ofstream(file) << "xx";
  const auto pool = Open(kPoison, 1, {"--kills", file, "--code", "700", "--lingers", "yes"});
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<Answer> answers = Run(*pool, {request});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_EQ(answers[0].ids, alone[0].ids) << answers[0].error;
  EXPECT_EQ(pool->faults().restarts, 2);
  EXPECT_NE(log_.find("how=\"said so\" why=sticky"), std::string::npos) << log_;
}

// A GPU runs behind its host, which only hears that something has failed. The request goes on operator by operator, so
// that if it happens again the log and the answer name the one.
TEST_F(WorkerPoolTest, ASecondLossOfTheSameRequestNamesTheOperatorThatFailed) {
  GenerateRequest request = Request(1);
  request.prompt.back() = kPoison;
  const std::string file = scratch_.path().string() + "/late";
  std::set<std::string> places;
  for (const int op : {2, 7, 11}) {
    log_.clear();
    std::ofstream(file).close();
    const auto pool = Open(kPoison, 1, {"--late", file, "--op", std::to_string(op)});
    const std::vector<Answer> answers = Run(*pool, {request, Request(2)});
    EXPECT_EQ(answers[1].error_status, 0) << answers[1].error;
    std::vector<std::string> failed;
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) failed.push_back(line);
    ASSERT_EQ(failed.size(), 3u) << log_;
    EXPECT_EQ(failed[1], failed[2]);
    places.insert(failed[2]);
    EXPECT_NE(answers[0].error.find("the last one at " + failed[2] + ";"), std::string::npos) << answers[0].error;
    const bool is_word = failed[2].find(' ') == std::string::npos;
    const std::string exact = "at=" + (is_word ? failed[2] : '"' + failed[2] + '"') + " exact=yes";
    size_t exact_losses = 0;
    for (size_t at = log_.find("worker_lost"); at != std::string::npos; at = log_.find("worker_lost", at + 1)) {
      const std::string line = log_.substr(at, log_.find('\n', at) - at);
      exact_losses += line.find(exact) == std::string::npos ? 0 : 1;
    }
    EXPECT_EQ(exact_losses, 2u) << log_;
    EXPECT_NE(log_.find("at=wait exact=no"), std::string::npos) << log_;  // the first one
  }
  EXPECT_EQ(places.size(), 3u);
}

// Kernels say which op they are of, so that the first loss names the one too, also where a graph ran.
TEST_F(WorkerPoolTest, ADeviceThatTellsWhatItRunsNamesTheOperatorAtTheFirstLoss) {
  GenerateRequest request = Request(1);
  request.prompt.back() = kPoison;
  const std::string file = scratch_.path().string() + "/late";
  stall_limit_ = std::chrono::seconds(1);
  for (const bool hangs : {false, true}) {
    log_.clear();
    std::ofstream(file).close();
    std::vector<std::string> arguments = {"--late", file, "--op", "9", "--told", "yes"};
    if (hangs) arguments.insert(arguments.end(), {"--hangs", "yes"});
    const auto pool = Open(kPoison, 1, arguments);
    Run(*pool, {request});
    std::vector<std::string> failed;
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) failed.push_back(line);
    ASSERT_EQ(failed.size(), 3u) << log_;
    const size_t first = log_.find("worker_lost");
    const std::string line = log_.substr(first, log_.find('\n', first) - first);
    EXPECT_NE(line.find(hangs ? "how=stalled" : "how=\"said so\""), std::string::npos) << line;
    EXPECT_NE(line.find("at=\"" + failed[0] + "\" exact=yes"), std::string::npos) << failed[0] << line;
  }
}

// Killed, crashed and stopped in turn, while jobs are in all states.
TEST_F(WorkerPoolTest, JobsOfLostWorkersGoOnWithTheSameBits) {
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < kJobs; ++i) {
    requests.push_back(Request(i));
    requests.back().max_tokens = 40 + i;
  }
  const std::vector<Answer> alone = Run(*Open(-1), requests);
  for (const int replicas : {1, 2}) {
    const auto pool = Open(-1, replicas);
    std::atomic<bool> done = false;
    std::atomic<int> faults = 0;
    std::thread foe([&] {
      std::minstd_rand random(7);
      constexpr int kSignals[] = {SIGKILL, SIGSEGV, SIGKILL, SIGSTOP};
      while (!done && faults < 12) {
        std::this_thread::sleep_for(std::chrono::milliseconds(random() % 120));
        const std::vector<serve::JobRunner::Worker> workers = pool->workers();
        const serve::JobRunner::Worker& worker = workers[random() % workers.size()];
        if (worker.state == "ready" && worker.pid > 0) kill(static_cast<pid_t>(worker.pid), kSignals[faults++ % 4]);
      }
    });
    // The foe may get no time while others have the machine.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const auto is_over = [&] { return faults >= 4 || std::chrono::steady_clock::now() > deadline; };
    for (int round = 0; round < 3 || !is_over(); ++round) {
      const std::vector<Answer> answers = Run(*pool, requests);
      for (size_t i = 0; i < answers.size(); ++i) {
        EXPECT_EQ(answers[i].error_status, 0) << answers[i].error;
        EXPECT_EQ(answers[i].ids, alone[i].ids) << i;
        EXPECT_EQ(answers[i].logprobs, alone[i].logprobs) << i;
        EXPECT_EQ(answers[i].logits_sha256, alone[i].logits_sha256) << i;
      }
    }
    done = true;
    foe.join();
    EXPECT_GT(faults, 0);
    EXPECT_GT(pool->faults().replays, 0) << log_;
    EXPECT_EQ(pool->faults().refused, 0) << log_;
    std::cout << replicas << " replicas: " << faults << " faults, " << pool->faults().restarts << " restarts, "
              << pool->faults().replays << " replays" << std::endl;
  }
}

// The pool's own thread may go on with a token that came alone. Not with those of many, and not with much work.
TEST_F(WorkerPoolTest, WhoIsToldAloneMayTakeItsTime) {
  const auto pool = Open(-1);
  const auto run = [&](std::vector<GenerateRequest> requests) {
    std::vector<std::vector<bool>> had_time(requests.size());
    std::vector<serve::Job> jobs(requests.size());
    size_t running = requests.size();
    for (size_t i = 0; i < requests.size(); ++i) {
      jobs[i].request = [request = requests[i]] { return request; };
      jobs[i].on_update = [&, i](const serve::JobUpdate& update) {
        const std::lock_guard lock(mutex_);
        had_time[i].push_back(update.has_time);
        running -= update.last() ? 1 : 0;
        changed_.notify_all();
      };
    }
    EXPECT_EQ(pool->Submit(std::move(jobs)).refusal, serve::Refusal::kNone);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return running == 0; });
    return had_time;
  };
  const std::vector<std::vector<bool>> alone = run({Request(1)});
  EXPECT_GT(alone[0].size(), 5u);
  EXPECT_EQ(std::count(alone[0].begin(), alone[0].end(), false), 0);
  GenerateRequest much = Request(1);
  much.top_logprobs = 2;
  much.prompt_logprobs = true;
  const std::vector<std::vector<bool>> first = run({much});
  EXPECT_FALSE(first[0].front());
  EXPECT_TRUE(first[0].back());
  const std::vector<std::vector<bool>> together = run({Request(1), Request(2), Request(3)});
  EXPECT_GT(std::count(together[0].begin(), together[0].end(), false), 5);
}

TEST_F(WorkerPoolTest, AWorkerThatNeverStartsIsAFailureThatIsTold) {
  serve::WorkerPool::Options options;
  options.commands = {{"/bin/false"}};
  serve::WorkerPool pool(std::move(options), [](const serve::LogLine&) {});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (pool.failure() == nullptr && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_NE(pool.failure(), nullptr);
  EXPECT_EQ(pool.health(), serve::JobRunner::Health::kFailed);
  EXPECT_EQ(pool.Submit({}).refusal, serve::Refusal::kFailed);
}

}  // namespace
}  // namespace stoch::test
