// SPDX-License-Identifier: Apache-2.0
// sha256 of every logit a model computes for a fixed input, in a chosen way of running it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "app/common_options.h"
#include "engine/engine.h"
#include "kernels/backend.h"

namespace stoch::cli {

// How the same tokens are run.
struct LogitsRun {
  std::vector<int32_t> prompt;
  int64_t new_tokens = 8;  // greedy, after the prompt
  int64_t piece = 0;       // prompt tokens of one pass; 0 = all at once
  int64_t neighbours = 0;  // other sequences in every pass
};

// A deterministic prompt inside the vocabulary.
std::vector<int32_t> VerifyPrompt(int64_t vocab_size, int64_t length);

// Loads `model` in `config` ("fp32" or SC settings) with room for the run, divided as `devices` says.
std::unique_ptr<Engine> OpenForVerify(std::shared_ptr<Backend> backend, const std::string& model,
                                      const std::string& config, const LogitsRun& run,
                                      const DeviceOptions& devices = {});

// sha256 over the float32 logits of every prompt token and every new token but the last, in order.
std::string LogitsSha256(Engine& engine, const LogitsRun& run);

}  // namespace stoch::cli
