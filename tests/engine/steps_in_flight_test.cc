// SPDX-License-Identifier: Apache-2.0
// Several steps in flight on a model whose layers are split over devices: every sequence has the bits it has alone,
// whatever the order in which steps begin, end and fail.

#include <gtest/gtest.h>

#include <cstring>
#include <deque>

#include "models/decoder/micro_batch.h"
#include "tests/engine/logits_cases.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

constexpr int32_t kPoison = 77;  // the token that makes activations of layer 0 overflow

// Only the poison token has anything in column 0 of what layer 0's MLP sees, and there the weights are too large.
void PlantPoison(std::vector<StoredTensor>& tensors) {
  for (StoredTensor& tensor : tensors) {
    const auto set = [&tensor](size_t row, size_t col, float value) {
      const auto cols = static_cast<size_t>(tensor.shape[1]);
      std::memcpy(tensor.bytes.data() + (row * cols + col) * sizeof(float), &value, sizeof(float));
    };
    if (tensor.name == "model.embed_tokens.weight") {
      for (size_t id = 0; id < static_cast<size_t>(tensor.shape[0]); ++id) set(id, 0, id == kPoison ? 1000.0f : 0.0f);
    } else if (tensor.name == "model.layers.0.self_attn.o_proj.weight") {
      for (size_t col = 0; col < static_cast<size_t>(tensor.shape[1]); ++col) set(0, col, 0);
    } else if (tensor.name == "model.layers.0.mlp.gate_proj.weight" ||
               tensor.name == "model.layers.0.mlp.up_proj.weight") {
      for (size_t row = 0; row < static_cast<size_t>(tensor.shape[0]); ++row) set(row, 0, 1e25f);
    }
  }
}

// Steps that begin one after the other, `in_flight` of them at once, on stages that each do one thing at a time in the
// order it was issued: how many end in a long run, per time a stage takes.
double StepsPerStageTime(int64_t stages, int64_t in_flight) {
  constexpr int kSteps = 400;
  struct Step {
    int64_t issued = 0;
    double ready = 0;  // when the last stage issued is done
  };
  std::vector<double> busy_until(static_cast<size_t>(stages), 0);
  std::deque<Step> steps;
  double now = 0;  // of the host, which issues what follows once the first step has ended
  const auto issue = [&](Step& step, int64_t end) {
    for (; step.issued < end; ++step.issued) {
      double& stage = busy_until[static_cast<size_t>(step.issued)];
      stage = std::max({stage, step.ready, now}) + 1;
      step.ready = stage;
    }
  };
  for (int begun = 0; begun < kSteps; ++begun) {
    if (static_cast<int64_t>(steps.size()) == in_flight) {
      issue(steps.front(), stages);
      now = std::max(now, steps.front().ready);
      // The host waits for every device, so for whatever was issued to it.
      for (const double until : busy_until) now = std::max(now, until);
      steps.pop_front();
    }
    steps.push_back({0, now});
    const auto count = static_cast<int64_t>(steps.size());
    for (int64_t i = 0; i < count; ++i) issue(steps[static_cast<size_t>(i)], StagesIssued(stages, i, count));
  }
  return kSteps / now;
}

TEST(StagesIssued, KeepsEveryStageAtWork) {
  EXPECT_EQ(StagesIssued(4, 0, 1), 4);
  EXPECT_EQ(StagesIssued(4, 3, 4), 1);
  for (const int64_t stages : {1, 2, 3, 4, 8}) {
    EXPECT_NEAR(StepsPerStageTime(stages, 1), 1.0 / static_cast<double>(stages), 0.02) << stages;
    EXPECT_NEAR(StepsPerStageTime(stages, stages), 1.0, 0.03) << stages;
    if (stages % 2 != 0) continue;
    EXPECT_NEAR(StepsPerStageTime(stages, 2), 2.0 / static_cast<double>(stages), 0.02) << stages;
  }
}

class StepsInFlight : public testing::TestWithParam<BackendUnderTest> {
 protected:
  static constexpr int64_t kLength = 120;

  void SetUp() override {
    TinyModel model;
    model.config.num_hidden_layers = 6;
    WriteTinyModel(scratch_.path(), model, PlantPoison);
    options_.context = kLength;
    options_.max_sequences = 8;
    options_.min_piece_rows = 20;
  }

