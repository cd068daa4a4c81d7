// SPDX-License-Identifier: Apache-2.0
#include "engine/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "engine/logprobs.h"
#include "engine/perplexity.h"
#include "tests/engine/logits_cases.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/letters_tokenizer.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

class GenerateTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void Open(const std::shared_ptr<Backend>& backend, const char* settings = "", int64_t pass_rows = 0) {
    model_ = TinyLogitsModel(scratch_.path());
    EngineOptions options = OptionsOf({"", Precision::kSc, settings});
    if (pass_rows > 0) options.max_pass_rows = pass_rows;
    engine_ = Engine::Open(backend, OpenModelFiles(model_.folder.string()), options);
  }

  GenerateRequest Request(int64_t max_tokens, size_t prompt_tokens = 8) const {
    GenerateRequest request;
    request.prompt.assign(model_.prompt.begin(), model_.prompt.begin() + static_cast<std::ptrdiff_t>(prompt_tokens));
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    return request;
  }

  TempDir scratch_;
  LogitsModel model_;
  std::unique_ptr<Engine> engine_;
  LettersTokenizer tokenizer_;
};

TEST_P(GenerateTest, StreamsTheTextItReturns) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Open(backend);
  std::string streamed;
  int64_t prompt_done = 0;
  GenerateCallbacks callbacks;
  callbacks.on_text = [&](std::string_view text) { streamed += text; };
  callbacks.on_prompt = [&](int64_t done, int64_t total) {
    prompt_done = done;
    EXPECT_EQ(total, 8);
  };
  const GenerateResult result = Generate(*engine_, &tokenizer_, Request(20), callbacks);
  EXPECT_EQ(prompt_done, 8);
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  ASSERT_EQ(result.ids.size(), 20u);
  EXPECT_EQ(result.text, tokenizer_.Decode(result.ids));
  EXPECT_EQ(streamed, result.text);
  EXPECT_EQ(engine_->free_tokens(), 3 * 128);  // the pages are back
  EXPECT_GE(result.timings.ttft_ms, result.timings.prompt_ms);
  EXPECT_GT(result.timings.ms_per_token, 0);
}

TEST_P(GenerateTest, StopsAtStringsIdsAndEndOfSequence) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Open(backend);
  const GenerateResult whole = Generate(*engine_, &tokenizer_, Request(20));

  GenerateRequest request = Request(20);
  request.stop = {whole.text.substr(5, 3)};
  const size_t stop_at = whole.text.find(request.stop[0]);
  std::string streamed;
  GenerateCallbacks callbacks;
  callbacks.on_text = [&](std::string_view text) { streamed += text; };
  const GenerateResult stopped = Generate(*engine_, &tokenizer_, request, callbacks);
  EXPECT_EQ(stopped.finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped.text, whole.text.substr(0, stop_at));
  EXPECT_EQ(streamed, stopped.text);
  EXPECT_LE(stopped.ids.size(), stop_at + 3);

  request = Request(20);
  request.stop_ids = {whole.ids[4]};
  const auto first =
      static_cast<size_t>(std::find(whole.ids.begin(), whole.ids.end(), whole.ids[4]) - whole.ids.begin());
  const GenerateResult by_id = Generate(*engine_, &tokenizer_, request);
  EXPECT_EQ(by_id.finish_reason, FinishReason::kStop);
  EXPECT_EQ(by_id.ids,
            std::vector<int32_t>(whole.ids.begin(), whole.ids.begin() + static_cast<std::ptrdiff_t>(first) + 1));
  EXPECT_EQ(by_id.text, whole.text.substr(0, first));

  // The model's own end of sequence, forced by a bias.
  request = Request(20);
  request.ignore_eos = false;
  request.sampling.logit_bias = {{2, 1000.0f}};
  const GenerateResult ended = Generate(*engine_, &tokenizer_, request);
  EXPECT_EQ(ended.finish_reason, FinishReason::kStop);
  EXPECT_EQ(ended.ids, std::vector<int32_t>{2});
  request.ignore_eos = true;
  EXPECT_EQ(Generate(*engine_, &tokenizer_, request).ids, std::vector<int32_t>(20, 2));
}

TEST_P(GenerateTest, TextContinuesThePromptAndEndsWhole) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Open(backend);
  const auto forced = [&](int32_t id, std::vector<std::string> stop) {
    GenerateRequest request = Request(2);
    request.sampling.logit_bias = {{id, 1000.0f}};
    request.stop = std::move(stop);
    return Generate(*engine_, &tokenizer_, request).text;
  };
  EXPECT_EQ(forced(0, {}), "  ");  // the first space is one of the text
  EXPECT_EQ(forced(95, {}), "\uFFFD\uFFFD");
  EXPECT_EQ(forced('z' - ' ', {"zzz"}), "zz");  // held back until the end
  EXPECT_EQ(forced('z' - ' ', {"zz"}), "");
}

