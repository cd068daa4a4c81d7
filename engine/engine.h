// SPDX-License-Identifier: Apache-2.0
// A loaded model with its KV cache, stepped pass by pass over any set of sequences.
//
// Generation (engine/generate.h), perplexity (engine/perplexity.h), benchmarks and the server are loops around
// Engine::Step. Logits of a sequence are the same bits alone or next to others wherever the configuration is
// batch-invariant, and however it is cut into passes wherever it is chunk-invariant (sc_model_config.h).
//
// Threads: one thread at a time per Engine, its sequences included.
// Errors:  InvalidInput for anything a caller can get wrong, before any work; DeviceError from the device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_options.h"
#include "kernels/backend.h"
#include "loader/checkpoint/weight_store.h"
#include "models/decoder/decoder_model.h"

namespace stoch {

class Engine;

// One page of the KV cache: kKvPageTokens positions of one sequence, or of several that begin alike. It is free again
// once nobody holds it. Must not outlive its Engine, and is of its thread.
using KvPage = std::shared_ptr<const int32_t>;

// The tokens of one request and the cache pages they use. Pages are reserved when it is made, or taken as it grows, and
// go back when it dies. A token is pending until a step ran it. Must not outlive its Engine; may die while a step over
// it is in flight, which then goes on for the others.
class Sequence {
 public:
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;
  ~Sequence();

  // Appends tokens. Errors: InvalidInput for an id outside the vocabulary (index named) or beyond capacity.
  void Append(std::span<const int32_t> ids);
  // Forgets every token from position `length` on. Requires: 0 <= length <= ids().size(), no page that others hold too
  // loses a token, and no step over it is in flight.
  void Truncate(int64_t length);

  const std::vector<int32_t>& ids() const { return ids_; }
  int64_t computed() const { return computed_; }  // tokens whose keys and values are in the cache
  int64_t pending() const { return static_cast<int64_t>(ids_.size()) - computed_; }
  int64_t capacity() const { return capacity_; }  // positions it may grow to
  // Positions whose pages it has; steps may compute no others.
  int64_t room() const;
  // Takes the pages of its first `tokens` positions, so that room() >= tokens. Returns: false, having taken none, where
  // too few are free just now. Requires: tokens <= capacity(), and no step over it is in flight.
  bool Grow(int64_t tokens);
  // Which faults its rows meet (`fault_seed` of help sc): the index of a window, else 0. Keys and values are shared
  // between equal numbers only. Requires for set_number: no step ran it.
  uint32_t number() const { return number_; }
  void set_number(uint32_t number) { number_ = number; }
  // Page i, for sequences that begin with the same tokens. Requires: all of its positions are computed.
  const KvPage& page(int64_t i) const;

 private:
  friend class Engine;
  Sequence(Engine* engine, int64_t capacity, std::vector<KvPage> pages);

  Engine* engine_;
  int64_t capacity_;
  int64_t computed_ = 0;
  bool in_flight_ = false;  // in a step that has not been finished
  uint32_t number_ = 0;
  std::vector<int32_t> ids_;
  std::vector<KvPage> pages_;
  std::vector<int32_t> page_numbers_;
};

enum class StepOutput : uint8_t {
  kNone,  // no logits
  kLast,  // logits of the last row of the item
  kAll,   // logits of every row of the item
};

// What a step finds out about an item's output rows, on the device: the host reads no logits.
struct RowQueries {
  std::vector<TokenPick> picks;      // the tokens after the last rows, one each, in order; their `row` is not read
  int top = -1;                      // 0 or more: log-probability of those too, and of so many alternatives each
  std::span<const int32_t> targets;  // kAll: for the first rows, a token each whose log-probability is wanted
  // Writes the masks that the picks refer to; until then, too, each mask allows at least one token. Begin calls it
  // while the devices run the layers, and again if the step is begun again. Must not throw.
  std::function<void()> fill_masks;
};

// The share of one sequence in a pass: its next `num_tokens` pending tokens (1..pending()).
struct StepItem {
  Sequence* sequence = nullptr;
  int64_t num_tokens = 0;
  StepOutput output = StepOutput::kLast;
  // Read by Begin, with all that it refers to. nullptr with kLast: the likeliest token.
  const RowQueries* queries = nullptr;
};

// Sees the steps of an engine, for counting what they take. Calls come from the engine's thread.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void OnBegin(std::span<const StepItem> items) = 0;  // before an op of it is issued
  virtual void OnFinish() = 0;                                // of the step that began first
  virtual void OnAbandon() = 0;                               // all steps in flight are as if they had not begun
};

class Engine {
 public:
  // Loads the weights of `files` onto the backend's devices. Keeps what it needs of both.
  // Errors: InvalidInput (files, shapes, configuration), DeviceError (memory).
  static std::unique_ptr<Engine> Open(std::shared_ptr<Backend> backend, ModelFiles files, const EngineOptions& options);
  ~Engine();

