// SPDX-License-Identifier: Apache-2.0
// What `stoch serve` and the workers that it starts must agree on: the model, its arithmetic, devices and sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/request/job_runner.h"
#include "tools/stoch/common_options.h"

namespace stoch::cli {

struct ServedEngine {
  ModelOptions model;
  DeviceOptions device;
  ArithmeticOptions arithmetic;
  int64_t max_sequences = 32;
  int64_t kv_tokens = 0;
  bool prefix_reuse = true;
  bool quiet = false;
};

void AddServedEngine(CLI::App& command, ServedEngine* options);

// Errors: InvalidInput.
EngineOptions EngineOptionsFrom(const ServedEngine& options, const ModelFiles& files);

// The command line of a worker with these options. device: its own; "" = that of the options.
std::vector<std::string> WorkerCommand(const ServedEngine& options, const std::string& device);

}  // namespace stoch::cli
