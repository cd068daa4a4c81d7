// SPDX-License-Identifier: Apache-2.0
#include "app/verify/logits.h"

#include <algorithm>

#include "app/interrupt.h"
#include "engine/logits_hash.h"
#include "kernels/base/check.h"

namespace stoch::cli {
namespace {

constexpr int64_t kNeighbourPrompt = 11;

int64_t Length(const LogitsRun& run) { return static_cast<int64_t>(run.prompt.size()) + run.new_tokens; }

// Other sequences that share the passes: each adds a token of its own every time.
class Neighbours {
 public:
  Neighbours(Engine& engine, const LogitsRun& run) : vocab_size_(engine.config().vocab_size) {
    for (int64_t i = 0; i < run.neighbours; ++i) {
      sequences_.push_back(engine.NewSequence(Length(run) + kNeighbourPrompt));
      STOCH_CHECK(sequences_.back() != nullptr);
      sequences_.back()->Append(VerifyPrompt(vocab_size_, kNeighbourPrompt + i));
    }
  }

  void AddTo(std::vector<StepItem>* items) {
    for (const std::unique_ptr<Sequence>& sequence : sequences_) {
      if (sequence->pending() == 0) sequence->Append(VerifyPrompt(vocab_size_, 1));
      // In front and behind: what is hashed is not always the first of a pass.
      const auto at = items->size() % 2 == 0 ? items->end() : items->begin();
      items->insert(at, {sequence.get(), sequence->pending(), StepOutput::kLast});
    }
  }

 private:
  int64_t vocab_size_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

}  // namespace

std::vector<int32_t> VerifyPrompt(int64_t vocab_size, int64_t length) {
  std::vector<int32_t> ids(static_cast<size_t>(length));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>((i * 7919 + 101) % static_cast<size_t>(vocab_size));
  return ids;
}

std::unique_ptr<Engine> OpenForVerify(std::shared_ptr<Backend> backend, const std::string& model,
                                      const std::string& config, const LogitsRun& run, const DeviceOptions& devices) {
  EngineOptions options;
  const bool exact = config == "fp32";
  Apply({.precision = exact ? "fp32" : "sc", .sc = exact ? std::vector<std::string>() : std::vector{config}}, &options);
  options.context = Length(run) + kNeighbourPrompt + run.neighbours;
  options.max_sequences = 1 + run.neighbours;
  return OpenEngine(std::move(backend), OpenModelFiles(model), options, devices, {.json = false, .quiet = true});
}

std::string LogitsSha256(Engine& engine, const LogitsRun& run) {
  const std::unique_ptr<Sequence> sequence = engine.NewSequence(Length(run));
  STOCH_CHECK(sequence != nullptr);
  sequence->Append(run.prompt);
  Neighbours neighbours(engine, run);
  LogitsHash hash;
  std::vector<float> logits(static_cast<size_t>(engine.config().vocab_size));
  int32_t next = 0;
  while (sequence->computed() + 1 < Length(run)) {
    ThrowIfInterrupted();
    if (sequence->pending() == 0) sequence->Append({&next, 1});
    const int64_t tokens = run.piece > 0 ? std::min(run.piece, sequence->pending()) : sequence->pending();
    std::vector<StepItem> items = {{sequence.get(), tokens, StepOutput::kAll}};
    neighbours.AddTo(&items);
    engine.Step(items);
    int64_t row = 0;
    for (const StepItem& item : items) {
      if (item.sequence == sequence.get()) break;
      ++row;
    }
    for (int64_t i = 0; i < tokens; ++i) {
      engine.ReadLogits(row + i, 1, logits.data());
      hash.Add(logits);
    }
    engine.Argmax(row + tokens - 1, {&next, 1});
  }
  return hash.Hex();
}

}  // namespace stoch::cli
