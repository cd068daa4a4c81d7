// SPDX-License-Identifier: Apache-2.0
// The last layer computes the rows whose logits are asked for, and no others; with the bits of all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/wrappers/forwarding_backend.h"
#include "models/sc_model_config.h"
#include "tests/engine/logits_cases.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

// Counts rows of the last layer's linears, or has every row computed as for an observer.
class CountingBackend final : public ForwardingBackend {
 public:
  CountingBackend(std::shared_ptr<Backend> inner, bool observed)
      : ForwardingBackend(std::move(inner)), observed_(observed) {}
  bool is_observed() const override { return observed_; }
  void Linear(const LinearCall& call) override {
    if (call.site.layer > last_layer_) rows_.clear();
    last_layer_ = std::max(last_layer_, call.site.layer);
    if (call.site.layer == last_layer_) rows_[std::string(call.site.op)] += call.x.dim(0);
    ForwardingBackend::Linear(call);
  }
  // By operator, since the last call.
  std::map<std::string, int64_t> TakeRows() {
    last_layer_ = 0;
    return std::exchange(rows_, {});
  }

 private:
  bool observed_;
  int last_layer_ = 0;
  std::map<std::string, int64_t> rows_;
};

struct PromptRun {
  std::vector<float> logits;                   // of the prompt's last row, then of one more token
  std::map<std::string, int64_t> first, last;  // rows of the last layer in the first pass and in that of the last row
};

enum class Split { kNone, kRows, kSequence };

// A prompt in two passes, the second next to another sequence's first token.
PromptRun RunPrompt(const std::shared_ptr<Backend>& inner, bool observed, const LogitsModel& model,
                    const LogitsConfig& config, Split split) {
  const auto backend = std::make_shared<CountingBackend>(inner, observed);
  ModelFiles files = OpenModelFiles(model.folder.string());
  EngineOptions options = OptionsOf(config);
  const std::span<const Device> devices = backend->devices();
  if (split == Split::kRows) options.placement = RowSplit(files.config, devices);
  if (split == Split::kSequence) {
    options.placement = SequenceSplit(files.config, devices, static_cast<int>(devices.size()));
  }
  const auto engine = Engine::Open(backend, std::move(files), options);
  const auto vocab = static_cast<size_t>(engine->config().vocab_size);
  const auto sequence = engine->NewSequence(static_cast<int64_t>(model.prompt.size()) + 2);
  const auto other = engine->NewSequence(4);
  sequence->Append(model.prompt);
  other->Append(std::vector<int32_t>{1});
  PromptRun run;
  run.logits.resize(3 * vocab);
  const bool cuts = engine->chunk_invariant();
  if (cuts) {
    const StepItem begin{sequence.get(), sequence->pending() / 2, StepOutput::kNone};
    engine->Step({&begin, 1});
    run.first = backend->TakeRows();
  }
  std::vector<StepItem> items = {{sequence.get(), sequence->pending(), StepOutput::kLast}};
  if (cuts) items.insert(items.begin(), {other.get(), 1, StepOutput::kLast});
  engine->Step(items);
  run.last = backend->TakeRows();
  engine->ReadLogits(0, static_cast<int64_t>(items.size()), run.logits.data());
  sequence->Append(std::vector<int32_t>{2});
  const StepItem next{sequence.get(), 1, StepOutput::kLast};
  engine->Step({&next, 1});
  engine->ReadLogits(0, 1, run.logits.data() + 2 * vocab);
  return run;
}

// Of a test.
std::string NameOf(std::string device) {
  for (char& c : device) {
    if (c == ':' || c == ',') c = '_';
  }
  return device;
}

struct Devices {
  BackendUnderTest backend;
  int count;
  Split split = Split::kNone;
  friend std::ostream& operator<<(std::ostream& out, const Devices& devices) { return out << devices.backend; }
};

class OutputRowsOn : public testing::TestWithParam<Devices> {};

TEST_P(OutputRowsOn, LastLayerHasTheBitsOfAllRows) {
  STOCH_OPEN_OR_SKIP(backend, GetParam().backend);
  const TempDir scratch;
  std::vector<LogitsModel> models = RandomFamilyModels(scratch.path() / "families");
  models.push_back(TinyLogitsModel(scratch.path() / "tiny"));
  for (const LogitsModel& model : models) {
    if (GetParam().count > 1 && model.name != "tiny") continue;
    for (const LogitsConfig& config : LogitsConfigs()) {
      if (model.name != "tiny" && !IsFamilyConfig(config)) continue;
      SCOPED_TRACE(model.name + ' ' + config.name);
      const PromptRun all = RunPrompt(backend, true, model, config, GetParam().split);
      const PromptRun outputs = RunPrompt(backend, false, model, config, GetParam().split);
      ASSERT_EQ(all.logits, outputs.logits);
      const auto prompt = static_cast<int64_t>(model.prompt.size());
      const bool cuts = !outputs.first.empty();
      const int64_t devices = GetParam().count;
      EXPECT_EQ(outputs.last.at("qkv_proj"), devices * (cuts ? prompt - prompt / 2 + 1 : prompt));
      EXPECT_EQ(outputs.last.at("o_proj"), cuts ? devices * 2 : devices * prompt);
      if (!cuts) continue;
      EXPECT_EQ(outputs.first.at("qkv_proj"), devices * (prompt / 2));
      EXPECT_FALSE(outputs.first.contains("o_proj"));
      EXPECT_EQ(all.first.at("o_proj"), devices * (prompt / 2));
      EXPECT_EQ(all.last.at("o_proj"), devices * (prompt - prompt / 2 + 1));
    }
  }
}

