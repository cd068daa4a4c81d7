// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/engine/logits_cases.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

class EngineTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override { WriteTinyModel(scratch_.path(), {}); }

  std::unique_ptr<Engine> Open(std::shared_ptr<Backend> backend, const EngineOptions& options) const {
    return Engine::Open(std::move(backend), OpenModelFiles(scratch_.path().string()), options);
  }

  TempDir scratch_;
};

EngineOptions WithSettings(const std::string& settings) {
  EngineOptions options;
  options.sc = ParseScModelConfig(std::vector<std::string>{settings});
  return options;
}

TEST_P(EngineTest, FillsInDefaultsAndSaysWhatItRuns) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  int64_t calls = 0, done = 0, total = 0;
  EngineOptions options;
  options.on_progress = [&](const LoadProgress& progress) {
    ++calls;
    EXPECT_GT(progress.done_bytes, done);
    done = progress.done_bytes;
    total = progress.total_bytes;
  };
  const auto engine = Open(backend, options);
  EXPECT_EQ(calls, 2 * 9 + 3);  // a call per tensor
  EXPECT_EQ(done, total);
  EXPECT_EQ(engine->options().context, 128);
  EXPECT_EQ(engine->shape().kv_tokens, 128);
  EXPECT_EQ(engine->shape().max_rows, 128);
  EXPECT_EQ(engine->sc_description(), "preset=halved");
  EXPECT_TRUE(engine->notices().empty());
  EXPECT_GT(engine->load_ms(), 0);
}

TEST_P(EngineTest, WholeWindowConfigurationsSayTheyAreOne) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  EngineOptions options = WithSettings("attention=per_head");
  options.max_pass_rows = 16;
  const auto engine = Open(backend, options);
  ASSERT_EQ(engine->notices().size(), 1u);
  EXPECT_NE(engine->notices()[0].find("attention=per_head"), std::string::npos);
  EXPECT_EQ(engine->shape().max_rows, 128);
  const auto sequence = engine->NewSequence(100);
  sequence->Append(std::vector<int32_t>(90, 5));
  EXPECT_EQ(engine->NextTokens(*sequence, 64), 0);
  EXPECT_EQ(engine->NextTokens(*sequence, 90), 90);
}

TEST_P(EngineTest, RefusesOptionsOutOfRange) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  EngineOptions options;
  options.context = 129;
  ExpectInvalid([&] { Open(backend, options); }, {"context", "129", "1..128"});
  options.context = -1;
  ExpectInvalid([&] { Open(backend, options); }, {"context", "-1"});
  options = {};
  options.max_sequences = 0;
  ExpectInvalid([&] { Open(backend, options); }, {"max_sequences", "0"});
  options = {};
  options.sc.at(ScOperatorId::kUpProj).stoc_len = 500;
  ExpectInvalid([&] { Open(backend, options); }, {"up_proj", "stoc_len", "500"});
  ExpectInvalid([] { ParsePrecision("int8"); }, {"int8", "sc, fp32, fp16"});
}

TEST_P(EngineTest, ReservesPagesUntilASequenceDies) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  EngineOptions options;
  options.max_sequences = 2;
  options.kv_tokens = 192;  // three pages
  const auto engine = Open(backend, options);
  EXPECT_EQ(engine->free_tokens(), 192);
  auto first = engine->NewSequence(65);
  EXPECT_EQ(engine->free_tokens(), 64);
  EXPECT_EQ(engine->NewSequence(65), nullptr);
  const auto second = engine->NewSequence(64);
  ASSERT_NE(second, nullptr);
  first.reset();
  EXPECT_EQ(engine->free_tokens(), 128);
  EXPECT_NE(engine->NewSequence(65), nullptr);
  ExpectInvalid([&] { engine->NewSequence(129); }, {"129", "1..128"});
  ExpectInvalid([&] { engine->NewSequence(0); }, {"0 positions"});
  ExpectInvalid([&] { second->Append(std::vector<int32_t>(65, 1)); }, {"65", "64"});
  options.kv_tokens = 64;
  const auto small = Open(backend, options);
  ExpectInvalid([&] { small->NewSequence(100); }, {"100", "64"});
}

