// SPDX-License-Identifier: Apache-2.0
// Generation: many requests at once, or one piece by piece.

#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "app/report/generate.h"
#include "kernels/base/check.h"
#include "python/src/base/devices.h"
#include "python/src/model.h"

namespace nb = nanobind;

namespace stoch::python {
namespace {

GenerateRequest WithTokenizerStops(const Tokenizer* tokenizer, GenerateRequest request) {
  AddTokenizerStops(tokenizer, &request);
  return request;
}

}  // namespace

TextGeneration::TextGeneration(Engine& engine, const Tokenizer* tokenizer, const GenerateRequest& request)
    : stream_(tokenizer, request.prompt, request.stop), generation_(engine, WithTokenizerStops(tokenizer, request)) {}

int64_t TextGeneration::Accept(const StepItem& item, int64_t first_row) {
  const int64_t rows = generation_.Accept(item, first_row, [this](int32_t id) {
    fresh_ += stream_.Push(id);
    return !stream_.stopped();
  });
  if (done()) fresh_ += stream_.Finish();
  return rows;
}

std::string TextGeneration::TakeText() {
  text_ += fresh_;
  return std::exchange(fresh_, {});
}

GenerateResult TextGeneration::result() const {
  GenerateResult result = generation_.result();
  result.text = text_ + fresh_;
  return result;
}

namespace {

struct Running {
  size_t index;
  std::unique_ptr<TextGeneration> generation;
};

// Positions that a request reserves.
int64_t Reserved(const Engine& engine, const GenerateRequest& request) {
  const int64_t context = engine.options().context;
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t most = request.max_tokens < 0 ? context : std::min(context, prompt + request.max_tokens);
  return RoundUpToPages(std::max(most, prompt));
}

// One pass over what runs, none of which is done.
void StepAll(Engine& engine, const std::vector<TextGeneration*>& running, PassTimes& times) {
  std::vector<Generation*> generations;
  for (TextGeneration* each : running) generations.push_back(&each->generation());
  const std::vector<std::vector<DraftedToken>> drafts = DraftsForPass(generations, times);
  const bool prefills =
      std::any_of(generations.begin(), generations.end(), [](const Generation* each) { return each->prefilling(); });
  std::vector<StepItem> items;
  std::vector<TextGeneration*> owners;
  int64_t budget = engine.shape().max_rows;
  for (size_t i = 0; i < running.size() && budget > 0; ++i) {
    const StepItem item = generations[i]->Next(budget, drafts[i]);
    if (item.num_tokens == 0) continue;
    items.push_back(item);
    owners.push_back(running[i]);
    budget -= item.num_tokens;
  }
  STOCH_CHECK(!items.empty());
  const auto start = std::chrono::steady_clock::now();
  engine.Step(items);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  if (prefills) {
    times.AddPrompt(engine.shape().max_rows - budget, took.count());
  } else {
    times.Add(engine.shape().max_rows - budget, took.count());
  }
  int64_t row = 0;
  for (size_t i = 0; i < items.size(); ++i) row += owners[i]->Accept(items[i], row);
}

}  // namespace

std::vector<std::string> GenerateAll(LoadedModel& model, const std::vector<GenerateRequest>& requests,
                                     const Progress& progress) {
  Engine& engine = *model.engine;
  for (const GenerateRequest& request : requests) {
    Validate(request.sampling, engine.config().vocab_size);
    const TextGeneration checked(engine, model.tokenizer.get(), request);
  }
  const size_t most = engine.batch_invariant() ? static_cast<size_t>(engine.shape().max_sequences) : 1;
  std::vector<std::string> reports(requests.size());
  std::vector<Running> running;
  PassTimes times;
  size_t next = 0;
  size_t done = 0;
  while (done < requests.size()) {
    while (next < requests.size() && running.size() < most &&
           (running.empty() || engine.free_tokens() >= Reserved(engine, requests[next]))) {
      running.push_back({next, std::make_unique<TextGeneration>(engine, model.tokenizer.get(), requests[next])});
      ++next;
    }
    CheckSignals();
    if (std::any_of(running.begin(), running.end(), [](const Running& each) { return !each.generation->done(); })) {
      // What is done already (no token was wanted) runs nothing.
      std::erase_if(running, [&](const Running& each) {
        if (!each.generation->done()) return false;
        reports[each.index] = cli::ReportJson(engine, requests[each.index], each.generation->result());
        ++done;
        return true;
      });
      std::vector<TextGeneration*> all;
      for (const Running& each : running) all.push_back(each.generation.get());
      StepAll(engine, all, times);
    }
    const size_t before = done;
    std::erase_if(running, [&](const Running& each) {
      if (!each.generation->done()) return false;
      reports[each.index] = cli::ReportJson(engine, requests[each.index], each.generation->result());
      ++done;
      return true;
    });
    if (progress && done > before) {
      const nb::gil_scoped_acquire gil;
      progress(static_cast<int64_t>(done), static_cast<int64_t>(requests.size()), "generating");
    }
  }
  return reports;
}

TextStream::TextStream(ModelPtr model, GenerateRequest request)
    : model_(std::move(model)), request_(std::move(request)) {
  const std::lock_guard lock(model_->mutex);
  Validate(request_.sampling, model_->engine->config().vocab_size);
  generation_ = std::make_unique<TextGeneration>(*model_->engine, model_->tokenizer.get(), request_);
}

TextStream::~TextStream() {
  if (WasForked()) {
    (void)generation_.release();
    return;
  }
  const std::lock_guard lock(model_->mutex);
  generation_.reset();
}

std::string TextStream::Next() {
  RequireNotForked();
  const std::lock_guard lock(model_->mutex);
  if (generation_ == nullptr) return {};
  Engine& engine = *model_->engine;
  while (!generation_->done()) {
    CheckSignals();
    StepAll(engine, {generation_.get()}, times_);
    std::string text = generation_->TakeText();
    if (!text.empty()) return text;
  }
  std::string rest = generation_->TakeText();
  if (!rest.empty()) return rest;
  report_ = cli::ReportJson(engine, request_, generation_->result());
  generation_.reset();
  return {};
}

}  // namespace stoch::python
