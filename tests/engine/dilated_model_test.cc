// SPDX-License-Identifier: Apache-2.0
// Models with dilated attention: the same bits however they are run, and those of per_token where nothing is dilated.
#include <gtest/gtest.h>

#include <string>

#include "engine/generate.h"
#include "engine/prefix_cache.h"
#include "tests/engine/logits_cases.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/ring_gpus.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

// Linears of several devices on one GPU must not run side by side.
const int kSharedStream = setenv("STOCH_TEST_SHARED_STREAM", "1", 1);

constexpr const char* kSettings[] = {"attention=dilated,segments=16:64,dilation=1:4",
                                     "attention=dilated,segments=25,dilation=3",
                                     "preset=published,attention=dilated,segments=8:32:128,dilation=1:2:5"};

// Llama, Qwen2 with a sliding window in one layer, Mistral with windows in all.
std::vector<LogitsModel> Models(const TempDir& scratch) {
  std::vector<LogitsModel> models = {TinyLogitsModel(scratch.path() / "tiny")};
  for (const LogitsModel& model : RandomFamilyModels(scratch.path())) {
    if (model.name == "random-qwen2" || model.name == "random-mistral") models.push_back(model);
  }
  return models;
}

LogitsConfig ConfigOf(const char* settings) { return {"dilated", Precision::kSc, settings}; }

// Positions are dealt over all devices of the backend.
std::unique_ptr<Engine> OpenDealt(const std::shared_ptr<Backend>& backend, const LogitsModel& model,
                                  const char* settings) {
  ModelFiles files = OpenModelFiles(model.folder.string());
  EngineOptions options = OptionsOf(ConfigOf(settings));
  const auto stripes = static_cast<int>(backend->devices().size());
  options.placement = SequenceSplit(files.config, backend->devices(), stripes);
  return Engine::Open(backend, std::move(files), options);
}

TEST(DilatedModel, EveryWayOfRunningItGivesTheSameBits) {
  const TempDir scratch;
  const std::shared_ptr<Backend> one = OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr);
  const std::shared_ptr<Backend> two = OpenBackend("cpu:2", {.threads = 1, .cpu_variant = ""}, nullptr);
  ASSERT_EQ(two->devices().size(), 2u);
  for (const LogitsModel& model : Models(scratch)) {
    const std::string dense = HashRun(*OpenCase(one, model.folder, ConfigOf("")), model.prompt, {});
    for (const char* settings : kSettings) {
      SCOPED_TRACE(model.name + ' ' + settings);
      const auto engine = OpenCase(one, model.folder, ConfigOf(settings));
      EXPECT_TRUE(engine->chunk_invariant());
      const std::string expected = HashRun(*engine, model.prompt, {});
      EXPECT_NE(expected, dense);
      EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kChunks, true}), expected) << "in chunks, next to others";
      EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kTokens, false}), expected) << "token by token";

      EngineOptions options = OptionsOf(ConfigOf(settings));
      options.placement = RowSplit(engine->config(), two->devices());
      const auto rows = Engine::Open(two, OpenModelFiles(model.folder.string()), options);
      EXPECT_EQ(HashRun(*rows, model.prompt, {}), expected) << "by rows";
      EXPECT_EQ(HashRun(*rows, model.prompt, {Cut::kChunks, true}), expected) << "by rows in chunks";
      options.placement = {two->devices()[1], {two->devices()[0], two->devices()[1]}, two->devices()[0]};
      const auto layers = Engine::Open(two, OpenModelFiles(model.folder.string()), options);
      EXPECT_EQ(HashRun(*layers, model.prompt, {}), expected) << "by layers";
      const auto dealt = OpenDealt(two, model, settings);
      EXPECT_EQ(HashRun(*dealt, model.prompt, {}), expected) << "by positions";
      EXPECT_EQ(HashRun(*dealt, model.prompt, {Cut::kChunks, true}), expected) << "by positions in chunks";
    }
  }
}