TEST_P(EngineTest, RefusesStepsThatCannotRun) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  EngineOptions options = WithSettings("chunk_d=0,granularity=per_tensor");
  options.max_sequences = 2;
  const auto coupled = Open(backend, options);
  options.sc = HalvedScModelConfig();
  options.max_pass_rows = 16;
  const auto engine = Open(backend, options);
  EXPECT_EQ(engine->shape().max_rows, 16);

  const auto a = engine->NewSequence(64);
  const auto b = engine->NewSequence(64);
  a->Append(std::vector<int32_t>(20, 5));
  b->Append(std::vector<int32_t>(20, 6));
  const auto step = [](Engine& target, std::vector<StepItem> items) { target.Step(items); };
  ExpectInvalid([&] { step(*engine, {}); }, {"without sequences"});
  ExpectInvalid([&] { step(*engine, {{a.get(), 21}}); }, {"21", "1..20"});
  ExpectInvalid([&] { step(*engine, {{a.get(), 0}}); }, {"1..20"});
  ExpectInvalid([&] { step(*engine, {{a.get(), 17}}); }, {"17 rows", "16"});
  ExpectInvalid([&] { step(*engine, {{a.get(), 9}, {b.get(), 8}}); }, {"17 rows", "16"});
  ExpectInvalid([&] { step(*engine, {{a.get(), 4}, {a.get(), 4}}); }, {"twice"});
  ExpectInvalid([&] { step(*engine, {{a.get(), 1}, {b.get(), 1}, {b.get(), 1}}); }, {"3 sequences", "2"});
  EXPECT_EQ(a->computed(), 0);

  const auto c = coupled->NewSequence(32);
  const auto d = coupled->NewSequence(32);
  c->Append(std::vector<int32_t>(4, 5));
  d->Append(std::vector<int32_t>(4, 5));
  ExpectInvalid([&] { step(*coupled, {{c.get(), 4}, {d.get(), 4}}); }, {"2 sequences", "one at a time"});
}

TEST_P(EngineTest, TruncatedSequencesContinueFromWhereTheyWereCut) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto engine = Open(backend, {});
  const auto logits_after = [&](Sequence& sequence) {
    const StepItem item{&sequence, sequence.pending(), StepOutput::kLast};
    engine->Step({&item, 1});
    std::vector<float> logits(96);
    engine->ReadLogits(0, 1, logits.data());
    return logits;
  };
  const std::vector<int32_t> prompt = {3, 14, 15, 92, 65, 35};
  const std::vector<int32_t> wrong_turn = {8, 9, 79};
  const std::vector<int32_t> rest = {32, 38};
  const auto straight = engine->NewSequence(32);
  straight->Append(prompt);
  straight->Append(rest);
  const std::vector<float> expected = logits_after(*straight);
  const auto detour = engine->NewSequence(32);
  detour->Append(prompt);
  detour->Append(wrong_turn);
  EXPECT_NE(logits_after(*detour), expected);
  detour->Truncate(static_cast<int64_t>(prompt.size()));
  EXPECT_EQ(detour->pending(), 0);
  detour->Append(rest);
  EXPECT_EQ(logits_after(*detour), expected);
}

// Who asks for the likeliest token alone gets it, and afterwards the logits that he would have got.
TEST_P(EngineTest, TheLikeliestTokenAloneIsTheFirstOfTheLogits) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const TempDir scratch;
    TinyModel tiny;
    tiny.dtype = dtype;
    WriteTinyModel(scratch.path(), tiny);
    const auto engine = Engine::Open(backend, OpenModelFiles(scratch.path().string()), {});
    const auto alone = engine->NewSequence(64);
    const auto with_logits = engine->NewSequence(64);
    for (Sequence* sequence : {alone.get(), with_logits.get()})
      sequence->Append(std::vector<int32_t>{3, 14, 15, 92, 65});
    RowQueries likeliest;
    likeliest.picks = {TokenPick{}};
    RowQueries drawn = likeliest;
    drawn.picks.front().temperature = 1.0f;
    for (int i = 0; i < 20; ++i) {
      const auto step = [&](Sequence& sequence, const RowQueries* queries) {
        const StepItem item{&sequence, sequence.pending(), StepOutput::kLast, queries};
        engine->Step({&item, 1});
      };
      const auto logits = [&] {
        std::vector<float> row(96);
        engine->ReadLogits(0, 1, row.data());
        return row;
      };
      step(*with_logits, nullptr);
      const std::vector<float> expected = logits();
      const auto largest = std::max_element(expected.begin(), expected.end()) - expected.begin();
      ASSERT_EQ(engine->PickedToken(0), largest) << "step " << i;
      const bool draws = i % 7 == 3;  // another graph
      step(*alone, draws ? &drawn : &likeliest);
      if (!draws) {
        ASSERT_EQ(engine->PickedToken(0), largest) << "step " << i;
      }
      if (i % 3 != 1) {
        ASSERT_EQ(logits(), expected) << "step " << i;
      }
      for (Sequence* sequence : {alone.get(), with_logits.get()})
        sequence->Append(std::vector<int32_t>{static_cast<int32_t>(largest)});
    }
  }
}

