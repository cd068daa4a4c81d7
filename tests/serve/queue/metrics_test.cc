// SPDX-License-Identifier: Apache-2.0
// Counters of what is counted elsewhere.
#include "engine/serve/metrics.h"

#include <gtest/gtest.h>

#include <atomic>
#include <sstream>
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

TEST(Metrics, EverySeriesNamesTheModel) {
  serve::Metrics metrics;
  metrics.ObserveQueueTime(1);
  metrics.CountResponse(200);
  EXPECT_EQ(metrics.Text().find("model_name"), std::string::npos);
  metrics.SetModel("org/a \"name\"");
  std::istringstream lines(metrics.Text());
  int series = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    ++series;
    EXPECT_NE(line.find("model_name=\"org/a \\\"name\\\"\""), std::string::npos) << line;
  }
  EXPECT_GT(series, 28);
}

}  // namespace
}  // namespace stoch::test
