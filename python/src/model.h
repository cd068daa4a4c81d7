// SPDX-License-Identifier: Apache-2.0
// A loaded model as Python holds it: engine, tokenizer and the lock on which calls queue.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/options/speculation_options.h"
#include "engine/chat/chat.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "engine/perplexity.h"
#include "engine/request/text_stream.h"
#include "engine/speculation/draft_lengths.h"
#include "loader/tokenizer/tokenizer.h"
#include "python/src/base/devices.h"
#include "research/sc_files.h"

namespace stoch::python {

// done of total, of what. Called with the GIL held; may throw what Python raised.
using Progress = std::function<void(int64_t done, int64_t total, const std::string& text)>;

struct LoadOptions {
  std::string model;      // folder or random:SHAPE[:SEED]
  std::string tokenizer;  // folder, "" = the model's
  std::vector<std::string> sc;
  ScFileOptions files;
  std::string precision = "sc";
  std::string device = "auto";
  std::string device_map = "auto";  // a policy; not read where device_map_json is set
  std::string device_map_json;
  std::string max_memory;  // "0=60GiB,1=60GiB"
  std::string split = "layer";
  int64_t context = 0;
  int64_t batch = 8;      // sequences of one pass
  int64_t pass_rows = 0;  // EngineOptions::max_pass_rows
  cli::SpeculationOptions speculation;
  int threads = 0;
  std::string cpu_variant;
};

// Everything behind one Model. Streams and sequences share it, so it lives as long as the last of them.
struct LoadedModel {
  ~LoadedModel();

  std::unique_ptr<Tokenizer> tokenizer;  // may be null
  ChatSettings chat_settings;
  std::unique_ptr<Engine> engine;
  std::vector<std::string> notices;
  std::mutex mutex;  // one call at a time

  // Errors: InvalidInput if the model has none.
  const Tokenizer& RequireTokenizer() const;
  // Its helper process is started by the first call. Errors: as Chat; UsedBeforeFork.
  const Chat& RequireChat();

 private:
  std::mutex chat_mutex_;  // of what follows
  std::unique_ptr<Chat> chat_;
};
using ModelPtr = std::shared_ptr<LoadedModel>;

using Ids = std::vector<int32_t>;

// Runs `body` alone on a model of this process. Errors: UsedBeforeFork.
template <typename Body>
auto Alone(const ModelPtr& model, const Body& body) {
  RequireNotForked();
  const std::lock_guard lock(model->mutex);
  return body(*model);
}

// Errors: as Engine::Open, and everything that can be wrong with the options, before any weight is read.
// Requires: the caller holds no GIL, as of all that follow.
ModelPtr LoadModel(const LoadOptions& options, const Progress& progress);

// Raises KeyboardInterrupt (or whatever a signal handler raises) in the thread that Ctrl-C reaches.
void CheckSignals();

// Runs requests to their ends, as many at once as the engine takes.
// Returns: ReportJson of each, in order. Errors: as Generation, of any of them before any work.
// Bits:    those of each request alone.
std::vector<std::string> GenerateAll(LoadedModel& model, const std::vector<GenerateRequest>& requests,
                                     const Progress& progress);

// A request on its way, and the text of what it has generated so far.
class TextGeneration {
 public:
  // Errors: as Generation and stoch::TextStream.
  TextGeneration(Engine& engine, const Tokenizer* tokenizer, const GenerateRequest& request);

  bool done() const { return generation_.done(); }
  Generation& generation() { return generation_; }
  // As Generation::Accept; a stop string ends it.
  int64_t Accept(const StepItem& item, int64_t first_row);
  // Text that was not taken before.
  std::string TakeText();
  GenerateResult result() const;  // with all of the text

 private:
  stoch::TextStream stream_;
  Generation generation_;
  std::string text_, fresh_;
};

// One request, text piece by piece. Threads: one at a time.
class TextStream {
 public:
  TextStream(ModelPtr model, GenerateRequest request);
  ~TextStream();
  // The next piece, "" at the end.
  std::string Next();
  // ReportJson. Requires: Next has returned "".
  std::string Report() const { return report_; }

 private:
  ModelPtr model_;
  GenerateRequest request_;
  std::unique_ptr<TextGeneration> generation_;
  PassTimes times_;
  std::string report_;
};

// Logits of every id, F32 [ids.size(), vocab_size].
void ReadAllLogits(LoadedModel& model, std::span<const int32_t> ids, std::span<float> logits, const Progress& progress);
// The residual stream of every id once `layers` decoder layers ran (0: the embeddings), F32 [ids.size(), hidden_size].
// Errors: as Engine::StepWithHidden.
void ReadHidden(LoadedModel& model, std::span<const int32_t> ids, int layers, std::span<float> hidden,
                const Progress& progress);
// sha256 over the logits of `ids` and of all but the last of `new_tokens` greedy ones: what `stoch verify` checks.
std::string HashLogits(LoadedModel& model, const std::vector<int32_t>& ids, int64_t new_tokens);

struct ScoreRequest {
  std::vector<int32_t> context, continuation;
};
struct Score {
  double logprob = 0;  // sum over the continuation, in order
  bool is_greedy = true;
};
// Errors: InvalidInput for an empty context or continuation, ids out of range or too many of them, naming the request.
std::vector<Score> ScoreAll(LoadedModel& model, const std::vector<ScoreRequest>& requests, const Progress& progress);

PerplexityResult Perplexity(LoadedModel& model, std::span<const int32_t> ids, int64_t ctx, int64_t max_windows,
                            const Progress& progress);

}  // namespace stoch::python