TEST_P(GenerateTest, TheContextIsALimitNotAnError) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Open(backend);
  const GenerateResult result = Generate(*engine_, &tokenizer_, Request(-1, 60));
  EXPECT_EQ(result.ids.size(), 128u - 60u);
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  EXPECT_EQ(Generate(*engine_, &tokenizer_, Request(1000, 60)).ids, result.ids);

  GenerateRequest full = Request(5);
  full.prompt.assign(128, 7);
  EXPECT_EQ(Generate(*engine_, nullptr, full).finish_reason, FinishReason::kLength);
  full.prompt.assign(129, 7);
  ExpectInvalid([&] { Generate(*engine_, nullptr, full); }, {"prompt", "129", "128"});
}

TEST_P(GenerateTest, CancelKeepsWhatIsThere) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Open(backend);
  std::atomic<bool> cancel = false;
  std::string streamed;
  GenerateCallbacks callbacks;
  callbacks.cancel = &cancel;
  callbacks.on_text = [&](std::string_view text) {
    streamed += text;
    cancel = streamed.size() >= 4;
  };
  const GenerateResult result = Generate(*engine_, &tokenizer_, Request(50), callbacks);
  EXPECT_EQ(result.finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(result.ids.size(), 4u);
  EXPECT_EQ(result.text, streamed);
}

TEST_P(GenerateTest, LogprobsAndHashComeFromTheRawLogits) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Open(backend);
  GenerateRequest request = Request(6);
  request.top_logprobs = 3;
  request.prompt_logprobs = true;
  request.hash_logits = true;
  const GenerateResult result = Generate(*engine_, &tokenizer_, request);
  ASSERT_EQ(result.logprobs.size(), 6u);
  ASSERT_EQ(result.prompt_logprobs.size(), request.prompt.size());
  EXPECT_FALSE(result.prompt_logprobs[0].has_value());

  // The same tokens once more, scored by the backend in one pass.
  std::vector<int32_t> ids = request.prompt;
  ids.insert(ids.end(), result.ids.begin(), result.ids.end());
  const auto sequence = engine_->NewSequence(static_cast<int64_t>(ids.size()));
  sequence->Append(ids);
  RowQueries queries;
  queries.top = 3;
  queries.targets = std::span(ids).subspan(1);
  const StepItem item{sequence.get(), static_cast<int64_t>(ids.size()), StepOutput::kAll, &queries};
  engine_->Step({&item, 1});
  for (size_t i = 1; i < ids.size(); ++i) {
    const bool in_prompt = i < request.prompt.size();
    const TokenLogprob& token = in_prompt ? *result.prompt_logprobs[i] : result.logprobs[i - request.prompt.size()];
    const LogProbAnswer& answer = engine_->LogProb(static_cast<int64_t>(i) - 1);
    EXPECT_EQ(token.logprob, answer.logprob) << i;
    ASSERT_EQ(token.top.size(), 3u);
    ASSERT_EQ(answer.top, 3);
    std::vector<float> row(96);
    engine_->ReadLogits(static_cast<int64_t>(i) - 1, 1, row.data());
    const auto top = TopLogProbs(row, ComputeLogSum(row), 3);
    EXPECT_EQ(token.top, top) << i;
    for (int k = 0; k < 3; ++k) EXPECT_EQ(std::pair(answer.top_ids[k], answer.top_logprobs[k]), top[k]) << i;
    EXPECT_EQ(token.logprob, ComputeLogSum(row).LogProb(row[static_cast<size_t>(ids[i])])) << i;
  }
  LogitsHash hash;
  std::vector<float> rows(6 * 96);
  engine_->ReadLogits(7, 6, rows.data());
  hash.Add(rows);
  EXPECT_EQ(result.logits_sha256, hash.Hex());
}

TEST_P(GenerateTest, PromptLogprobsWithoutGeneration) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Open(backend);
  GenerateRequest request = Request(0);
  request.top_logprobs = 1;
  request.prompt_logprobs = true;
  const GenerateResult result = Generate(*engine_, &tokenizer_, request);
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  EXPECT_TRUE(result.ids.empty());
  EXPECT_EQ(result.prompt_logprobs.size(), request.prompt.size());
  EXPECT_EQ(Generate(*engine_, nullptr, Request(0)).finish_reason, FinishReason::kLength);
}

