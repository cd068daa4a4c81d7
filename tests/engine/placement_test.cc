// SPDX-License-Identifier: Apache-2.0
#include "engine/placement.h"

#include <gtest/gtest.h>

#include "kernels/registry.h"
#include "kernels/wrappers/forwarding_backend.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch {
namespace {

using test::ExpectInvalid;

// Eight layers of 10 bytes, embedding 8, head 6 and 3 of workspace, workspace 2 on every device.
constexpr int kLayers = 8;

DecoderConfig Config(bool tied = false) {
  DecoderConfig config;
  config.num_hidden_layers = kLayers;
  config.tie_word_embeddings = tied;
  return config;
}

MemoryPlan Plan() {
  MemoryPlan plan;
  plan.layers.resize(kLayers);
  for (MemoryBytes& layer : plan.layers) layer.weights = 10;
  plan.rest.embedding = 8;
  plan.rest.weights = 6;
  plan.rest.workspace = 5;
  plan.head_workspace = 3;
  plan.total.weights = 10 * kLayers + 6;
  plan.total.embedding = 8;
  plan.total.workspace = 5;
  return plan;
}

std::vector<DeviceRoom> Rooms(const std::vector<int64_t>& bytes) {
  std::vector<DeviceRoom> rooms;
  for (const int64_t room : bytes) rooms.push_back({{DeviceKind::kCuda, static_cast<int>(rooms.size())}, room});
  return rooms;
}

// "0|0000 1111|1": devices of the embedding, the layers, the head.
std::string Shown(const DecoderPlacement& placement) {
  std::string text = std::to_string(placement.embedding.index) + '|';
  for (const Device& device : placement.layers) text += std::to_string(device.index);
  return text + '|' + std::to_string(placement.head.index);
}

// A GPU has 2112 rows of a pass, whatever the split; a CPU 512 of its prompts at a time.
TEST(Placement, PassesFollowTheDevices) {
  DecoderConfig config = Config();
  config.max_position_embeddings = 8192;
  const Device cpu{DeviceKind::kCpu, 0};
  const std::vector<Device> gpus = {{DeviceKind::kCuda, 0}, {DeviceKind::kCuda, 1}};
  const auto rows = [&](const DecoderPlacement& placement, int64_t asked = 0) {
    EngineOptions options;
    options.placement = placement;
    options.max_pass_rows = asked;
    return FillDefaults(config, options).max_pass_rows;
  };
  EXPECT_EQ(rows(SingleDevice(config, cpu)), 512);
  EXPECT_EQ(rows(SingleDevice(config, gpus[0])), 2112);
  EXPECT_EQ(rows(RowSplit(config, gpus)), 2112);
  EXPECT_EQ(rows(SequenceSplit(config, gpus, 2)), 4224);
  EXPECT_EQ(rows(SequenceSplit(config, gpus, 2), 100), 100);
  EXPECT_EQ(FillDefaults(config, {}).max_pass_rows, 512);
}

TEST(Placement, LongRopeNamesWhyAContextIsTooLong) {
  DecoderConfig config = Config();
  config.max_position_embeddings = 4096;
  config.rope_scaling = LongRopeScaling{{1, 2}, 4096, 1.2};
  EngineOptions options;
  options.context = 4096;
  EXPECT_NO_THROW(FillDefaults(config, options));
  options.context = 4097;
  test::ExpectInvalid([&] { FillDefaults(config, options); }, {"context = 4097", "1..4096", "longrope"});
}

TEST(Placement, Policies) {
  EXPECT_EQ(Shown(PlacePolicy(Config(), Plan(), Rooms({1000}), "auto")), "0|00000000|0");
  EXPECT_EQ(Shown(PlacePolicy(Config(), Plan(), Rooms({1000, 1000}), "auto")), "0|00001111|1");
  EXPECT_EQ(Shown(PlacePolicy(Config(), Plan(), Rooms({1000, 1000, 1000, 1000}), "balanced")), "0|00112233|3");
  EXPECT_EQ(Shown(PlacePolicy(Config(), Plan(), Rooms({1000, 1000, 1000}), "balanced_low_0")), "1|11112222|2");
  EXPECT_EQ(Shown(PlacePolicy(Config(), Plan(), Rooms({1000, 1000}), "sequential")), "0|00000000|0");
  EXPECT_EQ(Shown(PlacePolicy(Config(), Plan(), Rooms({35, 1000}), "sequential")), "0|00111111|1");
  EXPECT_EQ(Shown(PlacePolicy(Config(), Plan(), Rooms({35, 1000}), "balanced")), "0|00111111|1");
  EXPECT_EQ(Shown(PlacePolicy(Config(true), Plan(), Rooms({50, 1000}), "sequential")), "0|00011111|0");
}

// An embedding in memory of the host: its device has nothing of it, but a workspace.
TEST(Placement, AnEmbeddingOnTheHostTakesNoRoom) {
  MemoryPlan plan = Plan();
  plan.rest.host = plan.total.host = plan.rest.embedding;
  plan.rest.embedding = plan.total.embedding = 0;
  EXPECT_EQ(Shown(PlacePolicy(Config(), plan, Rooms({91}), "auto")), "0|00000000|0");
  ExpectInvalid([&] { PlacePolicy(Config(), Plan(), Rooms({91}), "auto"); }, {"cuda:0"});
  DecoderPlacement placement = PlacePolicy(Config(), plan, Rooms({1000, 1000}), "sequential");
  placement.embedding = {DeviceKind::kCuda, 1};
  const std::vector<Device> devices = {{DeviceKind::kCuda, 0}, {DeviceKind::kCuda, 1}};
  const std::vector<MemoryBytes> bytes = BytesOfDevices(placement, plan, devices);
  EXPECT_EQ(bytes[0].total(), plan.total.total());
  EXPECT_EQ(bytes[1].host, 8);
  EXPECT_EQ(bytes[1].total(), 2);
}

// The driver's context, code and the like come once for every device that does anything.
TEST(Placement, EveryDeviceInUseTakesItsRuntime) {
  MemoryPlan plan = Plan();
  plan.rest.runtime = plan.total.runtime = 7;
  EXPECT_EQ(Shown(PlacePolicy(Config(), plan, Rooms({99 + 7}), "auto")), "0|00000000|0");
  ExpectInvalid([&] { PlacePolicy(Config(), plan, Rooms({99 + 6}), "auto"); }, {"cuda:0", "1 B more"});
  const DecoderPlacement placement = PlacePolicy(Config(), plan, Rooms({1000, 1000}), "auto");
  EXPECT_EQ(Shown(placement), "0|00001111|1");
  const std::vector<Device> devices = {{DeviceKind::kCuda, 0}, {DeviceKind::kCuda, 1}, {DeviceKind::kCuda, 2}};
  const std::vector<MemoryBytes> bytes = BytesOfDevices(placement, plan, devices);
  EXPECT_EQ(bytes[0].runtime, 7);
  EXPECT_EQ(bytes[1].runtime, 7);
  EXPECT_EQ(bytes[2].total(), 0);
}

TEST(Placement, AModuleLargerThanAShareDoesNotSendAllToTheLastDevice) {
  MemoryPlan plan = Plan();
  plan.rest.weights += 60;
  plan.total.weights += 60;
  EXPECT_EQ(Shown(PlacePolicy(Config(true), plan, Rooms({1000, 1000, 1000, 1000}), "auto")), "0|11112222|0");
  EXPECT_EQ(Shown(PlacePolicy(Config(true), plan, Rooms({1000, 1000, 1000}), "balanced_low_0")), "1|22222222|1");
  EXPECT_EQ(Shown(PlacePolicy(Config(true), plan, Rooms({50, 1000}), "sequential")), "1|11111111|1");
}

TEST(Placement, WhatDoesNotFitSaysByHowMuch) {
  ExpectInvalid([] { PlacePolicy(Config(), Plan(), Rooms({90}), "auto"); }, {"cuda:0", "99 B", "9 B more", "90 B"});
  ExpectInvalid([] { PlacePolicy(Config(), Plan(), Rooms({50, 40}), "sequential"); }, {"cuda:1", "more than the 40 B"});
  ExpectInvalid([] { PlacePolicy(Config(), Plan(), Rooms({500}), "best"); }, {"best", "balanced_low_0"});
}

TEST(Placement, Files) {
  const auto place = [](const char* json, bool tied = false) {
    return PlaceByFile(Config(tied), Plan(), Rooms({1000, 1000}), json, "map.json");
  };
  EXPECT_EQ(Shown(place(R"({"": 1})")), "1|11111111|1");
  EXPECT_EQ(Shown(place(R"({"model": 0, "model.layers.3": "cuda:1", "model.norm": 1, "lm_head": 1})")), "0|00010000|1");
  EXPECT_EQ(Shown(place(R"({"model.embed_tokens": 0, "model.layers": 1, "model.norm": 1, "lm_head": 1})")),
            "0|11111111|1");
  ExpectInvalid([&] { place("[]"); }, {"map.json", "object"});
  ExpectInvalid([&] { place(R"({"model": 0})"); }, {"no device", "lm_head"});
  ExpectInvalid([&] { place(R"({"": 0, "model.layers.8": 1})"); }, {"model.layers.8"});
  ExpectInvalid([&] { place(R"({"": 2})"); }, {"devices in use", "2"});
  ExpectInvalid([&] { place(R"({"": 0, "lm_head": 1})"); }, {"model.norm"});
  ExpectInvalid([&] { place(R"({"": 1, "model.embed_tokens": 0})", true); }, {"tied"});
}

// What a program that links the library asks for: a model over two devices, by layers, by a map, or by rows.
TEST(Placement, OfAModelOnABackend) {
  const test::TempDir folder;
  test::WriteTinyModel(folder.path(), {});
  const ModelFiles files = OpenModelFiles(folder.path().string());
  const std::shared_ptr<Backend> backend = OpenBackend("cpu:2", {.threads = 1, .cpu_variant = ""}, nullptr);
  EngineOptions engine;

  EXPECT_EQ(Shown(Place({}, files, *backend, &engine)), "0|01|1");
  EXPECT_EQ(Shown(Place({.policy = "sequential"}, files, *backend, &engine)), "0|00|0");
  EXPECT_EQ(Shown(Place({.map_json = R"({"": 1, "model.layers.0": 0})"}, files, *backend, &engine)), "1|01|1");
  EXPECT_EQ(Place({.by_rows = true}, files, *backend, &engine).rows.size(), 2u);
  EXPECT_EQ(PlanShards(files, engine, *backend).size(), 2u);

  ExpectInvalid([&] { Place({.max_memory = {{7, 1}}}, files, *backend, &engine); }, {"max_memory", "device 7"});
  ExpectInvalid([&] { Place({.max_memory = {{0, 9}, {1, 9}}}, files, *backend, &engine); }, {"more than the 9 B"});
  ExpectInvalid([&] { Place({.policy = "fair"}, files, *backend, &engine); }, {"device_map", "fair"});
}

// Settings that cannot run have no plan either; caps of scores are dealt over devices as other models are.
TEST(Placement, OfAModelThatCannotRunSo) {
  const test::TempDir folder;
  test::TinyModel gemma;
  gemma.config.architecture = FindArchitecture("gemma2");
  gemma.config.score_cap = 3;
  test::WriteTinyModel(folder.path(), gemma);
  const ModelFiles files = OpenModelFiles(folder.path().string());
  const std::shared_ptr<Backend> backend = OpenBackend("cpu:2", {.threads = 1, .cpu_variant = ""}, nullptr);
  EngineOptions engine;
  EXPECT_EQ(Place({.by_rows = true}, files, *backend, &engine).rows.size(), 2u);
  EXPECT_EQ(Place({.stripes = 2}, files, *backend, &engine).stripes.size(), 2u);
  engine.sc.attention = AttentionMode::kPerRow;
  ExpectInvalid([&] { Place({.stripes = 2}, files, *backend, &engine); }, {"--split sequence", "attention=per_row"});
  engine.sc.attention = AttentionMode::kPerToken;
  engine.sc.tables.silu.name = "ours.csv";
  ExpectInvalid([&] { Place({}, files, *backend, &engine); }, {"silu = ours.csv", "has GELU in its place"});
}

// A CPU that says it is a GPU of so many bytes, to plan for.
class SmallGpu final : public ForwardingBackend {
 public:
  explicit SmallGpu(int64_t bytes)
      : ForwardingBackend(OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr)), bytes_(bytes) {}
  std::span<const Device> devices() const override { return {&device_, 1}; }
  DeviceInfo info(Device /*device*/) const override {
    DeviceInfo info;
    info.total_bytes = info.free_bytes = bytes_ + (int64_t{1} << 30);  // a margin stays free
    return info;
  }

