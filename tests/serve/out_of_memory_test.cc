// SPDX-License-Identifier: Apache-2.0
// A pass that finds no memory ends one request, the one that asked for most; its neighbours answer as if alone.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "engine/worker/scheduler.h"
#include "kernels/base/error.h"
#include "kernels/registry.h"
#include "tests/support/failing_backend.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

struct Answer {
  std::vector<int32_t> ids;
  int error_status = 0;
  std::string error;
  bool ended = false;
};

class OutOfMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    TinyModel model;
    model.config.max_position_embeddings = 128;
    WriteTinyModel(scratch_.path(), model);
    auto backend = std::make_shared<FailingBackend>(OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr));
    backend_ = backend.get();
    EngineOptions options;
    options.context = 128;
    options.max_sequences = 4;
    options.max_pass_rows = 64;
    engine_ = Engine::Open(std::move(backend), OpenModelFiles(scratch_.path().string()), options);
  }

  static GenerateRequest Request(int64_t prompt_tokens, int first) {
    GenerateRequest request;
    for (int64_t i = 0; i < prompt_tokens; ++i) request.prompt.push_back(static_cast<int32_t>((first + 7 * i) % 20));
    request.max_tokens = 6;
    request.ignore_eos = true;
    return request;
  }

  // All requests at once, through a scheduler of their own.
  std::vector<Answer> Serve(const std::vector<GenerateRequest>& requests) {
    std::vector<Answer> answers(requests.size());
    serve::Scheduler scheduler(*engine_, {});
    std::vector<serve::Job> jobs;
    for (size_t i = 0; i < requests.size(); ++i) {
      jobs.push_back({[request = requests[i]] { return request; },
                      [this, &answers, i](const serve::JobUpdate& update) {
                        const std::lock_guard lock(mutex_);
                        Answer& answer = answers[i];
                        answer.ids.insert(answer.ids.end(), update.ids.begin(), update.ids.end());
                        answer.error_status = update.error_status;
                        answer.error = update.error;
                        answer.ended = update.last();
                        changed_.notify_all();
                      }});
    }
    EXPECT_EQ(scheduler.Submit(std::move(jobs)).refusal, serve::Refusal::kNone);
    std::unique_lock lock(mutex_);
    const bool ended = changed_.wait_for(lock, std::chrono::minutes(2), [&] {
      for (const Answer& answer : answers) {
        if (!answer.ended) return false;
      }
      return true;
    });
    EXPECT_TRUE(ended);
    lock.unlock();
    EXPECT_EQ(scheduler.failure(), nullptr);
    return answers;
  }

  TempDir scratch_;
  FailingBackend* backend_ = nullptr;
  std::unique_ptr<Engine> engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

TEST_F(OutOfMemoryTest, EndsTheLargestRequestAlone) {
  const std::vector<GenerateRequest> requests = {Request(5, 1), Request(40, 2), Request(9, 3)};
  std::vector<GenerateResult> alone;
  for (const GenerateRequest& request : requests) alone.push_back(Generate(*engine_, nullptr, request));
  // Passes with the long prompt in them are too large for this device.
  backend_->before_attention = [](int64_t rows) {
    if (rows > 30) throw OutOfMemory("cuda:0 has 3 MiB free, but 7 MiB are needed in one piece");
  };
  const std::vector<Answer> answers = Serve(requests);
  EXPECT_EQ(answers[1].error_status, 503);
  EXPECT_NE(answers[1].error.find("7 MiB"), std::string::npos) << answers[1].error;
  for (const size_t i : {0, 2}) {
    EXPECT_EQ(answers[i].error_status, 0) << answers[i].error;
    EXPECT_EQ(answers[i].ids, alone[i].ids) << i;
  }
  // Nobody holds pages, and memory that is back serves the next request.
  backend_->before_attention = nullptr;
  const std::vector<Answer> later = Serve({requests[1]});
  EXPECT_EQ(later[0].ids, alone[1].ids);
}

TEST_F(OutOfMemoryTest, NeverRunsEveryPassAgainOneByOne) {
  int failures = 0;
  backend_->before_attention = [&failures](int64_t rows) {
    if (rows < 30) return;
    ++failures;
    throw OutOfMemory("no memory");
  };
  Serve({Request(5, 1), Request(40, 2), Request(9, 3)});
  EXPECT_EQ(failures, 1);  // the one pass; another run of the same request would fail a second time
}

TEST_F(OutOfMemoryTest, ReachesTheCallerOfGenerate) {
  backend_->before_attention = [](int64_t) { throw OutOfMemory("no memory"); };
  EXPECT_THROW(Generate(*engine_, nullptr, Request(5, 1)), OutOfMemory);
  backend_->before_attention = nullptr;
  EXPECT_EQ(Generate(*engine_, nullptr, Request(5, 1)).ids.size(), 6u);
}

}  // namespace
}  // namespace stoch::test
