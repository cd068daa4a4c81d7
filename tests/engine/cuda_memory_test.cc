// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU is what the plan says, whatever the length of a prompt and the number of passes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kernels/math/random.h"
#include "kernels/registry.h"
#include "models/decoder/memory_plan.h"
#include "models/decoder/weights.h"
#include "tests/kernels/gpu/cuda_or_skip.h"

namespace stoch {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class CudaMemory : public testing::Test {
 protected:
  void SetUp() override {
    STOCH_CUDA_OR_SKIP();
    backend_ = OpenBackend("cuda:0", {}, nullptr);
    free_before_ = Free();
    options_.context = 16384;
    options_.max_sequences = 4;
    options_.kv_tokens = 20480;
    // Before the plan is made: passes of a GPU have more rows than those of a CPU.
    options_.placement = SingleDevice(OpenModelFiles("random:llama-3.2-1b").config, backend_->devices().front());
  }
  int64_t Free() const { return backend_->info(backend_->devices()[0]).free_bytes; }
  void Open() { engine_ = Engine::Open(backend_, OpenModelFiles("random:llama-3.2-1b"), options_); }

  // A prompt in passes as the engine cuts it, then a few tokens.
  void Run(int64_t tokens) {
    const auto sequence = engine_->NewSequence(tokens + 4);
    ASSERT_NE(sequence, nullptr);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < tokens; ++i) {
      ids.push_back(static_cast<int32_t>(RandomBits(1, 2, static_cast<uint64_t>(i)) % 100000));
    }
    sequence->Append(ids);
    while (sequence->pending() > 0) Step(sequence.get(), StepOutput::kLast);
    for (int i = 0; i < 4; ++i) {
      sequence->Append(std::vector<int32_t>{17 + i});
      Step(sequence.get(), StepOutput::kLast);
    }
  }
  void Step(Sequence* sequence, StepOutput output) {
    const int64_t count = engine_->NextTokens(*sequence, engine_->shape().max_rows);
    const StepItem item{sequence, count, output};
    const int64_t rows = engine_->Step({&item, 1});
    std::vector<int32_t> ids(static_cast<size_t>(rows));
    engine_->Argmax(0, ids);
  }

  std::shared_ptr<Backend> backend_;
  int64_t free_before_ = 0;
  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
};

// First: what a process loads once (code, local memory) is part of the plan, and stays for the next test.
TEST_F(CudaMemory, AgreesWithThePlan) {
  const ModelFiles files = OpenModelFiles("random:llama-3.2-1b");
  const MemoryPlan plan =
      PlanMemory(files, options_.precision, options_.sc, ShapeOf(files.config, options_), *backend_);
  Open();
  Run(600);
  Run(16000);
  {
    // Logits of many rows: the kernel with the most local memory.
    const auto sequence = engine_->NewSequence(200);
    sequence->Append(std::vector<int32_t>(200, 5));
    Step(sequence.get(), StepOutput::kAll);
  }
  const DeviceInfo info = backend_->info(backend_->devices()[0]);
  const int64_t used = free_before_ - info.free_bytes + info.runtime_taken_bytes;
  RecordProperty("planned_mib", std::to_string(plan.total.total() / kMiB));
  RecordProperty("used_mib", std::to_string(used / kMiB));
  EXPECT_LE(std::abs(used - plan.total.total()), plan.total.total() / 50)
      << "used " << used / kMiB << " MiB, planned " << plan.total.total() / kMiB << " MiB, of them runtime "
      << plan.total.runtime / kMiB << " MiB (the context " << info.runtime_taken_bytes / kMiB << " MiB), workspace "
      << plan.total.workspace / kMiB << " MiB, cache " << plan.total.kv_cache / kMiB << " MiB";
}

// Kernels are loaded at their first launch and graphs made per batch size; buffers never come.
TEST_F(CudaMemory, NothingGrowsWithAPrompt) {
  Open();
  Run(600);
  const int64_t after_first = Free();
  for (const int64_t tokens : {64, 1000, 3000, 9000, 16000, 16000}) {
    Run(tokens);
    EXPECT_GE(Free(), after_first - 16 * kMiB) << tokens << " tokens took " << (after_first - Free()) / kMiB << " MiB";
  }
}

}  // namespace
}  // namespace stoch
