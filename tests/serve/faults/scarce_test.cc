// SPDX-License-Identifier: Apache-2.0
// Memory that runs out at any allocation, of the host or of a device, and values that are none: one request pays.

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/worker/scheduler.h"
#include "kernels/base/error.h"
#include "kernels/call_check.h"
#include "kernels/registry.h"
#include "tests/serve/faults/failing_new.h"
#include "tests/support/failing_backend.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace {

thread_local int64_t allocations = 0;  // of this thread, since they were counted last
thread_local int64_t fail_at = 0;      // the one of them that finds no memory; 0: none

}  // namespace

bool stoch::test::IsToFail() noexcept { return ++allocations == fail_at; }

namespace stoch::test {
namespace {

struct Answer {
  std::vector<int32_t> ids;
  int error_status = 0;
  std::string error;
  bool ended = false;
};

class Scarce : public testing::Test {
 protected:
  static constexpr size_t kRequests = 3;

  void SetUp() override { WriteTinyModel(folder_.path(), {}); }
  static std::shared_ptr<FailingBackend> Cpu() {
    return std::make_shared<FailingBackend>(OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr));
  }
  void Open(std::shared_ptr<Backend> backend) {
    scheduler_.reset();
    engine_.reset();
    EngineOptions options;
    options.context = 128;
    options.max_sequences = 4;
    options.max_pass_rows = 16;
    engine_ = Engine::Open(std::move(backend), OpenModelFiles(folder_.path().string()), options);
    scheduler_ = std::make_unique<serve::Scheduler>(*engine_, serve::RunnerOptions{.prefix_reuse = false});
  }

  static GenerateRequest Request(size_t i) {
    GenerateRequest request;
    for (size_t t = 0; t < 4 + 5 * i; ++t) request.prompt.push_back(static_cast<int32_t>(5 + 9 * i + t));
    request.max_tokens = 3;
    request.ignore_eos = true;
    request.sampling.temperature = static_cast<double>(i % 2);
    request.top_logprobs = i == 1 ? 2 : -1;
    request.hash_logits = i == 2;
    return request;
  }

  std::vector<Answer> Run() {
    std::vector<Answer> answers(kRequests);
    std::vector<serve::Job> jobs;
    for (size_t i = 0; i < kRequests; ++i) {
      answers[i].ids.reserve(16);  // what is told takes no memory
      serve::Job job;
      job.request = [i] { return Request(i); };
      job.on_update = [this, &answer = answers[i]](serve::JobUpdate update) {
        const std::lock_guard lock(mutex_);
        answer.ids.insert(answer.ids.end(), update.ids.begin(), update.ids.end());
        answer.error_status = update.error_status;
        answer.error = std::move(update.error);
        answer.ended = update.last();
        changed_.notify_all();
      };
      jobs.push_back(std::move(job));
    }
    EXPECT_EQ(scheduler_->Submit(std::move(jobs)).refusal, serve::Refusal::kNone);
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::minutes(2), [&] {
      return std::all_of(answers.begin(), answers.end(), [](const Answer& answer) { return answer.ended; });
    }));
    lock.unlock();
    while (!scheduler_->Idle()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    return answers;
  }

  // At most one paid; the others have what they have alone. Returns how many paid.
  int ExpectOnePays(const std::vector<Answer>& alone, const std::string& where) {
    const std::vector<Answer> answers = Run();
    int failed = 0;
    for (size_t i = 0; i < answers.size(); ++i) {
      failed += answers[i].error_status == 0 ? 0 : 1;
      if (answers[i].error_status == 0) {
        EXPECT_EQ(answers[i].ids, alone[i].ids) << where << ", answer " << i;
      }
    }
    EXPECT_LE(failed, 1) << where;
    EXPECT_EQ(scheduler_->failure(), nullptr) << where;
    EXPECT_EQ(engine_->free_tokens(), engine_->shape().kv_tokens) << where;
    return failed;
  }

  TempDir folder_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<serve::Scheduler> scheduler_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

TEST_F(Scarce, AnyAllocationOfTheHostMayFail) {
  const auto backend = Cpu();
  Open(backend);
  const std::vector<Answer> alone = Run();
  // The engine's thread is that of the passes: counted from the first one on.
  int64_t counted = 0, next = 0;
  bool is_armed = false;
  backend->before_pass = [&](const PassLayout&) {
    if (!is_armed) {
      is_armed = true;
      allocations = 0;
      fail_at = next;
    }
    counted = allocations;
  };
  Run();
  const int64_t all = counted;
  ASSERT_GT(all, 50);
  int paid = 0;
  for (next = 1; next <= all; ++next) {
    is_armed = false;
    paid += ExpectOnePays(alone, "allocation " + std::to_string(next));
    if (HasFailure()) break;
  }
  backend->before_pass = nullptr;
  ExpectOnePays(alone, "afterwards");
  std::cout << all << " allocations, " << paid << " requests paid" << std::endl;
}

// Loading ends with the reason, and once there is memory it succeeds.
class FullDevice final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  int64_t calls = 0, full_at = 0;