// Where positions are dealt over devices, each computes its own output rows.
class DealtOutputRows : public testing::TestWithParam<BackendUnderTest> {};

TEST_P(DealtOutputRows, LastLayerHasTheBitsOfAllRows) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const TempDir scratch;
  const LogitsModel model = TinyLogitsModel(scratch.path());
  const auto prompt = static_cast<int64_t>(model.prompt.size());
  for (const LogitsConfig& config : {LogitsConfig{"halved", Precision::kSc, ""}, {"fp32", Precision::kFp32, ""}}) {
    SCOPED_TRACE(config.name);
    const PromptRun all = RunPrompt(backend, true, model, config, Split::kSequence);
    const PromptRun outputs = RunPrompt(backend, false, model, config, Split::kSequence);
    EXPECT_EQ(all.logits, outputs.logits);
    EXPECT_EQ(outputs.first.at("qkv_proj"), prompt / 2);
    EXPECT_FALSE(outputs.first.contains("o_proj"));
    EXPECT_EQ(all.first.at("o_proj"), prompt / 2);
    EXPECT_EQ(all.last.at("o_proj"), prompt - prompt / 2 + 1);
    EXPECT_EQ(outputs.last.at("qkv_proj"), prompt - prompt / 2 + 1);
    EXPECT_EQ(outputs.last.at("o_proj"), 2);
  }
}

// Outputs of every stripe next to rows without: a few, and so many that they have no room but where all rows are.
TEST_P(DealtOutputRows, ManyOutputsHaveTheBitsOfAllRows) {
  STOCH_OPEN_OR_SKIP(inner, GetParam());
  const TempDir scratch;
  TinyModel model;
  model.config.num_key_value_heads = 1;  // little room
  WriteTinyModel(scratch.path(), model);
  constexpr int64_t kRows = 132;
  bool has_selected = false, has_all = false;
  for (const int64_t outputs : {5, 40, 128}) {
    const auto run = [&](bool observed, int64_t* computed) {
      const auto backend = std::make_shared<CountingBackend>(inner, observed);
      ModelFiles files = OpenModelFiles(scratch.path().string());
      EngineOptions options = OptionsOf({"halved", Precision::kSc, ""});
      options.max_pass_rows = kRows;
      options.max_sequences = 2;
      options.placement = SequenceSplit(files.config, backend->devices(), static_cast<int>(backend->devices().size()));
      const auto engine = Engine::Open(backend, std::move(files), options);
      const auto first = engine->NewSequence(128), second = engine->NewSequence(128);
      first->Append(std::vector<int32_t>(static_cast<size_t>(kRows - outputs), 3));
      std::vector<int32_t> tokens(static_cast<size_t>(outputs));
      for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i % 90);
      second->Append(tokens);
      const StepItem items[] = {{first.get(), kRows - outputs, StepOutput::kNone},
                                {second.get(), outputs, StepOutput::kAll}};
      engine->Step(items);
      *computed = backend->TakeRows().at("o_proj");
      std::vector<float> logits(static_cast<size_t>(outputs * engine->config().vocab_size));
      engine->ReadLogits(0, outputs, logits.data());
      return logits;
    };
    int64_t of_all = 0, computed = 0;
    const std::vector<float> expected = run(true, &of_all);
    EXPECT_EQ(run(false, &computed), expected) << outputs;
    EXPECT_EQ(of_all, kRows);
    EXPECT_TRUE(computed == outputs || computed == kRows) << computed;
    (computed == outputs ? has_selected : has_all) = true;
  }
  EXPECT_TRUE(has_selected);
  EXPECT_TRUE(has_all);
}

INSTANTIATE_TEST_SUITE_P(All, DealtOutputRows,
                         testing::Values(BackendUnderTest{"cpu:2", "", 2}, BackendUnderTest{"cpu:4", "", 2},
                                         BackendUnderTest{"cuda:0,1", "", 0}),
                         [](const auto& param) { return NameOf(param.param.device); });

TEST_P(OutputRowsOn, DilatedAttentionToo) {
  STOCH_OPEN_OR_SKIP(backend, GetParam().backend);
  const TempDir scratch;
  const LogitsModel model = TinyLogitsModel(scratch.path());
  const LogitsConfig config{"dilated", Precision::kSc, "attention=dilated,segments=16:64,dilation=1:4"};
  const PromptRun all = RunPrompt(backend, true, model, config, GetParam().split);
  const PromptRun outputs = RunPrompt(backend, false, model, config, GetParam().split);
  EXPECT_EQ(all.logits, outputs.logits);
  EXPECT_FALSE(outputs.first.contains("o_proj"));
}

INSTANTIATE_TEST_SUITE_P(All, OutputRowsOn,
                         testing::Values(Devices{{"cpu", "", 2}, 1}, Devices{{"cpu:2", "", 2}, 2, Split::kRows},
                                         Devices{{"cuda:0", "", 0}, 1}, Devices{{"cuda:0,1", "", 0}, 2, Split::kRows}),
                         [](const auto& param) { return NameOf(param.param.backend.device); });

}  // namespace
}  // namespace stoch::test
