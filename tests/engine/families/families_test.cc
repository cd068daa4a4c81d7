// SPDX-License-Identifier: Apache-2.0
// The other decoder families: against transformers' own results (tiny-*_golden.safetensors of the reference data),
// against recorded hashes in every cut, company and split, and a row of the architecture table that exists only here.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include "models/decoder/memory_plan.h"
#include "tests/engine/families/family_golden.h"
#include "tests/engine/logits_cases.h"
#include "tests/engine/prompt_logits.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/failing_backend.h"
#include "tests/support/shared_folder.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

std::string Recorded(const LogitsModel& model, const LogitsConfig& config) {
  static const std::map<std::string, std::string> hashes = ReadRecordedHashes();
  const auto found = hashes.find(model.name + ' ' + config.name);
  return found == hashes.end() ? "not recorded" : found->second;
}

std::filesystem::path GoldenOf(const std::string& name) {
  return SharedFolder() / "goldens" / (name + "_golden.safetensors");
}

// The folder with the config that an older transformers writes.
std::filesystem::path WithOlderConfig(const std::filesystem::path& model, const std::filesystem::path& scratch) {
  for (const auto& entry : std::filesystem::directory_iterator(model)) {
    if (entry.path().filename() == "config.json") continue;
    std::filesystem::create_symlink(entry.path(), scratch / entry.path().filename());
  }
  for (const char* version : {"4.51", "4.53"}) {
    const auto config = model / ("config.transformers-" + std::string(version) + ".json");
    if (exists(config)) std::filesystem::create_symlink(config, scratch / "config.json");
  }
  return scratch;
}

class FamilyGoldens : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override { STOCH_REQUIRE_SHARED(); }
};

TEST_P(FamilyGoldens, ExactLogitsAndGreedyTextAreThoseOfTransformers) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const std::string& name : SharedFamilyNames()) {
    ExpectFamilyGolden(backend, SharedFamilyModel(name).folder, GoldenOf(name));
  }
}

// Both forms of config.json mean the same model: the same bits.
TEST_P(FamilyGoldens, ConfigsOfOlderTransformersMeanTheSame) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const std::string& name : SharedFamilyNames()) {
    SCOPED_TRACE(name);
    const TempDir scratch;
    const std::filesystem::path model = SharedFamilyModel(name).folder;
    const std::vector<int32_t> ids = FamilyGolden(GoldenOf(name)).I32(1, "ids");
    const auto engine = Engine::Open(backend, OpenModelFiles(model.string()), ExactFamilyOptions());
    const auto older =
        Engine::Open(backend, OpenModelFiles(WithOlderConfig(model, scratch.path()).string()), ExactFamilyOptions());
    EXPECT_EQ(PromptLogits(*engine, ids), PromptLogits(*older, ids));
  }
}

TEST_P(FamilyGoldens, RoutersChooseTheExpertsOfTransformers) {
  STOCH_OPEN_OR_SKIP(opened, GetParam());
  BackendOptions options;
  options.threads = GetParam().threads;
  const auto backend = std::make_shared<FailingBackend>(OpenBackend(GetParam().device, options, nullptr));
  for (const auto& [name, with_experts] :
       {std::pair<std::string, std::set<int>>{"tiny-qwen3-moe", {0, 2, 3}}, {"tiny-mixtral", {0, 1}}}) {
    SCOPED_TRACE(name);
    const FamilyGolden golden(GoldenOf(name));
    std::set<int> layers;
    backend->after_route = [&](const RouteCall& call) {
      const std::string key = "layers." + std::to_string(call.site.layer) + '.';
      const auto rows = static_cast<size_t>(call.chosen.numel());
      std::vector<int32_t> chosen(rows);
      std::vector<float> weights(rows), logits(static_cast<size_t>(call.logits.numel()));
      backend->CopyToHost(chosen.data(), call.chosen);
      backend->CopyToHost(weights.data(), call.weights);
      backend->CopyToHost(logits.data(), call.logits);
      EXPECT_EQ(chosen, golden.I32(0, key + "experts"));
      const std::vector<float> expected = golden.F32(0, key + "weights");
      ASSERT_EQ(weights.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(weights[i], expected[i], 1e-4f) << i;
      const std::vector<float> router_logits = golden.F32(0, key + "router_logits");
      for (size_t i = 0; i < router_logits.size(); ++i) EXPECT_NEAR(logits[i], router_logits[i], 2e-4f) << i;
      layers.insert(call.site.layer);
    };
    const auto engine =
        Engine::Open(backend, OpenModelFiles(SharedFamilyModel(name).folder.string()), ExactFamilyOptions());
    PromptLogits(*engine, golden.I32(0, "ids"));
    EXPECT_EQ(layers, with_experts);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, FamilyGoldens, testing::ValuesIn(OneOfEachBackend()),
                         [](const auto& param) { return param.param.Name(); });

class FamilyBits : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void ExpectConstants(const std::shared_ptr<Backend>& backend, const LogitsModel& model) {
    for (const LogitsConfig& config : LogitsConfigs()) {
      if (!IsFamilyConfig(config)) continue;
      SCOPED_TRACE(model.name + ' ' + config.name);
      const auto engine = Engine::Open(backend, OpenModelFiles(model.folder.string()), OptionsOf(config));
      const std::string expected = Recorded(model, config);
      EXPECT_EQ(HashRun(*engine, model.prompt, {}), expected);
      const std::string_view name = config.name;
      if (engine->chunk_invariant()) {
        EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kChunks, true}), expected) << "in chunks, next to others";
        if (name == "halved" || name == "fp32") {
          EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kChunks}), expected) << "in chunks";
          EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kTokens}), expected) << "token by token";
        }
      }
      if (engine->batch_invariant()) {
        EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kWhole, true}), expected) << "next to others";
      }
    }
  }
};