TEST_P(GenerateTest, SampledTextDependsOnTheSeedAlone) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Open(backend);
  GenerateRequest request = Request(24);
  request.sampling.temperature = 1.5;
  request.sampling.seed = 3;
  const GenerateResult first = Generate(*engine_, &tokenizer_, request);
  EXPECT_EQ(Generate(*engine_, &tokenizer_, request).ids, first.ids);
  request.sampling.seed = 4;
  EXPECT_NE(Generate(*engine_, &tokenizer_, request).ids, first.ids);
}

// What a server does: requests of different ages in one pass. Each must come out as if it were alone.
TEST_P(GenerateTest, ABatchGivesEveryRequestItsOwnAnswer) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Open(backend);
  std::vector<GenerateRequest> requests = {Request(12, 30), Request(20, 3), Request(5, 17)};
  SamplingOptions& varied = requests[1].sampling;
  varied.temperature = 0.8;
  varied.top_p = 0.95;
  varied.repeat_penalty = 1.2;
  varied.frequency_penalty = 0.3;
  varied.logit_bias = {{7, 2.5f}, {11, -100.0f}};
  requests[1].top_logprobs = 3;
  requests[2].sampling.temperature = 1.5;
  requests[2].sampling.top_k = 20;
  requests[2].sampling.min_p = 0.01;
  requests[2].top_logprobs = 2;
  requests[2].prompt_logprobs = true;
  std::vector<GenerateResult> alone;
  for (GenerateRequest& request : requests) {
    request.hash_logits = true;
    alone.push_back(Generate(*engine_, &tokenizer_, request));
  }

  std::vector<std::unique_ptr<Generation>> batch;
  for (size_t pass = 0; pass < 100; ++pass) {
    if (pass < requests.size()) {
      batch.push_back(std::make_unique<Generation>(*engine_, requests[pass]));
    }
    std::vector<StepItem> items;
    std::vector<Generation*> running;
    int64_t budget = 16;  // prompts are cut
    for (const auto& generation : batch) {
      if (generation->done()) continue;
      const StepItem item = generation->Next(budget);
      if (item.num_tokens == 0) continue;
      budget -= item.num_tokens;
      items.push_back(item);
      running.push_back(generation.get());
    }
    if (items.empty()) break;
    engine_->Step(items);
    int64_t row = 0;
    for (size_t i = 0; i < items.size(); ++i) row += running[i]->Accept(items[i], row);
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(batch[i]->done());
    EXPECT_EQ(batch[i]->result().ids, alone[i].ids);
    EXPECT_EQ(batch[i]->result().logits_sha256, alone[i].logits_sha256);
    ASSERT_EQ(batch[i]->result().logprobs.size(), alone[i].logprobs.size());
    for (size_t j = 0; j < alone[i].logprobs.size(); ++j) {
      EXPECT_EQ(batch[i]->result().logprobs[j].logprob, alone[i].logprobs[j].logprob);
      EXPECT_EQ(batch[i]->result().logprobs[j].top, alone[i].logprobs[j].top);
    }
    for (size_t j = 1; j < alone[i].prompt_logprobs.size(); ++j) {
      EXPECT_EQ(batch[i]->result().prompt_logprobs[j]->logprob, alone[i].prompt_logprobs[j]->logprob);
    }
  }
}

// An engine that has lost a sequence goes on after the ids that it had told of, with the same bits.
TEST_P(GenerateTest, GoesOnAfterEmittedIds) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const char* settings : {"", "chunk_d=0,granularity=per_tensor"}) {
    Open(backend, settings);
    EXPECT_EQ(engine_->chunk_invariant(), *settings == '\0');
    for (const bool hash : {false, true}) {
      GenerateRequest request = Request(12);
      request.sampling.temperature = 1.2;
      request.sampling.frequency_penalty = 0.5;
      request.top_logprobs = 2;
      request.prompt_logprobs = true;
      request.hash_logits = hash;
      const GenerateResult whole = Generate(*engine_, nullptr, request);
      for (const std::ptrdiff_t told : {1, 5, 11}) {
        SCOPED_TRACE(std::string(settings) + (hash ? " hash " : " ") + std::to_string(told));
        request.emitted.assign(whole.ids.begin(), whole.ids.begin() + told);
        const GenerateResult rest = Generate(*engine_, nullptr, request);
        EXPECT_EQ(rest.ids, whole.ids);
        EXPECT_EQ(rest.finish_reason, whole.finish_reason);
        EXPECT_EQ(rest.logits_sha256, whole.logits_sha256);
        ASSERT_EQ(rest.logprobs.size(), whole.logprobs.size() - static_cast<size_t>(told));
        for (size_t i = 0; i < rest.logprobs.size(); ++i) {
          EXPECT_EQ(rest.logprobs[i].logprob, whole.logprobs[i + static_cast<size_t>(told)].logprob);
          EXPECT_EQ(rest.logprobs[i].top, whole.logprobs[i + static_cast<size_t>(told)].top);
        }
      }
      request.emitted = whole.ids;
      ExpectInvalid([&] { Generate(*engine_, nullptr, request); }, {"12 emitted tokens", "max_tokens = 12"});
    }
  }
}

