// SPDX-License-Identifier: Apache-2.0
// Many requests leave nothing behind: no memory, no descriptors, no fragments, no other bits.
//
// STOCH_SOAK_GENERATIONS and STOCH_SOAK_ARRIVALS say how many (the ctest entry serve_soak runs 50 000 and a million).

#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/gateway/worker_pool.h"
#include "kernels/registry.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

int NumberFromEnvironment(const char* name, int fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::atoi(text);
}

// What a process has of its system.
struct Held {
  int64_t resident_kib = 0;
  int64_t descriptors = 0;
};

Held HeldBy(int64_t pid) {
  const std::filesystem::path folder = "/proc/" + std::to_string(pid);
  Held held;
  std::ifstream status(folder / "status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) held.resident_kib = std::stoll(line.substr(6));
  }
  const std::filesystem::directory_iterator files(folder / "fd");
  held.descriptors = std::distance(begin(files), end(files));
  return held;
}

// Jobs of a pool, so many at a time.
class Crowd {
 public:
  explicit Crowd(serve::JobRunner& runner) : runner_(runner) {}

  // Runs requests first .. end - 1 of an endless list. Returns the hash of the last one's logits.
  std::string Run(int first, int end) {
    constexpr int kAtOnce = 24;
    for (int i = first; i < end; ++i) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return in_flight_ < kAtOnce; });
        ++in_flight_;
      }
      Submit(i, i + 1 == end);
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return in_flight_ == 0; });
    return hash_;
  }
  int failed() const { return failed_; }

 private:
  void Submit(int i, bool hashed) {
    GenerateRequest request;
    // Whatever number it has, a hashed one is the same request.
    std::minstd_rand random(hashed ? 1u : static_cast<unsigned>(i % 997) + 2);
    request.prompt.resize(1 + random() % 40);
    for (int32_t& id : request.prompt) id = static_cast<int32_t>(3 + random() % 70);
    request.max_tokens = static_cast<int64_t>(1 + random() % 6);
    request.sampling.temperature = static_cast<double>(random() % 2);
    request.sampling.seed = random();
    request.top_logprobs = random() % 3 == 0 ? 1 : -1;
    request.hash_logits = hashed;
    serve::Job job;
    job.request = [request] { return request; };
    job.on_update = [this, hashed](const serve::JobUpdate& update) {
      if (!update.last()) return;
      const std::lock_guard lock(mutex_);
      failed_ += update.error_status == 0 ? 0 : 1;
      if (hashed) hash_ = update.logits_sha256;
      --in_flight_;
      changed_.notify_all();
    };
    std::vector<serve::Job> jobs;
    jobs.push_back(std::move(job));
    ASSERT_EQ(runner_.Submit(std::move(jobs)).refusal, serve::Refusal::kNone);
  }

  serve::JobRunner& runner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int in_flight_ = 0;
  int failed_ = 0;
  std::string hash_;
};

// A gateway (this process) and its worker.
TEST(Soak, GenerationsLeaveNothingBehind) {
  const TempDir folder;
  TinyModel model;
  model.config.max_position_embeddings = 128;
  WriteTinyModel(folder.path(), model);
  serve::WorkerPool::Options options;
  options.commands = {{STOCH_POISON_WORKER, "--model", folder.path().string(), "--poison", "-1"}};
  serve::WorkerPool pool(std::move(options), [](const serve::LogLine&) {});
  Crowd crowd(pool);
  const int generations = NumberFromEnvironment("STOCH_SOAK_GENERATIONS", 5000);
  const int warm = std::max(100, generations / 10);  // allocators fill, the prefix cache too
  const std::string first_hash = crowd.Run(0, 1);
  crowd.Run(1, warm);
  const int64_t worker = pool.workers().at(0).pid;
  const Held gateway_before = HeldBy(getpid()), worker_before = HeldBy(worker);
  crowd.Run(warm, generations - 1);
  EXPECT_EQ(crowd.Run(generations - 1, generations), first_hash);
  EXPECT_EQ(first_hash.size(), 64u);
  EXPECT_EQ(crowd.failed(), 0);
  const Held gateway_after = HeldBy(getpid()), worker_after = HeldBy(worker);
  EXPECT_EQ(pool.faults().restarts, 0);
  EXPECT_EQ(pool.load().running + pool.load().waiting, 0);
  EXPECT_EQ(gateway_after.descriptors, gateway_before.descriptors);
  EXPECT_EQ(worker_after.descriptors, worker_before.descriptors);
  std::cout << generations << " generations: gateway " << gateway_before.resident_kib << " -> "
            << gateway_after.resident_kib << " KiB, worker " << worker_before.resident_kib << " -> "
            << worker_after.resident_kib << " KiB" << std::endl;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which keep what is freed
  EXPECT_LE(gateway_after.resident_kib, gateway_before.resident_kib + 2048);
  EXPECT_LE(worker_after.resident_kib, worker_before.resident_kib + 2048);
#endif
}

// Sequences of all lengths come, grow and go; what is free is one piece to whoever comes next.
TEST(Soak, ArrivalsAndEndsLeaveNoFragments) {
  const TempDir folder;
  TinyModel model;
  constexpr int64_t kTokens = 32768;
  model.config.max_position_embeddings = kTokens;
  WriteTinyModel(folder.path(), model);
  EngineOptions options;
  options.context = kTokens;
  options.kv_tokens = kTokens;
  options.max_sequences = 64;
  options.max_pass_rows = 64;
  const auto engine = Engine::Open(OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr),
                                   OpenModelFiles(folder.path().string()), options);
  const int64_t all = engine->free_tokens();
  const int arrivals = NumberFromEnvironment("STOCH_SOAK_ARRIVALS", 200'000);
  std::minstd_rand random(11);
  std::vector<std::unique_ptr<Sequence>> sequences;
  int64_t refused = 0;
  for (int arrived = 0; arrived < arrivals;) {
    const auto at = [&] { return static_cast<std::ptrdiff_t>(random() % sequences.size()); };
    const unsigned what = random() % 8;
    if (!sequences.empty() && (what < 3 || sequences.size() >= 64)) {
      sequences.erase(sequences.begin() + at());
    } else if (!sequences.empty() && what == 3) {
      Sequence& sequence = *sequences[static_cast<size_t>(at())];
      (void)sequence.Grow(std::min(sequence.capacity(), sequence.room() + 1 + static_cast<int64_t>(random() % 300)));
    } else {
      // Mostly short, some very long.
      const auto capacity = static_cast<int64_t>(1 + random() % (random() % 16 == 0 ? kTokens / 4 : 1000));
      auto sequence = engine->NewSequence(capacity, {}, {}, random() % 2 == 0);
      ++arrived;
      refused += sequence == nullptr ? 1 : 0;
      if (sequence != nullptr) sequences.push_back(std::move(sequence));
    }
  }
  for (size_t left = sequences.size() / 2; left > 0; --left) {
    sequences.erase(sequences.begin() + static_cast<std::ptrdiff_t>(random() % sequences.size()));
  }
  const int64_t free = engine->free_tokens();
  EXPECT_GT(free, all / 10);
  EXPECT_NE(engine->NewSequence(free * 95 / 100, {}, {}, true), nullptr) << free << " of " << all;
  EXPECT_GT(refused, 0);  // else it was never full
  std::cout << arrivals << " arrivals, " << refused << " refused, " << free << " of " << all
            << " tokens free at the end" << std::endl;
  sequences.clear();
  EXPECT_EQ(engine->free_tokens(), all);
  EXPECT_NE(engine->NewSequence(all, {}, {}, true), nullptr);
}

}  // namespace
}  // namespace stoch::test