TEST_P(FamilyBits, RandomModelsMeetTheConstantsInEveryCutAndCompany) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const TempDir scratch;
  for (const LogitsModel& model : RandomFamilyModels(scratch.path())) {
    ExpectConstants(backend, model);
  }
}

TEST_P(FamilyBits, ReferenceModelsMeetTheConstantsInEveryCutAndCompany) {
  STOCH_REQUIRE_SHARED();
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const std::string& name : SharedFamilyNames()) {
    ExpectConstants(backend, SharedFamilyModel(name));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, FamilyBits,
                         testing::Values(BackendUnderTest{"cpu", "scalar", 1}, BackendUnderTest{"cpu", "", 2},
                                         BackendUnderTest{"cuda:0", "", 0}),
                         [](const auto& param) { return param.param.Name(); });

// By rows and by layers, on several devices.
class FamilySplits : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void ExpectConstants(const std::shared_ptr<Backend>& backend, const LogitsModel& model) {
    const std::span<const Device> devices = backend->devices();
    for (const LogitsConfig& config : LogitsConfigs()) {
      const std::string_view name = config.name;
      if (name != "fp32" && name != "halved" && name != "published" && name != "unipolar_l96") continue;
      for (const bool by_rows : {true, false}) {
        SCOPED_TRACE(model.name + ' ' + config.name + (by_rows ? " by rows" : " by layers"));
        ModelFiles files = OpenModelFiles(model.folder.string());
        EngineOptions options = OptionsOf(config);
        if (by_rows) {
          options.placement = RowSplit(files.config, devices);
        } else {
          DecoderPlacement placement = SingleDevice(files.config, devices.front());
          for (size_t i = 0; i < placement.layers.size(); ++i) placement.layers[i] = devices[i % devices.size()];
          placement.head = devices.back();
          if (files.config.tie_word_embeddings) placement.embedding = placement.head;
          options.placement = placement;
        }
        const auto engine = Engine::Open(backend, std::move(files), options);
        EXPECT_EQ(HashRun(*engine, model.prompt, {}), Recorded(model, config));
      }
    }
  }
};

TEST_P(FamilySplits, RandomModelsMeetTheConstants) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const TempDir scratch;
  for (const LogitsModel& model : RandomFamilyModels(scratch.path())) {
    ExpectConstants(backend, model);
  }
}

TEST_P(FamilySplits, ReferenceModelsMeetTheConstants) {
  STOCH_REQUIRE_SHARED();
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const std::string& name : SharedFamilyNames()) {
    ExpectConstants(backend, SharedFamilyModel(name));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, FamilySplits,
                         testing::Values(BackendUnderTest{"cpu:2", "", 1}, BackendUnderTest{"cpu:4", "", 1},
                                         BackendUnderTest{"cuda:0,1", "", 0}),
                         [](const auto& param) {
                           std::string name = param.param.device;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return c == ':' || c == ','; }, '_');
                           return name;
                         });

