// SPDX-License-Identifier: Apache-2.0
// A device that fails with any code at any call: one that is sticky ends the engine, any other never does.

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <iostream>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/worker/scheduler.h"
#include "kernels/base/device_fault.h"
#include "kernels/registry.h"
#include "kernels/wrappers/forwarding_backend.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

// As the CUDA layer does it (kernels/cuda/base/cuda_check.cc).
[[noreturn]] void ThrowCode(int code, const std::string& message) {
  if (code == 2) throw OutOfMemory(message);
  if (!IsSticky(code)) throw DeviceRefusal(message);
  throw DeviceError(message);
}

// Counts the calls of passes, and fails at one of them; after a sticky failure every call fails, in other words.
class FakeDevice final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  // From now on call number `number` fails, counted from 1; 0: none.
  void FailAt(int64_t number, int code) {
    calls_ = 0;
    fail_at_ = number;
    code_ = code;
  }
  int64_t calls() const { return calls_; }

  Buffer Allocate(Device device, int64_t bytes) override { return Count(), inner().Allocate(device, bytes); }
  Buffer AllocateShared(Device device, int64_t bytes) override {
    return Count(), inner().AllocateShared(device, bytes);
  }
  void CopyFromHost(const TensorView& to, const void* from) override { Count(), inner().CopyFromHost(to, from); }
  void CopyToHost(void* to, const TensorView& from) override { Count(), inner().CopyToHost(to, from); }
  void Copy(const TensorView& to, const TensorView& from) override { Count(), inner().Copy(to, from); }
  void Synchronize(Device device) override { Count(), inner().Synchronize(device); }
  void UploadPass(Pass& pass, const PassLayout& layout) override { Count(), inner().UploadPass(pass, layout); }
  void Embed(const EmbeddingTable& table, const Pass& pass, const TensorView& out) override {
    Count(), inner().Embed(table, pass, out);
  }
#define OP(Op) \
  void Op(const Op##Call& call) override { Count(), inner().Op(call); }
  STOCH_FOR_EACH_OP(OP)
  OP(AllGather)
#undef OP
  void SelectRows(const Pass& pass, const TensorView& x, const TensorView& out) override {
    Count(), inner().SelectRows(pass, x, out);
  }
  void Argmax(const TensorView& logits, const TensorView& ids) override { Count(), inner().Argmax(logits, ids); }
  void UploadLogitQueries(LogitQueryBuffer& buffer, const LogitQueries& queries) override {
    Count(), inner().UploadLogitQueries(buffer, queries);
  }
  void PickTokens(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) override {
    Count(), inner().PickTokens(logits, buffer, range);
  }
  void LogProbs(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) override {
    Count(), inner().LogProbs(logits, buffer, range);
  }
  void RunGraph(std::span<const Device> devices, std::string_view key, const std::function<void()>& body) override {
    Count(), inner().RunGraph(devices, key, body);
  }
  void CheckFinite(Device device) override { Count(), inner().CheckFinite(device); }

 private:
  void Count() {
    if (dead_) throw DeviceError("again");
    if (++calls_ != fail_at_) return;
    dead_ = IsSticky(code_);
    ThrowCode(code_, "the first cause");
  }

  int64_t calls_ = 0;
  int64_t fail_at_ = 0;
  int code_ = 0;
  bool dead_ = false;
};

struct Answer {
  std::vector<int32_t> ids;
  int error_status = 0;
  bool ended = false;
};

class FaultMatrix : public testing::Test {
 protected:
  void SetUp() override { WriteTinyModel(folder_.path(), {}); }

