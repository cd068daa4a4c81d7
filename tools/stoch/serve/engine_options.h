// SPDX-License-Identifier: Apache-2.0
// What `stoch serve` and the workers that it starts must agree on: the model, its arithmetic, devices and sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/common_options.h"
#include "app/options/speculation_options.h"
#include "engine/engine.h"
#include "engine/request/job_runner.h"

namespace stoch::cli {

struct ServedEngine {
  ModelOptions model;
  DeviceOptions device;
  ArithmeticOptions arithmetic;
  int64_t max_sequences = 32;
  int64_t kv_tokens = 0;
  double gpu_memory_utilization = 0.9;
  int64_t sharers = 1;  // workers on the same devices
  bool prefix_reuse = true;
  SpeculationOptions speculation{.speculate = "auto"};
  bool quiet = false;
};

void AddServedEngine(CLI::App& command, ServedEngine* options);

// kv_tokens: where none are asked for, as many as all sequences together can hold, of which KvFitOf says what fits.
// Errors: InvalidInput.
EngineOptions EngineOptionsFrom(const ServedEngine& options, const ModelFiles& files);

// How the KV cache is sized from free memory; none where the options say its size.
std::optional<KvFit> KvFitOf(const ServedEngine& options);

// The command line of a worker with these options. device: its own; "" = that of the options. gateway_files: what the
// gateway alone has read, for the worker to say what it finds there.
std::vector<std::string> WorkerCommand(const ServedEngine& options, const std::string& device,
                                       const std::vector<std::string>& gateway_files);
// WorkerCommand on ranks, after the words that launch them.
// Errors: DeviceError where the system does not say what this program is.
std::vector<std::string> LaunchedCommand(const ServedEngine& options, const std::vector<std::string>& launch,
                                         const std::vector<std::string>& gateway_files);

}  // namespace stoch::cli