// Matrices over one input are one matrix where their arithmetic is the same: fewer, larger products.
TEST_P(EngineTest, StacksMatricesOfOneArithmetic) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto counts = [&](const std::string& settings) {
    const auto engine = Open(backend, WithSettings(settings));
    const DecoderLayerShard& layer = engine->model().weights().layers[1].shards[0];
    return std::pair(layer.group(BlockGroup::kQkv).weights.size(), layer.group(BlockGroup::kGateUp).weights.size());
  };
  EXPECT_EQ(counts("preset=halved"), std::pair(size_t{1}, size_t{1}));
  EXPECT_EQ(counts("q_proj.stoc_len=64"), std::pair(size_t{2}, size_t{1}));
  EXPECT_EQ(counts("k_proj.stoc_len=64,up_proj.stoc_len=96"), std::pair(size_t{3}, size_t{2}));
  // One scale for a whole matrix must not become one for three.
  EXPECT_EQ(counts("chunk_d=0,granularity=per_tensor"), std::pair(size_t{3}, size_t{2}));
}

// The plan promises what loading then takes; only the backend's padding of weights may add to it.
TEST_P(EngineTest, MemoryPlanIsWhatLoadingTakes) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const char* settings : {"preset=halved", "preset=published", "attention=exact,lm_head=1"}) {
    SCOPED_TRACE(settings);
    const EngineOptions options = WithSettings(settings);
    const ModelFiles files = OpenModelFiles(scratch_.path().string());
    const PassShape shape = ShapeOf(files.config, options);
    const MemoryPlan plan = PlanMemory(files, options.precision, options.sc, shape, *backend);
    const auto engine = Open(backend, options);
    EXPECT_EQ(plan.total.workspace, engine->model().workspace_bytes());
    EXPECT_EQ(plan.total.kv_cache, engine->model().kv_cache_bytes());
    const int64_t linears = plan.decode_stream_bytes - plan.rest.scales - 96 * 64 * (options.sc.sc_lm_head ? 1 : 4);
    EXPECT_GE(engine->model().weights().decoder_bytes, linears);
    EXPECT_LE(engine->model().weights().decoder_bytes, linears * 3 / 2);
    int64_t sum = plan.rest.total();
    for (const MemoryBytes& layer : plan.layers) sum += layer.total();
    EXPECT_EQ(plan.total.total(), sum);
  }
}

TEST_P(EngineTest, NanInAWeightIsAnErrorThatNamesTheTensor) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (const char* name : {"model.layers.1.mlp.up_proj.weight", "model.layers.0.input_layernorm.weight",
                             "lm_head.weight", "model.embed_tokens.weight"}) {
      const TempDir folder;
      WriteTinyModel(folder.path(), {}, [&](std::vector<StoredTensor>& tensors) {
        for (StoredTensor& tensor : tensors) {
          if (tensor.name == name) std::memcpy(tensor.bytes.data() + 4 * 37, &bad, 4);
        }
      });
      ExpectInvalid([&] { Engine::Open(backend, OpenModelFiles(folder.path().string()), {}); }, {name});
    }
  }
}

// Weights are finite but their products are not: the activation check must name where it happened.
TEST_P(EngineTest, OverflowInAnActivationIsAnErrorThatNamesTheLayer) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const Precision precision : {Precision::kSc, Precision::kFp32}) {
    const TempDir folder;
    WriteTinyModel(folder.path(), {}, [](std::vector<StoredTensor>& tensors) {
      for (StoredTensor& tensor : tensors) {
        if (tensor.name != "model.layers.1.mlp.down_proj.weight") continue;
        for (size_t i = 0; i < tensor.bytes.size(); i += 4) {
          const float huge = 3e38f;
          std::memcpy(tensor.bytes.data() + i, &huge, 4);
        }
      }
    });
    EngineOptions options;
    options.precision = precision;
    const auto engine = Engine::Open(backend, OpenModelFiles(folder.path().string()), options);
    const auto sequence = engine->NewSequence(16);
    sequence->Append(std::vector<int32_t>{1, 2, 3, 4});
    const StepItem item{sequence.get(), 4, StepOutput::kLast};
    ExpectInvalid([&] { engine->Step({&item, 1}); }, {"layer 1", "down_proj"});
    EXPECT_EQ(sequence->computed(), 0);
  }
}

TEST(EngineOptions, Fp16NeedsABackendThatHasIt) {
  const TempDir scratch;
  WriteTinyModel(scratch.path(), {});
  EngineOptions options;
  options.precision = Precision::kFp16;
  ExpectInvalid(
      [&] { Engine::Open(OpenBackend("cpu", {}, nullptr), OpenModelFiles(scratch.path().string()), options); },
      {"fp16"});
}

