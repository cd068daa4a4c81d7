// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/engine_state.h"
#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "kernels/logit_query_check.h"

namespace stoch {
namespace {

// The queries of an item whose output rows end before `end_row` of the pass.
void AddQueries(const StepItem& item, int32_t end_row, LogitQueries& queries) {
  if (item.output == StepOutput::kNone) return;
  const RowQueries none;
  const RowQueries& asked = item.queries != nullptr ? *item.queries : none;
  const auto rows = static_cast<int32_t>(item.output == StepOutput::kAll ? item.num_tokens : 1);
  STOCH_CHECK(asked.targets.size() <= static_cast<size_t>(rows));
  for (size_t i = 0; i < asked.targets.size(); ++i) {
    LogProbQuery query;
    query.row = end_row - rows + static_cast<int32_t>(i);
    query.id = asked.targets[i];
    query.top = asked.top;
    queries.logprobs.push_back(query);
  }
  queries.wants_logits = queries.wants_logits || asked.picks.empty();
  // The token after the last row is what most callers want, and picking it costs next to nothing.
  const TokenPick likeliest;
  std::span<const TokenPick> picks = asked.picks;
  if (picks.empty() && item.queries == nullptr && item.output == StepOutput::kLast) picks = {&likeliest, 1};
  STOCH_CHECK(picks.size() <= static_cast<size_t>(rows));
  for (size_t i = 0; i < picks.size(); ++i) {
    queries.picks.push_back(picks[i]);
    queries.picks.back().row = end_row - static_cast<int32_t>(picks.size() - i);
    if (asked.top < 0) continue;
    LogProbQuery query;
    query.row = queries.picks.back().row;
    query.pick = static_cast<int32_t>(queries.picks.size()) - 1;
    query.top = asked.top;
    queries.logprobs.push_back(query);
  }
}

}  // namespace

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::~Engine() = default;

std::unique_ptr<Engine> Engine::Open(std::shared_ptr<Backend> backend, ModelFiles files, const EngineOptions& options) {
  STOCH_CHECK(options.draft_tokens == 0 || options.make_drafts);
  const auto start = std::chrono::steady_clock::now();
  auto state = std::make_unique<State>();
  state->options = options;
  if (!state->options.placement) state->options.placement = SingleDevice(files.config, backend->devices().front());
  state->options = FillDefaults(files.config, std::move(state->options));
  state->shape = ShapeOf(files.config, state->options);
  state->backend = std::move(backend);
  state->files = std::move(files);

  DecoderOptions model;
  model.precision = state->options.precision;
  model.sc = state->options.sc;
  model.shape = state->shape;
  model.min_piece_rows = state->options.min_piece_rows;
  model.placement = *state->options.placement;
  model.progress = state->options.on_progress;
  model.ranks = state->options.ranks;
  state->model = std::make_unique<DecoderModel>(*state->backend, state->files, model);
  state->pages = PageAllocator(NumPages(state->shape));
  state->holders.assign(static_cast<size_t>(NumPages(state->shape)), 0);

  state->notices = state->options.notices;
  if (!ChunkInvariant(state->options)) {
    state->notices.push_back(
        "In this SC configuration (" + Describe(state->options.sc) +
        ") results depend on how a prompt is cut into passes: a prompt runs as one window, then every generated token "
        "as a pass of its own.");
  }
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
  state->load_ms = elapsed.count();
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

const std::string& Engine::model_name() const { return state_->files.name; }
const DecoderConfig& Engine::config() const { return state_->files.config; }
const EngineOptions& Engine::options() const { return state_->options; }
const PassShape& Engine::shape() const { return state_->shape; }
Backend& Engine::backend() { return *state_->backend; }
const DecoderModel& Engine::model() const { return *state_->model; }
double Engine::load_ms() const { return state_->load_ms; }
const std::vector<std::string>& Engine::notices() const { return state_->notices; }
bool Engine::chunk_invariant() const { return ChunkInvariant(state_->options); }

std::string Engine::sc_description() const {
  return state_->options.precision == Precision::kSc ? Describe(state_->options.sc) : "";
}

bool Engine::batch_invariant() const { return BatchInvariant(state_->options); }

int64_t Engine::NextTokens(const Sequence& sequence, int64_t budget) const {
  const int64_t limit = std::min(budget, state_->shape.max_rows);
  if (chunk_invariant()) return std::min(sequence.pending(), limit);
  return sequence.pending() <= limit ? sequence.pending() : 0;
}

void Engine::CheckStep(std::span<const StepItem> items) const {
  const auto reject = [](const std::string& what) { throw InvalidInput("a step " + what); };
  if (items.empty()) reject("without sequences has nothing to do");
  if (static_cast<int64_t>(items.size()) > state_->options.max_sequences) {
    reject("of " + std::to_string(items.size()) +
           " sequences exceeds max_sequences = " + std::to_string(state_->options.max_sequences));
  }
  if (items.size() > 1 && !batch_invariant()) {
    reject("of " + std::to_string(items.size()) +
           " sequences would couple them in this SC configuration; allowed is one at a time");
  }
  int64_t rows = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const StepItem& item = items[i];
    STOCH_CHECK(item.sequence != nullptr && item.sequence->engine_ == this);
    if (item.sequence->in_flight_) reject("names a sequence of another that is in flight");
    if (item.num_tokens < 1 || item.num_tokens > item.sequence->pending()) {
      reject("of " + std::to_string(item.num_tokens) + " tokens asks for more than the sequence's pending ones; " +
             "allowed is 1.." + std::to_string(item.sequence->pending()));
    }
    if (item.sequence->computed() + item.num_tokens > item.sequence->room()) {
      reject("of " + std::to_string(item.num_tokens) + " tokens goes beyond the pages of its sequence, which has " +
             Positions(item.sequence->room()));
    }
    for (size_t j = 0; j < i; ++j) {
      if (items[j].sequence == item.sequence) reject("names one sequence twice");
    }
    rows += item.num_tokens;
  }
  if (rows > state_->shape.max_rows) {
    reject("of " + std::to_string(rows) + " rows exceeds the limit of " + std::to_string(state_->shape.max_rows));
  }
}

int64_t Engine::Step(std::span<const StepItem> items) {
  STOCH_CHECK(state_->steps.empty());
  Begin(items);
  return Finish();
}

int64_t Engine::StepWithHidden(std::span<const StepItem> items, int layers, std::span<float> hidden) {
  if (layers < 0 || layers > config().num_hidden_layers) {
    throw InvalidInput("layer " + std::to_string(layers) + ": allowed is 0 (the embeddings).." +
                       std::to_string(config().num_hidden_layers));
  }
  CheckStep(items);
  int64_t rows = 0;
  for (const StepItem& item : items) rows += item.num_tokens;
  STOCH_CHECK(static_cast<int64_t>(hidden.size()) == rows * config().hidden_size);
  state_->model->CopyHidden(layers, hidden.data());
  return Step(items);
}

int64_t Engine::max_steps() const { return state_->shape.lanes; }
int64_t Engine::steps_in_flight() const { return static_cast<int64_t>(state_->steps.size()); }

void Engine::Observe(StepObserver* observer) {
  STOCH_CHECK(observer == nullptr || state_->steps.empty());
  state_->observer = observer;
}

namespace {

// Fills the masks of all items; empty if no item has masks.
std::function<void()> MaskFiller(std::span<const StepItem> items) {
  std::vector<const RowQueries*> masked;
  for (const StepItem& item : items) {
    if (item.queries != nullptr && item.queries->fill_masks) masked.push_back(item.queries);
  }
  if (masked.empty()) return {};
  return [masked = std::move(masked)] {
    for (const RowQueries* queries : masked) queries->fill_masks();
  };
}

}  // namespace

void Engine::Begin(std::span<const StepItem> items) {
  STOCH_CHECK(steps_in_flight() < max_steps());
  state_->ForgetRows();
  CheckStep(items);
  PassLayout layout;
  LogitQueries queries;
  queries.wants_logits = false;
  for (const StepItem& item : items) {
    const Sequence& sequence = *item.sequence;
    const auto first_row = static_cast<int32_t>(layout.ids.size());
    const auto begin = sequence.ids_.begin() + sequence.computed_;
    layout.ids.insert(layout.ids.end(), begin, begin + item.num_tokens);
    layout.sequences.push_back({first_row, static_cast<int32_t>(item.num_tokens),
                                static_cast<int32_t>(sequence.computed_), sequence.page_numbers_, sequence.number_});
    const auto end_row = static_cast<int32_t>(layout.ids.size());
    if (item.output == StepOutput::kLast) layout.output_rows.push_back(end_row - 1);
    for (int32_t row = first_row; item.output == StepOutput::kAll && row < end_row; ++row) {
      layout.output_rows.push_back(row);
    }
    AddQueries(item, static_cast<int32_t>(layout.output_rows.size()), queries);
  }
  (void)CheckLogitQueries(queries, LogitQueryLimitsOf(config(), state_->shape));
  State::InFlight step;
  step.items.assign(items.begin(), items.end());
  step.output_rows = static_cast<int64_t>(layout.output_rows.size());
  step.picked.assign(layout.output_rows.size(), -1);
  step.logprob_of.assign(layout.output_rows.size(), -1);
  for (size_t i = 0; i < queries.picks.size(); ++i) {
    step.picked[static_cast<size_t>(queries.picks[i].row)] = static_cast<int32_t>(i);
  }
  for (size_t i = 0; i < queries.logprobs.size(); ++i) {
    step.logprob_of[static_cast<size_t>(queries.logprobs[i].row)] = static_cast<int32_t>(i);
  }
  state_->steps.push_back(std::move(step));
  for (const StepItem& item : items) item.sequence->in_flight_ = true;
  if (state_->observer != nullptr) state_->observer->OnBegin(items);
  try {
    state_->model->Begin(layout, queries, MaskFiller(items));
  } catch (...) {
    Abandon();
    throw;
  }
}

int64_t Engine::Finish() {
  STOCH_CHECK(!state_->steps.empty());
  state_->ForgetRows();
  try {
    state_->model->Finish();
  } catch (...) {
    Abandon();
    throw;
  }
  if (state_->observer != nullptr) state_->observer->OnFinish();
  State::InFlight& step = state_->steps.front();
  for (const StepItem& item : step.items) {
    if (item.sequence == nullptr) continue;
    item.sequence->computed_ += item.num_tokens;
    item.sequence->in_flight_ = false;
  }
  state_->output_rows = step.output_rows;
  state_->picked = std::move(step.picked);
  state_->logprob_of = std::move(step.logprob_of);
  const std::span<const int32_t> picks = state_->model->picked();
  state_->picks.assign(picks.begin(), picks.end());
  const std::span<const LogProbAnswer> answers = state_->model->logprobs();
  state_->answers.assign(answers.begin(), answers.end());
  state_->steps.pop_front();
  return state_->output_rows;
}

void Engine::Forget(const Sequence* sequence) {
  for (State::InFlight& step : state_->steps) {
    for (StepItem& item : step.items) {
      if (item.sequence == sequence) item.sequence = nullptr;
    }
  }
}

void Engine::Abandon() {
  for (const State::InFlight& step : state_->steps) {
    for (const StepItem& item : step.items) {
      if (item.sequence != nullptr) item.sequence->in_flight_ = false;
    }
  }
  state_->steps.clear();
  if (state_->observer != nullptr) state_->observer->OnAbandon();
  try {
    state_->model->Abandon();
  } catch (const DeviceError&) {
    // The device is gone: what its caller throws is the first that was heard of it, or the next step hears of it.
  }
}

// ------------------------------------------------------------------------------------------------ output rows ----

void Engine::ForLogits(int64_t first, int64_t count, const std::function<void(const TensorView&, int64_t)>& read) {
  STOCH_CHECK(first >= 0 && count >= 0 && first + count <= state_->output_rows);
  for (int64_t done = 0; done < count;) {
    const int64_t block = std::min(count - done, state_->shape.max_logit_rows);
    read(state_->model->Logits(first + done, block), done);
    done += block;
  }
}

void Engine::ReadLogits(int64_t first, int64_t count, float* logits) {
  ForLogits(first, count, [&](const TensorView& block, int64_t offset) {
    state_->backend->CopyToHost(logits + offset * config().vocab_size, block);
  });
}

int32_t Engine::PickedToken(int64_t row) const {
  STOCH_CHECK(row >= 0 && row < state_->output_rows && state_->picked[static_cast<size_t>(row)] >= 0);
  const int32_t id = state_->picks[static_cast<size_t>(state_->picked[static_cast<size_t>(row)])];
  if (id < 0) throw InvalidInput("a logit, with its bias and penalties, is NaN or infinite");
  return id;
}

const LogProbAnswer& Engine::LogProb(int64_t row) const {
  STOCH_CHECK(row >= 0 && row < state_->output_rows && state_->logprob_of[static_cast<size_t>(row)] >= 0);
  return state_->answers[static_cast<size_t>(state_->logprob_of[static_cast<size_t>(row)])];
}

void Engine::Argmax(int64_t first, std::span<int32_t> ids) {
  ForLogits(first, static_cast<int64_t>(ids.size()), [&](const TensorView& block, int64_t offset) {
    Buffer& shared = state_->argmax_ids;
    if (shared.data() == nullptr) {
      shared = state_->backend->AllocateShared(block.device, state_->shape.max_logit_rows * int64_t{sizeof(int32_t)});
    }
    state_->backend->Argmax(block, MakeView(shared.data(), DType::kI32, block.device, block.dim(0)));
    state_->backend->Synchronize(block.device);
    std::copy_n(static_cast<const int32_t*>(shared.data()), block.dim(0), ids.begin() + offset);
  });
}

}  // namespace stoch