 private:
  Device device_{DeviceKind::kCuda, 0};
  int64_t bytes_;
};

TEST(Placement, PassesAreSmallerWhereMemoryIsShort) {
  const test::TempDir folder;
  test::TinyModel model;
  model.config.max_position_embeddings = 8192;
  test::WriteTinyModel(folder.path(), model);
  const ModelFiles files = OpenModelFiles(folder.path().string());
  const auto needed = [&](int64_t rows, int64_t context) {
    EngineOptions engine;
    engine.max_pass_rows = rows;
    engine.context = context;
    return PlanMemory(files, engine.precision, engine.sc, ShapeOf(files.config, engine), SmallGpu(0)).total.total();
  };
  const auto placed = [&](int64_t bytes, int64_t context) {
    EngineOptions engine;
    engine.context = context;
    PlacementOptions options;
    options.max_memory = {{0, bytes}};
    Place(options, files, SmallGpu(bytes), &engine);
    return std::pair(engine.max_pass_rows, engine.context);
  };
  EXPECT_EQ(placed(needed(2112, 8192), 8192), std::pair(2112L, 8192L));
  EXPECT_EQ(placed(needed(2112, 8192) - 1, 8192), std::pair(1056L, 8192L));
  EXPECT_EQ(placed(needed(512, 8192), 8192), std::pair(512L, 8192L));
  ExpectInvalid([&] { placed(needed(512, 8192) - 1, 8192); }, {"1 B more"});
  // Nobody asked for a context: the model's own, with fewer rows.
  EXPECT_EQ(placed(needed(1056, 8192), 0), std::pair(1056L, 8192L));
  EXPECT_EQ(placed(needed(512, 8192) - 1, 0).second, 4096);
}