TEST(DilatedModel, AGpuHasTheBitsOfTheCpu) {
  STOCH_OPEN_OR_SKIP(gpu, (BackendUnderTest{"cuda:0", "", 0}));
  const TempDir scratch;
  const std::shared_ptr<Backend> cpu = OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr);
  for (const LogitsModel& model : Models(scratch)) {
    for (const char* settings : kSettings) {
      SCOPED_TRACE(model.name + ' ' + settings);
      const std::string expected = HashRun(*OpenCase(cpu, model.folder, ConfigOf(settings)), model.prompt, {});
      const auto engine = OpenCase(gpu, model.folder, ConfigOf(settings));
      EXPECT_EQ(HashRun(*engine, model.prompt, {}), expected);
      EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kChunks, true}), expected) << "in chunks, next to others";
      EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kTokens, false}), expected) << "token by token, by graphs";
    }
  }
}

TEST(DilatedModel, RingsOfGpusHaveTheBitsOfTheCpu) {
  STOCH_OPEN_OR_SKIP(all, kRingGpus);
  const TempDir scratch;
  const std::shared_ptr<Backend> cpu = OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr);
  for (const char* devices : {"cuda:0,1", "cuda:0,1,2,3", kRingGpus.device}) {
    const std::shared_ptr<Backend> gpus = OpenBackend(devices, {}, nullptr);
    for (const LogitsModel& model : Models(scratch)) {
      for (const char* settings : kSettings) {
        SCOPED_TRACE(model.name + ' ' + settings + ' ' + devices);
        const std::string expected = HashRun(*OpenCase(cpu, model.folder, ConfigOf(settings)), model.prompt, {});
        const auto engine = OpenDealt(gpus, model, settings);
        EXPECT_EQ(HashRun(*engine, model.prompt, {}), expected);
        EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kChunks, true}), expected) << "in chunks, next to others";
        EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kTokens, false}), expected) << "token by token, by queries";
      }
    }
  }
}

TEST(DilatedModel, OneSegmentWithoutDilationIsPerToken) {
  const TempDir scratch;
  const std::shared_ptr<Backend> backend = OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr);
  for (const LogitsModel& model : Models(scratch)) {
    SCOPED_TRACE(model.name);
    const std::string dense = HashRun(*OpenCase(backend, model.folder, ConfigOf("")), model.prompt, {});
    const auto engine = OpenCase(backend, model.folder, ConfigOf("attention=dilated,segments=128,dilation=1"));
    EXPECT_EQ(HashRun(*engine, model.prompt, {}), dense);
    EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kChunks, true}), dense);
  }
}

std::string Generated(Engine& engine, PrefixCache* prefixes, const std::vector<int32_t>& prompt, int64_t* reused) {
  GenerateRequest request;
  request.prompt = prompt;
  request.max_tokens = 6;
  request.ignore_eos = true;
  request.hash_logits = true;
  Generation generation(engine, request, prefixes);
  while (!generation.done()) {
    const StepItem item = generation.Next(engine.shape().max_rows);
    engine.Step({&item, 1});
    generation.Accept(item, 0);
  }
  *reused = generation.prompt_reused();
  return generation.result().logits_sha256;
}

TEST(DilatedModel, PagesOfAPrefixAreReused) {
  const TempDir scratch;
  const LogitsModel model = TinyLogitsModel(scratch.path());
  const auto engine = OpenCase(OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr), model.folder,
                               ConfigOf("attention=dilated,segments=16:128,dilation=1:4"));
  PrefixCache prefixes(*engine);
  int64_t reused = 0;
  const std::string expected = Generated(*engine, nullptr, model.prompt, &reused);
  EXPECT_EQ(Generated(*engine, &prefixes, model.prompt, &reused), expected);
  EXPECT_EQ(reused, 0);
  EXPECT_EQ(Generated(*engine, &prefixes, model.prompt, &reused), expected);
  EXPECT_EQ(reused, kKvPageTokens);
}

}  // namespace
}  // namespace stoch::test