  std::unique_ptr<Engine> Alone() const {
    return Engine::Open(OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr),
                        OpenModelFiles(scratch_.path().string()), options_);
  }

  // Layers in turn on all devices; `rounds` times over them.
  std::unique_ptr<Engine> Split(const std::shared_ptr<Backend>& backend, size_t rounds) const {
    EngineOptions options = options_;
    const std::span<const Device> devices = backend->devices();
    ModelFiles files = OpenModelFiles(scratch_.path().string());
    const auto layers = static_cast<size_t>(files.config.num_hidden_layers);
    DecoderPlacement placement;
    for (size_t i = 0; i < layers; ++i) {
      placement.layers.push_back(devices[i * devices.size() * rounds / layers % devices.size()]);
    }
    placement.embedding = placement.layers.front();
    placement.head = placement.layers.back();
    options.placement = placement;
    return Engine::Open(backend, std::move(files), options);
  }

  static std::vector<int32_t> Prompt(size_t number) {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < 3 + 19 * number % 60; ++i) ids.push_back(static_cast<int32_t>((i * 31 + number * 7) % 70));
    return ids;
  }

  // Logits of every step of one sequence.
  using Trace = std::vector<float>;

  // A sequence that is prompted with Prompt(number) and continued greedily.
  struct Talker {
    std::unique_ptr<Sequence> sequence;
    Trace trace;
    int generated = 0;
  };
  static constexpr int kTokens = 6;

  static Talker Talk(Engine& engine, size_t number) {
    Talker talker;
    talker.sequence = engine.NewSequence(kLength);
    talker.sequence->Append(Prompt(number));
    return talker;
  }
  static StepItem Next(const Talker& talker) {
    return {talker.sequence.get(), talker.sequence->pending(), StepOutput::kLast};
  }
  static void Accept(Engine& engine, int64_t row, Talker* talker) {
    const auto vocab = static_cast<size_t>(engine.config().vocab_size);
    talker->trace.resize(talker->trace.size() + vocab);
    engine.ReadLogits(row, 1, talker->trace.data() + talker->trace.size() - vocab);
    int32_t id = 0;
    engine.Argmax(row, {&id, 1});
    if (id == kPoison) id = 0;
    if (++talker->generated < kTokens) talker->sequence->Append({&id, 1});
  }

  Trace TraceAlone(Engine& engine, size_t number) const {
    Talker talker = Talk(engine, number);
    while (talker.generated < kTokens) {
      const StepItem item = Next(talker);
      engine.Step({&item, 1});
      Accept(engine, 0, &talker);
    }
    return talker.trace;
  }

  TempDir scratch_;
  EngineOptions options_;
};

// Groups of two, as many in flight as asked for, each on a step of its own at any time.
TEST_P(StepsInFlight, EverySequenceHasTheBitsItHasAlone) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto alone = Alone();
  for (const size_t rounds : {1u, 2u}) {
    const auto engine = Split(backend, rounds);
    ASSERT_EQ(engine->max_steps(), static_cast<int64_t>(backend->devices().size()));
    for (size_t in_flight = 1; in_flight <= backend->devices().size(); ++in_flight) {
      SCOPED_TRACE(std::to_string(rounds) + " rounds, " + std::to_string(in_flight) + " in flight");
      std::vector<Talker> talkers;
      for (size_t i = 0; i < 2 * in_flight; ++i) talkers.push_back(Talk(*engine, i));
      std::deque<size_t> groups;
      const auto begin = [&](size_t group) {
        const StepItem items[] = {Next(talkers[2 * group]), Next(talkers[2 * group + 1])};
        engine->Begin(items);
        groups.push_back(group);
      };
      for (size_t group = 0; group < in_flight; ++group) begin(group);
      while (!groups.empty()) {
        EXPECT_EQ(engine->steps_in_flight(), static_cast<int64_t>(groups.size()));
        const size_t group = groups.front();
        groups.pop_front();
        EXPECT_EQ(engine->Finish(), 2);
        for (int64_t row = 0; row < 2; ++row) Accept(*engine, row, &talkers[2 * group + static_cast<size_t>(row)]);
        if (talkers[2 * group].generated < kTokens) begin(group);
      }
      for (size_t i = 0; i < talkers.size(); ++i) {
        const Trace expected = TraceAlone(*alone, i);
        ASSERT_EQ(talkers[i].trace.size(), expected.size());
        EXPECT_EQ(std::memcmp(talkers[i].trace.data(), expected.data(), expected.size() * sizeof(float)), 0) << i;
      }
    }
  }
}

