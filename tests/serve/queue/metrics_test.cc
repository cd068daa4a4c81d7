// SPDX-License-Identifier: Apache-2.0
// Counters of what is counted elsewhere.
#include "engine/serve/metrics.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace stoch::test {
namespace {

TEST(Metrics, ScrapesAtOnceCountNothingTwice) {
  constexpr int kScrapes = 2;
  constexpr int kRounds = 1000;
  for (int round = 0; round < kRounds; ++round) {
    serve::Metrics metrics;
    std::atomic<int> ready = 0;
    std::vector<std::thread> scrapes;
    for (int t = 0; t < kScrapes; ++t) {
      scrapes.emplace_back([&] {
        serve::JobRunner::Faults faults;
        faults.restarts = faults.replays = faults.refused = faults.preemptions = 1;
        ++ready;
        while (ready < kScrapes) std::this_thread::yield();
        metrics.SetFaults(faults);
      });
    }
    for (std::thread& scrape : scrapes) scrape.join();
    const std::string text = metrics.Text();
    for (const std::string name : {"\nstoch_worker_restarts_total ", "\nstoch_sequences_replayed_total ",
                                   "\nstoch_sequences_refused_total ", "\nstoch_sequences_preempted_total "}) {
      EXPECT_EQ(std::stod(text.substr(text.find(name) + name.size())), 1) << name << round;
    }
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace stoch::test
