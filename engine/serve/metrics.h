// SPDX-License-Identifier: Apache-2.0
// What the server counts, in Prometheus text format. Wraps prometheus-cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request/job_runner.h"

namespace stoch::serve {

// Threads: safe.
class Metrics {
 public:
  Metrics();
  ~Metrics();

  void SetLoad(const JobRunner::Load& load);
  void SetFaults(const JobRunner::Faults& faults);
  void SetWorkers(const std::vector<JobRunner::Worker>& workers);
  void AddPromptTokens(int64_t tokens);
  void AddReusedTokens(int64_t tokens);  // of them, those that needed no computing
  void AddDrafts(int64_t drafted, int64_t accepted);
  void AddGeneratedTokens(int64_t tokens);
  // Of a sequence: "stop", "length", "cancelled", "error".
  void CountFinished(std::string_view reason);
  void CountResponse(int status);
  void CountRefusedConnection();
  void SetDroppedLogLines(uint64_t lines);  // so far
  void SetBuild(const std::string& version, const std::string& commit);
  // From now on every series has it as its label model_name, so that one dashboard tells servers of several models apart.
  void SetModel(const std::string& name);
  // Histograms, in seconds.
  void ObserveQueueTime(double seconds);
  void ObserveTimeToFirstToken(double seconds);
  void ObserveInterToken(double seconds);
  void ObserveEndToEnd(double seconds);

  // The text of /metrics, "text/plain; version=0.0.4".
  std::string Text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stoch::serve