// One layer here, one there: the residual stream hops, the bits do not change.
TEST(Placement, LayersOnSeveralDevicesGiveTheSameBits) {
  const TempDir scratch;
  const LogitsModel model = TinyLogitsModel(scratch.path());
  const std::shared_ptr<Backend> backend = OpenBackend("cpu:3", {.threads = 1, .cpu_variant = ""}, nullptr);
  const std::span<const Device> devices = backend->devices();
  ASSERT_EQ(devices.size(), 3u);
  const auto run = [&](size_t embedding, size_t first, size_t second, size_t head) {
    EngineOptions options;
    options.max_sequences = 3;
    options.placement = {devices[embedding], {devices[first], devices[second]}, devices[head]};
    const auto engine = Engine::Open(backend, OpenModelFiles(model.folder.string()), options);
    return HashRun(*engine, model.prompt, {Cut::kChunks, true});
  };
  const std::string expected = ReadRecordedHashes().at("tiny halved");
  EXPECT_EQ(run(0, 0, 0, 0), expected);
  EXPECT_EQ(run(0, 0, 1, 1), expected);
  EXPECT_EQ(run(0, 1, 2, 0), expected);
  EXPECT_EQ(run(2, 1, 0, 2), expected);
}

// What each device of a row split holds is planned too.
TEST(Placement, PlansOfShardsAreWhatLoadingTakes) {
  const TempDir scratch;
  WriteTinyModel(scratch.path(), {});
  const std::shared_ptr<Backend> backend = OpenBackend("cpu:3", {.threads = 1, .cpu_variant = ""}, nullptr);
  for (const char* settings : {"preset=halved", "preset=published", "lm_head=1"}) {
    ModelFiles files = OpenModelFiles(scratch.path().string());
    EngineOptions options;
    options.sc = ParseScModelConfig(std::vector<std::string>{settings});
    options.placement = RowSplit(files.config, backend->devices());
    const std::vector<DecoderShard> shards = DivideRows(files.config, backend->devices());
    const PassShape shape = ShapeOf(files.config, options);
    const MemoryPlan whole = PlanMemory(files, options.precision, options.sc, shape, *backend);
    MemoryBytes sum;
    int64_t stream_bytes = 0;
    for (size_t i = 0; i < shards.size(); ++i) {
      const MemoryPlan plan = PlanShard(files, options.precision, options.sc, shape, *backend, shards, i);
      sum.kv_cache += plan.total.kv_cache;
      sum.workspace += plan.total.workspace;
      sum.embedding += plan.total.embedding;
      stream_bytes += plan.decode_stream_bytes;
    }
    EXPECT_EQ(sum.embedding, whole.total.embedding);
    EXPECT_EQ(stream_bytes, whole.decode_stream_bytes);
    const auto engine = Engine::Open(backend, std::move(files), options);
    EXPECT_EQ(sum.workspace, engine->model().workspace_bytes());
    EXPECT_EQ(sum.kv_cache, engine->model().kv_cache_bytes());
  }
}

TEST_P(EngineTest, CopiesTheResidualStreamOfOneStep) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto hidden_of = [&](int64_t max_pass_rows, int layers) {
    EngineOptions options;
    options.max_pass_rows = max_pass_rows;
    const auto engine = Open(backend, options);
    const auto hidden_size = static_cast<size_t>(engine->config().hidden_size);
    const auto sequence = engine->NewSequence(100);
    for (int32_t id = 0; id < 41; ++id) sequence->Append({&id, 1});
    std::vector<float> hidden(41 * hidden_size);
    while (sequence->pending() > 0) {
      const auto row = static_cast<size_t>(sequence->computed());
      const StepItem item{sequence.get(), engine->NextTokens(*sequence, 100), StepOutput::kNone};
      const auto size = static_cast<size_t>(item.num_tokens) * hidden_size;
      engine->StepWithHidden({&item, 1}, layers, std::span(hidden).subspan(row * hidden_size, size));
    }
    // The next step leaves it alone.
    const std::vector<float> before = hidden;
    sequence->Append(std::vector<int32_t>{7});
    const StepItem next{sequence.get(), 1, StepOutput::kLast};
    engine->Step({&next, 1});
    EXPECT_EQ(hidden, before);
    return hidden;
  };
  std::vector<std::vector<float>> seen;
  for (int layers = 0; layers <= 2; ++layers) {
    const std::vector<float> whole = hidden_of(128, layers);
    EXPECT_EQ(whole, hidden_of(20, layers)) << layers;  // two cuts of 20, and a row on its own
    EXPECT_NE(std::count(whole.begin(), whole.end(), 0.0f), static_cast<int64_t>(whole.size()));
    EXPECT_EQ(std::count(seen.begin(), seen.end(), whole), 0) << layers;
    seen.push_back(whole);
  }
  ExpectInvalid([&] { hidden_of(128, 3); }, {"layer 3", "0 (the embeddings)..2"});
  ExpectInvalid([&] { hidden_of(128, -1); }, {"layer -1"});
}

INSTANTIATE_TEST_SUITE_P(Backends, EngineTest, testing::ValuesIn(OneOfEachBackend()),
                         [](const auto& param) { return param.param.Name(); });

}  // namespace
}  // namespace stoch::test