// An error ends every step in flight; what each would have run is still to be run, and has the same bits.
TEST_P(StepsInFlight, AfterAnErrorNoneHasBegun) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto alone = Alone();
  const auto engine = Split(backend, 1);
  Talker first = Talk(*engine, 1);
  Talker last = Talk(*engine, 2);
  const auto poisoned = engine->NewSequence(8);
  poisoned->Append(std::vector<int32_t>{1, kPoison, 2});
  const StepItem items[] = {Next(first), {poisoned.get(), 3, StepOutput::kLast}, Next(last)};
  if (engine->max_steps() < 3) {
    engine->Begin({&items[0], 1});
    engine->Begin({&items[1], 2});
  } else {
    for (const StepItem& item : items) engine->Begin({&item, 1});
  }
  ExpectInvalid(
      [&] {
        while (engine->steps_in_flight() > 0) engine->Finish();
      },
      {"layer 0"});
  EXPECT_EQ(engine->steps_in_flight(), 0);
  EXPECT_EQ(poisoned->computed(), 0);
  EXPECT_EQ(last.sequence->computed(), 0);
  // The step ahead of it may have ended before it was met.
  if (first.sequence->pending() == 0) first.sequence->Truncate(0), first.sequence->Append(Prompt(1));
  for (auto& [talker, number] : {std::pair(&first, size_t{1}), std::pair(&last, size_t{2})}) {
    while (talker->generated < kTokens) {
      const StepItem item = Next(*talker);
      engine->Step({&item, 1});
      Accept(*engine, 0, talker);
    }
    EXPECT_EQ(talker->trace, TraceAlone(*alone, number)) << number;
  }
}

TEST_P(StepsInFlight, ASequenceMayDieAndMayNotBeginTwice) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto alone = Alone();
  const auto engine = Split(backend, 1);
  const int64_t free = engine->free_tokens();
  Talker stays = Talk(*engine, 3);
  std::optional<Talker> dies = Talk(*engine, 4);
  const StepItem items[] = {Next(*dies), Next(stays)};
  engine->Begin(items);
  ExpectInvalid([&] { engine->Begin({&items[1], 1}); }, {"in flight"});
  EXPECT_EQ(engine->steps_in_flight(), 1);
  Talker other = Talk(*engine, 5);
  const StepItem item = Next(other);
  engine->Begin({&item, 1});
  dies.reset();
  EXPECT_EQ(engine->Finish(), 2);
  Accept(*engine, 1, &stays);
  EXPECT_EQ(engine->Finish(), 1);
  Accept(*engine, 0, &other);
  const Trace expected = TraceAlone(*alone, 3);
  EXPECT_EQ(std::memcmp(stays.trace.data(), expected.data(), stays.trace.size() * sizeof(float)), 0);
  stays.sequence.reset();
  other.sequence.reset();
  EXPECT_EQ(engine->free_tokens(), free);
}

TEST(StepsOfOneDevice, AreOneAtATime) {
  const TempDir scratch;
  WriteTinyModel(scratch.path(), {});
  const auto backend = OpenBackend("cpu:2", {.threads = 1, .cpu_variant = ""}, nullptr);
  ModelFiles files = OpenModelFiles(scratch.path().string());
  EXPECT_EQ(LanesOf(SingleDevice(files.config, backend->devices()[1])), 1);
  EXPECT_EQ(LanesOf(RowSplit(files.config, backend->devices())), 1);
}

INSTANTIATE_TEST_SUITE_P(Backends, StepsInFlight,
                         testing::Values(BackendUnderTest{"cpu:2", "", 1}, BackendUnderTest{"cpu:3", "", 1},
                                         BackendUnderTest{"cuda:0,1", "", 0}, BackendUnderTest{"cuda:0,1,2", "", 0}),
                         [](const auto& param) { return param.param.Name(); });

}  // namespace
}  // namespace stoch::test