  void Open() {
    scheduler_.reset();
    engine_.reset();
    device_ = std::make_shared<FakeDevice>(OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr));
    EngineOptions options;
    options.context = 128;
    options.max_sequences = 4;
    options.max_pass_rows = 8;
    engine_ = Engine::Open(device_, OpenModelFiles(folder_.path().string()), options);
    scheduler_ = std::make_unique<serve::Scheduler>(*engine_, serve::RunnerOptions{.prefix_reuse = false});
  }

  // A prompt in two pieces, draws, log-probabilities, and logits on the host.
  static std::vector<GenerateRequest> Requests() {
    std::vector<GenerateRequest> requests(3);
    for (size_t i = 0; i < requests.size(); ++i) {
      GenerateRequest& request = requests[i];
      for (size_t t = 0; t < 3 + 4 * i; ++t) request.prompt.push_back(static_cast<int32_t>(5 + 7 * i + t));
      request.max_tokens = 3;
      request.ignore_eos = true;
      request.sampling.temperature = static_cast<double>(i % 2);
      request.top_logprobs = i == 1 ? 2 : -1;
      request.hash_logits = i == 2;
    }
    return requests;
  }

  // Runs them until all have ended or been told that the engine has.
  std::vector<Answer> Run() {
    std::vector<Answer> answers(Requests().size());
    std::vector<serve::Job> jobs;
    for (size_t i = 0; i < answers.size(); ++i) {
      serve::Job job;
      job.request = [request = Requests()[i]] { return request; };
      job.on_update = [this, &answers, i](const serve::JobUpdate& update) {
        const std::lock_guard lock(mutex_);
        answers[i].ids.insert(answers[i].ids.end(), update.ids.begin(), update.ids.end());
        answers[i].error_status = update.error_status;
        answers[i].ended = update.last();
        changed_.notify_all();
      };
      jobs.push_back(std::move(job));
    }
    EXPECT_EQ(scheduler_->Submit(std::move(jobs)).refusal, serve::Refusal::kNone);
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::minutes(1), [&] {
      return std::all_of(answers.begin(), answers.end(), [](const Answer& answer) { return answer.ended; });
    }));
    lock.unlock();
    while (!scheduler_->Idle()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    return answers;
  }

  void ExpectDead(const std::string& where) {
    for (const Answer& answer : Run()) EXPECT_TRUE(answer.ended) << where;
    while (scheduler_->health() == serve::JobRunner::Health::kFailed && scheduler_->failure() == nullptr) {
    }
    ASSERT_NE(scheduler_->failure(), nullptr) << where;
    try {
      std::rethrow_exception(scheduler_->failure());
    } catch (const DeviceError& error) {
      EXPECT_STREQ(error.what(), "the first cause") << where;
    }
  }

  // At most one of them pays, and the engine goes on.
  void ExpectAlive(const std::vector<Answer>& alone, const std::string& where) {
    const std::vector<Answer> answers = Run();
    int failed = 0;
    for (size_t i = 0; i < answers.size(); ++i) {
      if (answers[i].error_status != 0) {
        ++failed;
        continue;
      }
      EXPECT_EQ(answers[i].ids, alone[i].ids) << where << ", answer " << i;
    }
    EXPECT_LE(failed, 1) << where;
    EXPECT_EQ(scheduler_->failure(), nullptr) << where;
    EXPECT_EQ(engine_->free_tokens(), engine_->shape().kv_tokens) << where;
  }

  TempDir folder_;
  std::shared_ptr<FakeDevice> device_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<serve::Scheduler> scheduler_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

constexpr int kGoOn[] = {1, 2, 9, 98, 701, 720};
constexpr int kSticky[] = {214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810};

TEST(DeviceFault, EveryCodeIsOneOrTheOther) {
  const std::set<int> go_on(std::begin(kGoOn), std::end(kGoOn));
  for (int code = 1; code < 2000; ++code) EXPECT_EQ(IsSticky(code), !go_on.contains(code)) << code;
  for (const int code : kSticky) EXPECT_TRUE(IsSticky(code)) << code;
  EXPECT_FALSE(IsSticky(0));
  EXPECT_TRUE(IsSticky(-1));
}

TEST_F(FaultMatrix, AnyCallMayFail) {
  Open();
  device_->FailAt(0, 0);
  const std::vector<Answer> alone = Run();
  const int64_t calls = device_->calls();
  ASSERT_GT(calls, 60);
  for (const Answer& answer : alone) EXPECT_EQ(answer.ids.size(), 3u);
  for (int64_t call = 1; call <= calls; ++call) {
    const std::string where = "call " + std::to_string(call);
    for (const int code : kGoOn) {
      device_->FailAt(call, code);
      ExpectAlive(alone, where + ", code " + std::to_string(code));
    }
    device_->FailAt(call, kSticky[static_cast<size_t>(call) % std::size(kSticky)]);
    ExpectDead(where);
    Open();
    if (HasFailure()) break;
  }
  std::cout << calls << " calls" << std::endl;
}

TEST_F(FaultMatrix, AnyCodeMayCome) {
  std::vector<int> codes(std::begin(kSticky), std::end(kSticky));
  for (const int unnamed : {3, 4, 46, 100, 101, 201, 209, 304, 400, 500, 600, 703, 719, 800, 900, 999}) {
    codes.push_back(unnamed);
  }
  for (const int code : codes) {
    Open();
    device_->FailAt(17, code);
    ExpectDead("code " + std::to_string(code));
  }
}

}  // namespace
}  // namespace stoch::test
