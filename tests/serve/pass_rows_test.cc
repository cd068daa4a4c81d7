// SPDX-License-Identifier: Apache-2.0
// How much of a prompt a pass takes: all that it has room for, but little where others get their next token with it.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "engine/worker/scheduler.h"
#include "kernels/registry.h"
#include "tests/support/failing_backend.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

constexpr int64_t kRoom = 900;  // rows of a pass
constexpr int64_t kFew = 512;   // of prompts, next to others

class PassRowsTest : public testing::Test {
 protected:
  void SetUp() override {
    TinyModel model;
    model.config.max_position_embeddings = 2048;
    WriteTinyModel(scratch_.path(), model);
    auto backend = std::make_shared<FailingBackend>(OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr));
    backend->before_pass = [this](const PassLayout& layout) {
      const std::lock_guard lock(mutex_);
      passes_.push_back(static_cast<int64_t>(layout.ids.size()));
    };
    EngineOptions options;
    options.max_sequences = 4;
    options.max_pass_rows = kRoom;
    engine_ = Engine::Open(std::move(backend), OpenModelFiles(scratch_.path().string()), options);
    scheduler_ = std::make_unique<serve::Scheduler>(*engine_, serve::RunnerOptions{.prefix_reuse = false});
  }

  void Submit(size_t index, int64_t prompt_tokens, int64_t max_tokens) {
    GenerateRequest request;
    for (int64_t i = 0; i < prompt_tokens; ++i) request.prompt.push_back(static_cast<int32_t>(7 * i % 20));
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    std::vector<serve::Job> jobs;
    jobs.push_back({[request] { return request; },
                    [this, index](const serve::JobUpdate& update) {
                      const std::lock_guard lock(mutex_);
                      EXPECT_EQ(update.error_status, 0) << update.error;
                      tokens_[index] += update.ids.size();
                      ended_[index] = update.last();
                      changed_.notify_all();
                    }});
    EXPECT_EQ(scheduler_->Submit(std::move(jobs)).refusal, serve::Refusal::kNone);
  }
  template <typename Condition>
  void Await(const Condition& condition) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::minutes(2), condition));
  }
  int64_t LargestPass() {
    const std::lock_guard lock(mutex_);
    return passes_.empty() ? 0 : *std::max_element(passes_.begin(), passes_.end());
  }

  TempDir scratch_;
  std::unique_ptr<Engine> engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int64_t> passes_;
  size_t tokens_[2] = {};
  bool ended_[2] = {};
  std::unique_ptr<serve::Scheduler> scheduler_;
};

TEST_F(PassRowsTest, APromptAloneTakesWhatAPassHasRoomFor) {
  Submit(0, 1500, 2);
  Await([&] { return ended_[0]; });
  EXPECT_EQ(LargestPass(), kRoom);
}

TEST_F(PassRowsTest, APromptNextToAStreamTakesLittleOfEachPass) {
  Submit(0, 5, 1200);
  Await([&] { return tokens_[0] > 0; });
  Submit(1, 1500, 2);
  Await([&] { return ended_[1]; });
  {
    const std::lock_guard lock(mutex_);
    ASSERT_FALSE(ended_[0]) << "the stream ended before the prompt was done";
  }
  EXPECT_EQ(LargestPass(), kFew + 1);
  Await([&] { return ended_[0]; });
}

}  // namespace
}  // namespace stoch::test
