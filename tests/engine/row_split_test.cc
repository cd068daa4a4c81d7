// SPDX-License-Identifier: Apache-2.0
// A model divided over several devices gives the bits of one: by rows, by layers, on logical CPU devices and on GPUs.

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "models/decoder/micro_batch.h"
#include "models/decoder/shard.h"
#include "tests/engine/logits_cases.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/shared_folder.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

TEST(EvenPart, CoversEverythingOnceInWholeGranules) {
  for (const int64_t total : {0, 1, 15, 16, 96, 172, 128256}) {
    for (const int64_t count : {1, 2, 3, 4, 7, 16}) {
      int64_t at = 0;
      for (int64_t i = 0; i < count; ++i) {
        const IndexRange part = EvenPart(total, 16, i, count);
        EXPECT_EQ(part.begin, at);
        EXPECT_GE(part.end, part.begin);
        EXPECT_TRUE(part.end % 16 == 0 || i + 1 == count);
        EXPECT_LE(part.size(), (total + 15) / 16 / count * 16 + 16);
        at = part.end;
      }
      EXPECT_EQ(at, total);
    }
  }
}

TEST(DivideRows, QueriesStayWithTheirKvHead) {
  const DecoderConfig config = NamedDecoderConfig("llama-3.1-70b");
  std::vector<Device> devices;
  for (int i = 0; i < 3; ++i) devices.push_back({DeviceKind::kCpu, i});
  const std::vector<DecoderShard> shards = DivideRows(config, devices);
  ASSERT_EQ(shards.size(), 3u);
  int64_t heads = 0;
  for (const DecoderShard& shard : shards) {
    EXPECT_EQ(shard.heads.begin, shard.kv_heads.begin * 8);
    EXPECT_EQ(shard.heads.end, shard.kv_heads.end * 8);
    EXPECT_FALSE(shard.heads.empty());
    heads += shard.heads.size();
  }
  EXPECT_EQ(heads, 64);
}

// Backends with several devices.
class RowSplitBits : public testing::TestWithParam<BackendUnderTest> {
 protected:
  static std::string Recorded(const LogitsModel& model, const LogitsConfig& config) {
    static const std::map<std::string, std::string> hashes = ReadRecordedHashes();
    const auto found = hashes.find(model.name + ' ' + config.name);
    return found == hashes.end() ? "not recorded" : found->second;
  }
  static std::unique_ptr<Engine> OpenRows(const std::shared_ptr<Backend>& backend, const LogitsModel& model,
                                          const LogitsConfig& config) {
    ModelFiles files = OpenModelFiles(model.folder.string());
    EngineOptions options = OptionsOf(config);
    options.placement = RowSplit(files.config, backend->devices());
    return Engine::Open(backend, std::move(files), options);
  }
};

TEST_P(RowSplitBits, TinyModelMeetsTheConstantsInEveryConfiguration) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const TempDir scratch;
  const LogitsModel model = TinyLogitsModel(scratch.path());
  for (const LogitsConfig& config : LogitsConfigs()) {
    SCOPED_TRACE(config.name);
    const auto engine = OpenRows(backend, model, config);
    const std::string expected = Recorded(model, config);
    EXPECT_EQ(HashRun(*engine, model.prompt, {}), expected);
    if (engine->chunk_invariant()) {
      EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kChunks, true}), expected) << "in chunks, next to others";
    }
  }
}

TEST_P(RowSplitBits, TrainedModelsMeetTheConstants) {
  STOCH_REQUIRE_SHARED();
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const std::set<std::string> cross_section = {"fp32", "halved", "published", "per_tensor", "groups", "unipolar_l96"};
  const bool all = std::string_view(GetParam().device).starts_with("cuda");
  for (const std::string& name : SharedLogitsModels()) {
    const LogitsModel model = SharedLogitsModel(name);
    for (const LogitsConfig& config : LogitsConfigs()) {
      if (!all && !cross_section.contains(config.name)) continue;
      SCOPED_TRACE(name + ' ' + config.name);
      EXPECT_EQ(HashRun(*OpenRows(backend, model, config), model.prompt, {}), Recorded(model, config));
    }
  }
}