  Buffer Allocate(Device device, int64_t bytes) override { return Count(), inner().Allocate(device, bytes); }
  Buffer AllocateShared(Device device, int64_t bytes) override {
    return Count(), inner().AllocateShared(device, bytes);
  }
  void ReserveScratch(Device device, int64_t bytes) override { Count(), inner().ReserveScratch(device, bytes); }
  std::unique_ptr<LinearWeight> MakeLinear(Device device, std::span<const WeightSource> parts,
                                           const LinearSpec& spec) override {
    return Count(), inner().MakeLinear(device, parts, spec);
  }
  Buffer MakeVector(Device device, const WeightSource& source) override {
    return Count(), inner().MakeVector(device, source);
  }
  std::unique_ptr<EmbeddingTable> MakeEmbedding(Device device, const WeightSource& source,
                                                const LinearWeight* tied) override {
    return Count(), inner().MakeEmbedding(device, source, tied);
  }
  std::unique_ptr<KvCache> MakeKvCache(Device device, const KvCacheSpec& spec) override {
    return Count(), inner().MakeKvCache(device, spec);
  }
  std::unique_ptr<Pass> MakePass(Device device, const PassLimits& limits) override {
    return Count(), inner().MakePass(device, limits);
  }
  std::unique_ptr<LogitQueryBuffer> MakeLogitQueries(Device device, const LogitQueryLimits& limits) override {
    return Count(), inner().MakeLogitQueries(device, limits);
  }

 private:
  void Count() {
    if (++calls == full_at) throw OutOfMemory("cuda:0 has 3 MiB free");
  }
};

TEST_F(Scarce, AnyAllocationOfLoadingMayFail) {
  const auto device = std::make_shared<FullDevice>(Cpu());
  Open(device);
  const int64_t calls = device->calls;
  const std::vector<Answer> alone = Run();
  ASSERT_GT(calls, 15);
  for (int64_t call = 1; call <= calls; ++call) {
    scheduler_.reset();
    engine_.reset();
    device->calls = 0;
    device->full_at = call;
    EXPECT_THROW(Open(device), OutOfMemory) << call;
  }
  device->full_at = 0;
  Open(device);
  EXPECT_EQ(ExpectOnePays(alone, "afterwards"), 0);
}

// In the last row of one prompt, in any linear of any layer.
TEST_F(Scarce, NanInALayerEndsTheRequestWhoseItIs) {
  const auto backend = Cpu();
  Open(backend);
  const std::vector<Answer> alone = Run();
  const int32_t last = Request(1).prompt.back();
  int64_t row = -1;     // of the pass
  int64_t output = -1;  // among its output rows, which are all that the last layer ends with
  int64_t rows = 0;
  backend->before_pass = [&](const PassLayout& layout) {
    const auto found = std::find(layout.ids.begin(), layout.ids.end(), last);
    row = found == layout.ids.end() ? -1 : found - layout.ids.begin();
    rows = static_cast<int64_t>(layout.ids.size());
    const auto place = std::find(layout.output_rows.begin(), layout.output_rows.end(), row);
    output = place == layout.output_rows.end() ? -1 : place - layout.output_rows.begin();
  };
  std::map<std::string, int> sites;
  backend->after_linear = [&](const LinearCall& call) { ++sites[SiteName(call.site)]; };
  Run();
  ASSERT_GE(sites.size(), 8u);
  for (const auto& [site, count] : sites) {
    if (site == "lm_head") continue;  // no later op reads it: what is picked of it is a token
    bool planted = false;
    backend->after_linear = [&, wanted = site](const LinearCall& call) {
      const TensorView& out = call.outs.front();
      const int64_t at = out.dim(0) == rows ? row : output;
      if (at < 0 || SiteName(call.site) != wanted) return;
      out.ptr<float>()[at * out.step(0)] = std::numeric_limits<float>::quiet_NaN();
      planted = true;
    };
    const std::vector<Answer> answers = Run();
    EXPECT_TRUE(planted) << site;
    EXPECT_EQ(answers[1].error_status, 500) << site;
    EXPECT_NE(answers[1].error.find("NaN or infinity"), std::string::npos) << site << answers[1].error;
    for (const size_t i : {0, 2}) EXPECT_EQ(answers[i].ids, alone[i].ids) << site << answers[i].error;
    EXPECT_EQ(scheduler_->failure(), nullptr) << site;
  }
}

}  // namespace
}  // namespace stoch::test