// What holds for all random models holds for every family.
TEST(RandomFamilies, HaveEveryRowOfTheTable) {
  const TempDir scratch;
  std::set<std::string_view> missing;
  for (const Architecture& row : Architectures()) missing.insert(row.model_type);
  for (const LogitsModel& model : RandomFamilyModels(scratch.path())) {
    missing.erase(OpenModelFiles(model.folder.string()).config.architecture->model_type);
  }
  EXPECT_EQ(missing, std::set<std::string_view>());
}

// A family that nobody has: other names for everything. Llama's numbers under those names give Llama's logits.
constexpr BlockLinear kInventedLinears[] = {
    {LinearId::kQProj, "attn.wq", Axis::kHeads, Axis::kHidden, BlockGroup::kQkv},
    {LinearId::kKProj, "attn.wk", Axis::kKvHeads, Axis::kHidden, BlockGroup::kQkv},
    {LinearId::kVProj, "attn.wv", Axis::kKvHeads, Axis::kHidden, BlockGroup::kQkv},
    {LinearId::kOProj, "attn.wo", Axis::kHidden, Axis::kHeads, BlockGroup::kO},
    {LinearId::kGateProj, "ffn.w1", Axis::kIntermediate, Axis::kHidden, BlockGroup::kGateUp},
    {LinearId::kUpProj, "ffn.w3", Axis::kIntermediate, Axis::kHidden, BlockGroup::kGateUp},
    {LinearId::kDownProj, "ffn.w2", Axis::kHidden, Axis::kIntermediate, BlockGroup::kDown},
};
constexpr BlockVector kInventedNorms[] = {
    {VectorId::kInputNorm, "attn_norm", Axis::kHidden, BlockGroup::kQkv},
    {VectorId::kPostAttentionNorm, "ffn_norm", Axis::kHidden, BlockGroup::kGateUp},
};
constexpr Architecture kInvented = {.model_type = "invented",
                                    .transformers_class = "InventedForCausalLM",
                                    .title = "Invented",
                                    .linears = kInventedLinears,
                                    .vectors = kInventedNorms};

std::string Renamed(const std::string& name) {
  const Architecture& llama = LlamaArchitecture();
  for (size_t i = 0; i < llama.linears.size(); ++i) {
    const size_t at = name.find(llama.linears[i].tensor);
    if (at != std::string::npos) {
      return std::string(name).replace(at, llama.linears[i].tensor.size(), kInventedLinears[i].tensor);
    }
  }
  for (size_t i = 0; i < llama.vectors.size(); ++i) {
    const size_t at = name.find(llama.vectors[i].tensor);
    if (at != std::string::npos) {
      return std::string(name).replace(at, llama.vectors[i].tensor.size(), kInventedNorms[i].tensor);
    }
  }
  return name;
}

TEST(InventedFamily, IsOneRowOfTheTable) {
  const TempDir scratch;
  TinyModel tiny;
  WriteTinyModel(scratch.path(), tiny, [](std::vector<StoredTensor>& tensors) {
    for (StoredTensor& tensor : tensors) tensor.name = Renamed(tensor.name);
  });
  const TempDir llama;
  const LogitsModel model = TinyLogitsModel(llama.path());
  const auto backend = std::shared_ptr<Backend>(OpenBackend("cpu:2", {.threads = 1, .cpu_variant = ""}, nullptr));
  for (const char* name : {"fp32", "halved", "halved_mixed"}) {
    const auto config = std::find_if(LogitsConfigs().begin(), LogitsConfigs().end(), [name](const LogitsConfig& entry) {
      return entry.name == std::string_view(name);
    });
    for (const bool by_rows : {false, true}) {
      ModelFiles files;
      files.name = "invented";
      files.config = tiny.config;
      files.config.architecture = &kInvented;
      files.weights = OpenCheckpointWeights(scratch.path(), files.config);
      EXPECT_EQ(files.weights->tensors()[1].name, "model.layers.0.attn_norm.weight");
      EngineOptions options = OptionsOf(*config);
      if (by_rows) options.placement = RowSplit(files.config, backend->devices());
      const auto engine = Engine::Open(backend, std::move(files), options);
      EXPECT_EQ(HashRun(*engine, model.prompt, {}), Recorded(model, *config)) << name << by_rows;
    }
  }
}

}  // namespace
}  // namespace stoch::test