// Layers here and there, with more stages than devices, passes whole and in pieces that follow each other.
TEST_P(RowSplitBits, LayerSplitMeetsTheConstants) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const TempDir scratch;
  const LogitsModel model = TinyLogitsModel(scratch.path());
  const std::span<const Device> devices = backend->devices();
  for (const LogitsConfig& config : LogitsConfigs()) {
    SCOPED_TRACE(config.name);
    EngineOptions options = OptionsOf(config);
    options.placement = {devices[1], {devices[0], devices[1]}, devices[0]};
    for (const int64_t min_piece_rows : {128, 20, 1}) {
      options.min_piece_rows = min_piece_rows;
      const auto engine = Engine::Open(backend, OpenModelFiles(model.folder.string()), options);
      const bool batched = engine->batch_invariant() && min_piece_rows == 20;
      EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kWhole, batched}), Recorded(model, config)) << min_piece_rows;
    }
  }
}

std::string Shown(const std::vector<MicroBatch>& pieces) {
  std::string text;
  for (const MicroBatch& piece : pieces) {
    text += std::to_string(piece.first_row) + "," + std::to_string(piece.first_output) + ":";
    for (const PassLayout::Sequence& sequence : piece.layout.sequences) {
      text += " " + std::to_string(sequence.first_row) + "+" + std::to_string(sequence.num_rows) + "@" +
              std::to_string(sequence.start_position);
    }
    text += " out";
    for (const int32_t row : piece.layout.output_rows) text += " " + std::to_string(row);
    text += "; ";
  }
  return text;
}

TEST(CutPass, CutsWhereTheRulesAllow) {
  PassLayout pass;
  for (int32_t i = 0; i < 12; ++i) pass.ids.push_back(i);
  pass.sequences = {{0, 3, 0, {}}, {3, 8, 5, {}}, {11, 1, 9, {}}};
  pass.output_rows = {2, 9, 10, 11};
  EXPECT_EQ(Shown(CutPass(pass, 1, {true, true})), "0,0: 0+3@0 3+8@5 11+1@9 out 2 9 10 11; ");
  EXPECT_EQ(Shown(CutPass(pass, 3, {false, true})), "0,0: 0+3@0 3+8@5 11+1@9 out 2 9 10 11; ");
  EXPECT_EQ(Shown(CutPass(pass, 3, {true, false})), "0,0: 0+3@0 out 2; 3,1: 0+8@5 out 6 7; 11,3: 0+1@9 out 0; ");
  EXPECT_EQ(Shown(CutPass(pass, 3, {true, true})),
            "0,0: 0+3@0 3+1@5 out 2; 4,1: 0+4@6 out; 8,1: 0+3@10 3+1@9 out 1 2 3; ");
  const std::vector<MicroBatch> pieces = CutPass(pass, 3, {true, true});
  EXPECT_EQ(pieces[1].layout.ids, (std::vector<int32_t>{4, 5, 6, 7}));
  EXPECT_EQ(PiecesFor(512, 1, 128), 1);
  EXPECT_EQ(PiecesFor(512, 2, 128), 4);
  EXPECT_EQ(PiecesFor(8, 2, 128), 1);
  EXPECT_EQ(PiecesFor(8192, 4, 128), 8);
}

TEST_P(RowSplitBits, TiedEmbeddingsAndNansAreMetOnEveryDevice) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const TempDir scratch;
  TinyModel tiny;
  tiny.config.tie_word_embeddings = true;
  WriteTinyModel(scratch.path(), tiny);
  const LogitsModel model{"tied", scratch.path(), {3, 1, 4, 1, 5, 9, 2, 6}};
  const LogitsConfig config{"halved", Precision::kSc, ""};
  EngineOptions options = OptionsOf(config);
  const auto alone = Engine::Open(OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr),
                                  OpenModelFiles(scratch.path().string()), options);
  EXPECT_EQ(HashRun(*OpenRows(backend, model, config), model.prompt, {}), HashRun(*alone, model.prompt, {}));
}

INSTANTIATE_TEST_SUITE_P(Backends, RowSplitBits,
                         testing::Values(BackendUnderTest{"cpu:2", "", 1}, BackendUnderTest{"cpu:3", "", 1},
                                         BackendUnderTest{"cpu:4", "", 1}, BackendUnderTest{"cuda:0,1", "", 0},
                                         BackendUnderTest{"cuda:0,1,2,3", "", 0}),
                         [](const auto& param) { return param.param.Name(); });

}  // namespace
}  // namespace stoch::test
