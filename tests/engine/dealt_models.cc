// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/dealt_models.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/logits_hash.h"
#include "engine/placement.h"
#include "kernels/math/random.h"
#include "kernels/registry.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {

std::vector<std::filesystem::path> WriteDealtModels(const std::filesystem::path& scratch) {
  std::vector<std::filesystem::path> folders;
  const auto add = [&](const char* name, const DecoderConfig& config) {
    TinyModel model;
    model.config = config;
    model.config.max_position_embeddings = kDealtContext;
    WriteTinyModel(scratch / name, model);
    folders.push_back(scratch / name);
  };
  add("groups", TinyLlamaConfig());

  DecoderConfig config = TinyLlamaConfig();
  config.architecture = FindArchitecture("qwen2");
  config.biases[static_cast<size_t>(BlockGroup::kQkv)] = true;
  config.num_key_value_heads = config.num_attention_heads;
  config.windows = {0, 100};
  add("window", config);

  config = TinyLlamaConfig();
  config.architecture = FindArchitecture("qwen3");
  config.num_attention_heads = 8;
  config.num_key_value_heads = 1;
  config.head_dim = 24;
  add("one-kv-head", config);
  return folders;
}

std::unique_ptr<Engine> OpenDealt(const std::shared_ptr<Backend>& backend, const std::filesystem::path& folder,
                                  std::string_view split, const std::string& settings, int64_t max_pass_rows) {
  ModelFiles files = OpenModelFiles(folder.string());
  EngineOptions options;
  options.precision = settings == "fp32" ? Precision::kFp32 : Precision::kSc;
  if (options.precision == Precision::kSc) options.sc = ParseScModelConfig(std::vector<std::string>{settings});
  options.context = kDealtContext;
  options.kv_tokens = 16384;
  options.max_sequences = 3;
  options.max_pass_rows = max_pass_rows;
  PlacementOptions placement;
  if (split == "layer") {
    options.placement = SingleDevice(files.config, backend->devices().front());
  } else {
    ParseSplit("--split", split, backend->devices().size(), &placement);
    options.placement = Place(placement, files, *backend, &options);
  }
  return Engine::Open(backend, std::move(files), options);
}

std::vector<int32_t> DealtPrompt(uint64_t stream, int64_t length, int64_t vocab) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i) {
    ids.push_back(
        static_cast<int32_t>(RandomBits(21, stream, static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocab)));
  }
  return ids;
}

std::string HashOfLength(Engine& engine, int64_t length, int generated) {
  const auto vocab = static_cast<size_t>(engine.config().vocab_size);
  const auto sequence = engine.NewSequence(length + generated);
  sequence->Append(DealtPrompt(3, length, engine.config().vocab_size));
  LogitsHash hash;
  std::vector<float> logits(vocab);
  for (int i = 0; i <= generated; ++i) {
    while (sequence->pending() > 0) {
      const StepItem item{sequence.get(), engine.NextTokens(*sequence, engine.shape().max_rows), StepOutput::kLast};
      engine.Step({&item, 1});
    }
    engine.ReadLogits(0, 1, logits.data());
    hash.Add(logits);
    const auto next = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (i < generated) sequence->Append({&next, 1});
  }
  return hash.Hex();
}

std::shared_ptr<Backend> Cpu(const std::string& device) {
  return OpenBackend(device, {.threads = 1, .cpu_variant = ""}, nullptr);
}

Splits DealtSplits() { return {{"cpu:2", "sequence"}, {"cpu:4", "sequence"}, {"cpu:8", "sequence"}}; }

void ExpectLengths(const std::vector<int64_t>& lengths, const Splits& splits, const std::vector<std::string>& configs) {
  const TempDir scratch;
  // Opened once for all models.
  std::map<std::string, std::shared_ptr<Backend>> backends;
  for (const auto& [device, split] : splits) {
    if (!backends.contains(device)) backends[device] = Cpu(device);
  }
  for (const std::filesystem::path& folder : WriteDealtModels(scratch.path())) {
    for (const std::string& config : configs) {
      const auto alone = OpenDealt(Cpu("cpu"), folder, "layer", config);
      std::map<int64_t, std::string> expected;
      for (const int64_t length : lengths) expected[length] = HashOfLength(*alone, length, 3);
      for (const auto& [device, split] : splits) {
        const auto dealt = OpenDealt(backends.at(device), folder, split, config);
        for (const int64_t length : lengths) {
          EXPECT_EQ(HashOfLength(*dealt, length, 3), expected[length])
              << folder.filename() << ' ' << config << ' ' << device << ' ' << split << ", " << length << " tokens";
        }
      }
    }
  }
}

}  // namespace stoch::test
