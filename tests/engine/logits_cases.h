// SPDX-License-Identifier: Apache-2.0
// The runs whose logits are recorded as sha256 constants in tests/golden/logits_sha256.txt: any backend must give the
// same bits.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace stoch::test {

struct LogitsConfig {
  const char* name;
  Precision precision;
  const char* settings;  // of --sc
};
// Every SC mode: stream lengths, scrambling, attention modes, gates, sources, scopes; and exact fp32.
const std::vector<LogitsConfig>& LogitsConfigs();

// How the prompt of the hashed sequence is cut into passes. Generated tokens are passes of one token.
enum class Cut { kWhole, kChunks, kTokens };

struct LogitsRun {
  Cut cut = Cut::kWhole;
  bool batched = false;  // next to two other sequences that start, grow and end at other times
};

// sha256 (logits_hash.h) over the logits of every prompt position, then of kDecodeTokens greedy tokens.
// Requires: a chunk-invariant configuration for other cuts than kWhole, a batch-invariant one for batched runs.
std::string HashRun(Engine& engine, const std::vector<int32_t>& prompt, const LogitsRun& run);
inline constexpr int kDecodeTokens = 5;

// Precision, SC settings and sizes of a case.
EngineOptions OptionsOf(const LogitsConfig& config);

std::unique_ptr<Engine> OpenCase(std::shared_ptr<Backend> backend, const std::filesystem::path& folder,
                                 const LogitsConfig& config);

// A model of the constants and its prompt: "tiny" (random, written to `scratch`), or one of /models of the reference
// data with its first golden prompt.
struct LogitsModel {
  std::string name;
  std::filesystem::path folder;
  std::vector<int32_t> prompt;
};
LogitsModel TinyLogitsModel(const std::filesystem::path& scratch);
std::vector<std::string> SharedLogitsModels();
LogitsModel SharedLogitsModel(const std::string& name);  // Requires: reference data
// The other families: random ones, written to `scratch`, and those of the reference data with their second prompt.
inline constexpr int64_t kRandomVocabulary = 96;
std::vector<LogitsModel> RandomFamilyModels(const std::filesystem::path& scratch,
                                            int64_t vocab_size = kRandomVocabulary);
std::vector<std::string> SharedFamilyNames();
LogitsModel SharedFamilyModel(const std::string& name);  // Requires: reference data
// Whether hashes of the families are recorded for it: a few, as what families add depends on few settings.
bool IsFamilyConfig(const LogitsConfig& config);

// "MODEL CONFIG" -> sha256, from the committed file.
std::map<std::string, std::string> ReadRecordedHashes();

}  // namespace stoch::test