TEST_P(GenerateTest, RefusesBadRequests) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Open(backend);
  const auto refused = [&](const GenerateRequest& request, std::initializer_list<std::string_view> parts) {
    ExpectInvalid([&] { Generate(*engine_, nullptr, request); }, parts);
    EXPECT_EQ(engine_->free_tokens(), 3 * 128);
  };
  GenerateRequest request = Request(4);
  request.prompt.clear();
  refused(request, {"prompt", "empty"});
  request = Request(4);
  request.prompt[3] = 96;
  refused(request, {"96", "index 3", "0..95"});
  request.prompt[3] = -1;
  refused(request, {"-1", "index 3"});
  request = Request(-2);
  refused(request, {"max_tokens", "-2"});
  request = Request(4);
  request.sampling.top_p = 2;
  refused(request, {"top_p", "2"});
  request = Request(4);
  request.prompt_logprobs = true;
  refused(request, {"prompt_logprobs", "top_logprobs"});
  request = Request(4);
  request.stop = {"x"};
  refused(request, {"stop", "tokenizer"});
}

TEST_P(GenerateTest, PerplexityIsTheMeanOverWindows) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Open(backend);
  std::vector<int32_t> ids = model_.prompt;  // 70 tokens: two windows of 32 and a tail
  PerplexityOptions options;
  options.ctx = 32;
  std::vector<float> logits;
  std::vector<int32_t> targets;
  int windows = 0;
  options.on_logits = [&](const TensorView& rows, std::span<const int32_t> predicted) {
    const size_t before = logits.size();
    logits.resize(before + static_cast<size_t>(rows.numel()));
    backend->CopyToHost(logits.data() + before, rows);
    targets.insert(targets.end(), predicted.begin(), predicted.end());
  };
  options.on_window = [&](const PerplexityResult& so_far, int64_t total) {
    EXPECT_EQ(so_far.windows, ++windows);
    EXPECT_EQ(total, 2);
  };
  const PerplexityResult result = EvaluatePerplexity(*engine_, ids, options);
  EXPECT_EQ(windows, 2);
  EXPECT_EQ(result.predictions, 62);
  std::vector<int32_t> expected_targets(ids.begin() + 1, ids.begin() + 32);
  expected_targets.insert(expected_targets.end(), ids.begin() + 33, ids.begin() + 64);
  ASSERT_EQ(targets, expected_targets);
  double nll = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const std::span<const float> row(logits.data() + i * 96, 96);
    nll -= ComputeLogSum(row).LogProb(row[static_cast<size_t>(targets[i])]);
  }
  EXPECT_NEAR(result.mean_nll, nll / 62, 1e-12);
  EXPECT_NEAR(result.ppl, std::exp(nll / 62), 1e-9);
  EXPECT_GT(result.ppl_error, 0);
  options.max_windows = 1;
  windows = 0;
  options.on_window = nullptr;
  EXPECT_EQ(EvaluatePerplexity(*engine_, ids, options).predictions, 31);
  options.ctx = 71;
  ExpectInvalid([&] { EvaluatePerplexity(*engine_, ids, options); }, {"70", "71"});
  options.ctx = 129;
  ExpectInvalid([&] { EvaluatePerplexity(*engine_, ids, options); }, {"ctx", "129", "128"});
}

class StepCounter : public StepObserver {
 public:
  void OnBegin(std::span<const StepItem> items) override {
    ++steps;
    most = std::max(most, items.size());
  }
  void OnFinish() override {}
  void OnAbandon() override {}

  int steps = 0;
  size_t most = 0;  // sequences of one
};