// A server's cache is as large as the memory that is left for it, but for one context at least.
TEST(Placement, TheCacheIsSizedFromWhatIsFree) {
  const test::TempDir folder;
  test::WriteTinyModel(folder.path(), {});
  const ModelFiles files = OpenModelFiles(folder.path().string());
  const std::shared_ptr<Backend> backend = OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr);
  const int64_t free_bytes = backend->info(backend->devices().front()).free_bytes;
  EngineOptions asked;
  asked.context = 128;
  asked.max_sequences = 512;
  const auto plan = [&](int64_t kv_tokens) {
    EngineOptions sized = asked;
    sized.kv_tokens = kv_tokens;
    return PlanMemory(files, sized.precision, sized.sc, ShapeOf(files.config, sized), *backend).total;
  };
  const auto fitted = [&](const PlacementOptions& options) {
    EngineOptions engine = asked;
    Place(options, files, *backend, &engine);
    return engine.kv_tokens;
  };
  constexpr int64_t kAll = 512 * 128;
  PlacementOptions options;
  options.fit_kv = KvFit{.gpu_share = 1, .host_share = 1};
  EXPECT_EQ(fitted(options), kAll);  // a share of all memory: what all sequences can hold

  // Half of it fits, to the page.
  const MemoryBytes half = plan(kAll / 2);
  options.max_memory = {{0, half.total()}};
  EXPECT_EQ(fitted(options), kAll / 2);
  options.max_memory = {{0, half.total() - 1}};
  EXPECT_EQ(fitted(options), kAll / 2 - kKvPageTokens);
  options.by_rows = true;
  EXPECT_EQ(fitted(options), kAll / 2 - kKvPageTokens);
  options.by_rows = false;

  // The same by a share of what is free, which other processes change meanwhile.
  options.max_memory.clear();
  options.fit_kv->host_share = static_cast<double>(half.kv_cache + half.workspace) / static_cast<double>(free_bytes);
  EXPECT_GT(fitted(options), kAll / 4);
  EXPECT_LT(fitted(options), kAll);
  options.fit_kv->host_share = 0;
  EXPECT_EQ(fitted(options), 128);
  // What has no room for one context is an error, as ever.
  options.max_memory = {{0, plan(128).total() - 1}};
  ExpectInvalid([&] { fitted(options); }, {"cpu", "more than the"});
}

}  // namespace
}  // namespace stoch