  const std::string& model_name() const;
  const DecoderConfig& config() const;
  const EngineOptions& options() const;  // with every default filled in
  const PassShape& shape() const;
  Backend& backend();
  const DecoderModel& model() const;
  std::string sc_description() const;  // Describe(options().sc), "" where the precision is not sc
  bool batch_invariant() const;        // true for exact precisions
  bool chunk_invariant() const;
  double load_ms() const;
  // Sentences a user should see once, such as that prompts run as one window in this configuration.
  const std::vector<std::string>& notices() const;

  // A sequence that may grow to `capacity` tokens, with its pages reserved: it never runs out of memory later. nullptr
  // where too few pages are free just now.
  // Errors: InvalidInput for a capacity below 1, beyond the context, or beyond the whole cache.
  std::unique_ptr<Sequence> NewSequence(int64_t capacity);
  // The same with tokens `ids` in it, the first of which need no Step: `pages` hold their keys and values.
  // Requires: chunk_invariant() unless pages is empty; pages.size() * kKvPageTokens < ids.size(); the pages are those
  //         of a sequence with these first tokens, in order.
  // reserved: false = pages of `ids` only; Sequence::Grow takes the others.
  std::unique_ptr<Sequence> NewSequence(int64_t capacity, std::span<const int32_t> ids, std::span<const KvPage> pages,
                                        bool reserved = true);
  int64_t free_tokens() const;  // positions of free pages
  // Positions of pages that no sequence holds; those of `but` do not count.
  int64_t unheld_tokens(std::span<const KvPage> but = {}) const;

  // How many pending tokens of `sequence` the next pass should take, at most `budget` rows: all of them where the
  // configuration is not chunk-invariant (0 if they do not fit in the budget).
  int64_t NextTokens(const Sequence& sequence, int64_t budget) const;

  // One pass over the items, which appends their tokens to the cache. Output rows are numbered from 0 in item order and
  // stay readable until the next Step.
  // Returns: the number of output rows.
  // Errors: InvalidInput for no items, a sequence given twice, num_tokens out of range or beyond room(), more rows than
  //         shape().max_rows or more items than max_sequences, several items where the configuration is not
  //         batch-invariant, NaN or infinity in an activation (layer and operator named). After an error the
  //         sequences are as before.
  int64_t Step(std::span<const StepItem> items);

  // A Step that also copies the residual stream of its rows, F32 [rows of the step, hidden_size], once `layers` decoder
  // layers ran (0: the embeddings). Errors: as Step, and InvalidInput for layers beyond 0..num_hidden_layers.
  int64_t StepWithHidden(std::span<const StepItem> items, int layers, std::span<float> hidden);

  // A Step in two halves, so that several are in flight, over different sequences: where a model is split by layers,
  // every device then works on another one. They finish in the order they began.
  // Begin checks and begins one, Finish waits for the one that began first.
  // Returns:  Finish what Step does, about that step; its output rows stay readable until the next Begin or Finish.
  // Errors:   as Step, which of them it may be. A Begin that refuses its items changes nothing. After another error no
  //           step is in flight, and all sequences are as if those that were had not begun.
  // Requires: Begin: steps_in_flight() < max_steps(). Finish: a step is in flight. Step: none is.
  void Begin(std::span<const StepItem> items);
  int64_t Finish();
  int64_t steps_in_flight() const;
  int64_t max_steps() const;  // 1 unless layers are split over devices
  // Shows steps from now on to `observer`, which outlives that; null ends it. Requires: null, or no step is in flight.
  void Observe(StepObserver* observer);

  // Output rows of the last step; each waits for the device.
  // Hands over logits of rows [first, first + count) where they are, block by block: `block` F32 [rows, vocab_size] on
  // their device, of the rows from first + offset on, at most shape().max_logit_rows. It holds until `read` returns.
  void ForLogits(int64_t first, int64_t count,
                 const std::function<void(const TensorView& block, int64_t offset)>& read);
  // The same to host memory: F32 [count, vocab_size].
  void ReadLogits(int64_t first, int64_t count, float* logits);
  // Argmax of rows [first, first + ids.size()), ties to the lower id.
  void Argmax(int64_t first, std::span<int32_t> ids);

  // Answers to the queries of the last step's items; nothing waits.
  // The token picked after a row. Errors: InvalidInput if a logit, with biases and penalties, is not finite.
  // Requires: a pick of that row was asked for.
  int32_t PickedToken(int64_t row) const;
  // Requires: a log-probability of that row was asked for.
  const LogProbAnswer& LogProb(int64_t row) const;

 private:
  friend class Sequence;
  struct State;
  explicit Engine(std::unique_ptr<State> state);
  void CheckStep(std::span<const StepItem> items) const;
  void Forget(const Sequence* sequence);
  bool TakePages(int64_t count, std::vector<KvPage>* pages);
  void Abandon();

  std::unique_ptr<State> state_;
};

}  // namespace stoch
