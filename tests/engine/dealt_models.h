// SPDX-License-Identifier: Apache-2.0
// Small random models of 32768 positions, whose positions tests deal over devices.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace stoch::test {

inline constexpr int64_t kDealtContext = 32768;

// Writes the models: four heads over two KV heads; one with a sliding window of 100 in a layer and a KV head for each
// head; eight heads over one KV head of 24 channels, with norms of heads.
std::vector<std::filesystem::path> WriteDealtModels(const std::filesystem::path& scratch);

// `split` as --split; "layer" is one device of the backend. precision "fp32", or SC settings.
std::unique_ptr<Engine> OpenDealt(const std::shared_ptr<Backend>& backend, const std::filesystem::path& folder,
                                  std::string_view split, const std::string& settings, int64_t max_pass_rows = 512);

std::vector<int32_t> DealtPrompt(uint64_t stream, int64_t length, int64_t vocab);

// sha256 of the logits after a prompt of so many tokens, and after each of `generated` greedy tokens.
std::string HashOfLength(Engine& engine, int64_t length, int generated);

std::shared_ptr<Backend> Cpu(const std::string& device);  // one thread

// {device, split}
using Splits = std::vector<std::pair<std::string, std::string>>;
Splits DealtSplits();  // sequence over 2, 4 and 8 logical CPU devices

// Prompts of every length, with three tokens generated, have the logits of one device, in every model.
void ExpectLengths(const std::vector<int64_t>& lengths, const Splits& splits, const std::vector<std::string>& configs);

}  // namespace stoch::test