// Windows in one pass, as many as the engine has sequences for, have the logits and the sums of windows alone.
TEST_P(GenerateTest, WindowsOfAPassScoreAsAlone) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Open(backend);
  PerplexityOptions options;
  options.ctx = 10;  // of 70 tokens
  std::vector<float> logits;
  options.on_logits = [&](const TensorView& rows, std::span<const int32_t>) {
    const size_t before = logits.size();
    logits.resize(before + static_cast<size_t>(rows.numel()));
    backend->CopyToHost(logits.data() + before, rows);
  };
  std::vector<int64_t> windows;
  options.on_window = [&](const PerplexityResult& so_far, int64_t) { windows.push_back(so_far.windows); };
  const auto evaluate = [&](StepCounter* counter) {
    logits.clear();
    windows.clear();
    engine_->Observe(counter);
    const PerplexityResult result = EvaluatePerplexity(*engine_, model_.prompt, options);
    engine_->Observe(nullptr);
    EXPECT_EQ(windows, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7}));
    return result;
  };
  StepCounter together;
  const PerplexityResult shared = evaluate(&together);
  const std::vector<float> shared_logits = logits;
  EXPECT_EQ(together.steps, 3);
  EXPECT_EQ(together.most, 3u);
  Open(backend, "", 25);  // two windows and a half
  StepCounter in_parts;
  const PerplexityResult cut = evaluate(&in_parts);
  EXPECT_EQ(in_parts.steps, 3);
  EXPECT_EQ(in_parts.most, 3u);
  EXPECT_EQ(shared_logits, logits);
  EXPECT_EQ(shared.mean_nll, cut.mean_nll);
  StepCounter apart;
  options.on_begin = [](std::span<const int32_t> window) { EXPECT_EQ(window.size(), 10u); };
  const PerplexityResult alone = evaluate(&apart);
  EXPECT_EQ(apart.steps, 7);
  EXPECT_EQ(apart.most, 1u);
  EXPECT_EQ(shared_logits, logits);
  EXPECT_EQ(shared.predictions, 63);
  EXPECT_EQ(shared.mean_nll, alone.mean_nll);
  EXPECT_EQ(shared.ppl_error, alone.ppl_error);
  // Settings that couple the sequences of a pass: one window each.
  Open(backend, "chunk_d=0,granularity=per_tensor");
  options.on_begin = nullptr;
  StepCounter coupled;
  evaluate(&coupled);
  EXPECT_EQ(coupled.most, 1u);
}

TEST(FitWindows, ManyShortOnesOrOneLongOne) {
  const auto fit = [](int64_t ctx, DeviceKind kind, const char* settings = "") {
    EngineOptions options;
    options.context = ctx;
    if (*settings != '\0') options.sc = ParseScModelConfig(std::vector<std::string>{settings});
    FitWindows(ctx, kind, &options);
    return options;
  };
  EXPECT_EQ(fit(128, DeviceKind::kCpu).max_pass_rows, 512);
  EXPECT_EQ(fit(128, DeviceKind::kCpu).max_sequences, 4);
  EXPECT_EQ(fit(128, DeviceKind::kCpu).kv_tokens, 4 * 128);
  EngineOptions longer;
  longer.context = 8192;
  FitWindows(100, DeviceKind::kCpu, &longer);  // five windows of two pages, and a part of one
  EXPECT_EQ(longer.kv_tokens, 8192);
  longer.kv_tokens = 0;
  longer.context = 100;
  FitWindows(100, DeviceKind::kCpu, &longer);
  EXPECT_EQ(longer.kv_tokens, 6 * 128);
  EXPECT_EQ(fit(2048, DeviceKind::kCpu).max_pass_rows, 2048);
  EXPECT_EQ(fit(2048, DeviceKind::kCpu).max_sequences, 1);
  EXPECT_EQ(fit(512, DeviceKind::kCuda).max_pass_rows, 0);  // the usual number
  EXPECT_EQ(fit(512, DeviceKind::kCuda).max_sequences, 5);  // four and a part in 2112 rows
  EXPECT_EQ(fit(2048, DeviceKind::kCuda).max_sequences, 2);
  EXPECT_EQ(fit(2048, DeviceKind::kCuda).kv_tokens, 2 * 2048);
  EXPECT_EQ(fit(512, DeviceKind::kCuda, "attention=per_head").max_sequences, 4);  // windows that may not be cut
  EXPECT_EQ(fit(8192, DeviceKind::kCuda).max_pass_rows, 0);
  EXPECT_EQ(fit(8192, DeviceKind::kCuda).max_sequences, 1);
  EXPECT_EQ(fit(2, DeviceKind::kCuda).max_sequences, 64);
  EXPECT_EQ(fit(128, DeviceKind::kCpu, "chunk_d=0,granularity=per_tensor").max_sequences, 1);
}

INSTANTIATE_TEST_SUITE_P(Backends, GenerateTest, testing::ValuesIn(OneOfEachBackend()),
                         [](const auto& param) { return param.param.Name(); });

}  // namespace
}  // namespace stoch::test
