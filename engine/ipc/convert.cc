// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/convert.h"

#include <cmath>
#include <string>

#include "kernels/base/error.h"

namespace stoch::ipc {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 40;
constexpr int64_t kMostSequences = int64_t{1} << 20;
constexpr int kMostRanks = 64;

void Require(bool condition, const char* what) {
  if (!condition) throw InvalidInput(std::string("a message of a worker, or a row of a journal, has a bad ") + what);
}

template <class Repeated>
void RequireIds(const Repeated& ids) {
  for (const int32_t id : ids) Require(id >= 0, "token id");
}

template <class Repeated, class T>
void Fill(const std::vector<T>& values, Repeated* field) {
  field->Assign(values.begin(), values.end());
}

void Fill(const TokenLogprob& logprob, Logprob* message) {
  message->set_known(true);
  message->set_logprob(logprob.logprob);
  for (const auto& [id, value] : logprob.top) {
    message->add_top_ids(id);
    message->add_top_logprobs(value);
  }
}

void Check(const Logprob& logprob) {
  Require(logprob.top_ids_size() == logprob.top_logprobs_size(), "logprob");
  RequireIds(logprob.top_ids());
}

void Check(const Update& update) {
  RequireIds(update.ids());
  for (const Logprob& logprob : update.prompt_logprobs()) Check(logprob);
  for (const Logprob& logprob : update.logprobs()) Check(logprob);
  Require(update.finish() <= static_cast<uint32_t>(FinishReason::kCancelled), "finish reason");
  const int status = update.error_status();
  Require(status == 0 || (status >= 400 && status < 600), "status");
  Require(std::isfinite(update.queue_seconds()) && update.queue_seconds() >= 0, "time");
  Require(update.drafts_accepted() >= 0 && update.drafts_accepted() <= update.drafted(), "count of drafts");
}

void Check(const Hello& hello) {
  Require(hello.vocab_size() > 0 && hello.vocab_size() <= kMostTokens, "vocab_size");
  Require(hello.context() > 0 && hello.context() <= kMostTokens, "context");
  Require(hello.kv_tokens() >= 0 && hello.kv_tokens() <= kMostTokens, "kv_tokens");
  Require(hello.max_sequences() > 0 && hello.max_sequences() <= kMostSequences, "max_sequences");
  Require(hello.hop_seconds_size() <= kMostRanks, "count of ranks");
  for (const double seconds : hello.hop_seconds()) Require(std::isfinite(seconds) && seconds >= 0, "time of a hop");
}

TokenLogprob LogprobOf(const Logprob& message) {
  TokenLogprob logprob{message.logprob(), {}};
  for (int i = 0; i < message.top_ids_size(); ++i)
    logprob.top.emplace_back(message.top_ids(i), message.top_logprobs(i));
  return logprob;
}

}  // namespace

Start ToMessage(uint64_t job, const GenerateRequest& request) {
  Start start;
  start.set_job(job);
  Fill(request.prompt, start.mutable_prompt());
  Fill(request.emitted, start.mutable_emitted());
  start.set_max_tokens(request.max_tokens);
  const SamplingOptions& from = request.sampling;
  Sampling& to = *start.mutable_sampling();
  to.set_temperature(from.temperature);
  to.set_top_p(from.top_p);
  to.set_top_k(from.top_k);
  to.set_min_p(from.min_p);
  to.set_repeat_penalty(from.repeat_penalty);
  to.set_presence_penalty(from.presence_penalty);
  to.set_frequency_penalty(from.frequency_penalty);
  for (const auto& [id, bias] : from.logit_bias) {
    to.add_bias_ids(id);
    to.add_biases(bias);
  }
  to.set_seed(from.seed);
  to.set_choice(from.choice);
  Fill(request.stop_ids, start.mutable_stop_ids());
  start.set_ignore_eos(request.ignore_eos);
  start.set_top_logprobs(request.top_logprobs);
  start.set_prompt_logprobs(request.prompt_logprobs);
  start.set_hash_logits(request.hash_logits);
  start.set_cache_salt(request.cache_salt);
  start.set_grammar_kind(static_cast<uint32_t>(request.grammar.kind));
  start.set_grammar(request.grammar.text);
  return start;
}

GenerateRequest FromMessage(const Start& start) {
  Require(start.sampling().bias_ids_size() == start.sampling().biases_size(), "bias");
  GenerateRequest request;
  request.prompt.assign(start.prompt().begin(), start.prompt().end());
  request.emitted.assign(start.emitted().begin(), start.emitted().end());
  request.max_tokens = start.max_tokens();
  const Sampling& from = start.sampling();
  SamplingOptions& to = request.sampling;
  to.temperature = from.temperature();
  to.top_p = from.top_p();
  to.top_k = from.top_k();
  to.min_p = from.min_p();
  to.repeat_penalty = from.repeat_penalty();
  to.presence_penalty = from.presence_penalty();
  to.frequency_penalty = from.frequency_penalty();
  for (int i = 0; i < from.bias_ids_size(); ++i) to.logit_bias.push_back({from.bias_ids(i), from.biases(i)});
  to.seed = from.seed();
  to.choice = from.choice();
  request.stop_ids.assign(start.stop_ids().begin(), start.stop_ids().end());
  request.ignore_eos = start.ignore_eos();
  request.top_logprobs = start.top_logprobs();
  request.prompt_logprobs = start.prompt_logprobs();
  request.hash_logits = start.hash_logits();
  request.cache_salt = start.cache_salt();
  Require(start.grammar_kind() <= static_cast<uint32_t>(GrammarSpec::Kind::kStructuralTag), "grammar");
  request.grammar = {static_cast<GrammarSpec::Kind>(start.grammar_kind()), start.grammar()};
  return request;
}

Update ToMessage(uint64_t job, const serve::JobUpdate& update) {
  Update message;
  message.set_job(job);
  for (const auto& logprob : update.prompt_logprobs) {
    Logprob* added = message.add_prompt_logprobs();
    if (logprob) Fill(*logprob, added);
  }
  Fill(update.ids, message.mutable_ids());
  for (const TokenLogprob& logprob : update.logprobs) Fill(logprob, message.add_logprobs());
  message.set_logits_sha256(update.logits_sha256);
  message.set_finish(static_cast<uint32_t>(update.finish));
  message.set_error_status(update.error_status);
  message.set_error(update.error);
  message.set_queue_seconds(update.queue_seconds);
  message.set_reused_tokens(update.reused_tokens);
  message.set_drafted(update.drafted);
  message.set_drafts_accepted(update.drafts_accepted);
  return message;
}

serve::JobUpdate FromMessage(const Update& message) {
  Check(message);
  serve::JobUpdate update;
  for (const Logprob& logprob : message.prompt_logprobs()) {
    auto& added = update.prompt_logprobs.emplace_back();
    if (logprob.known()) added = LogprobOf(logprob);
  }
  update.ids.assign(message.ids().begin(), message.ids().end());
  for (const Logprob& logprob : message.logprobs()) update.logprobs.push_back(LogprobOf(logprob));
  update.logits_sha256 = message.logits_sha256();
  update.finish = static_cast<FinishReason>(message.finish());
  update.error_status = message.error_status();
  update.error = message.error();
  update.queue_seconds = message.queue_seconds();
  update.reused_tokens = message.reused_tokens();
  update.drafted = message.drafted();
  update.drafts_accepted = message.drafts_accepted();
  return update;
}

Hello ToMessage(const serve::ServedModel& model) {
  Hello hello;
  hello.set_name(model.name);
  hello.set_vocab_size(model.vocab_size);
  hello.set_context(model.context);
  hello.set_precision(model.precision);
  hello.set_sc(model.sc);
  hello.set_device(model.device);
  hello.set_kv_tokens(model.kv_tokens);
  return hello;
}

serve::ServedModel FromMessage(const Hello& hello) {
  Check(hello);
  return {hello.name(), hello.vocab_size(), hello.context(),  hello.precision(),
          hello.sc(),   hello.device(),     hello.kv_tokens()};
}

void SetParts(const serve::ModelParts& parts, Hello* hello) {
  for (const auto& [name, value] : parts) {
    Part* part = hello->add_parts();
    part->set_name(name);
    part->set_value(value);
  }
}

serve::ModelParts PartsOf(const Hello& hello) {
  serve::ModelParts parts;
  for (const Part& part : hello.parts()) {
    Require(parts.emplace(part.name(), part.value()).second, "part of a model");
  }
  return parts;
}

void Check(const FromWorker& message) {
  Require(message.running() >= 0 && message.waiting() >= 0 && message.preemptions() >= 0, "count");
  Require(std::isfinite(message.kv_usage()), "kv_usage");
  Require(message.device_bytes() >= 0, "size of memory");
  Require(std::isfinite(message.rank_waited_seconds()) && message.rank_waited_seconds() >= 0, "time");
  if (message.has_hello()) {
    Check(message.hello());
    (void)PartsOf(message.hello());
  }
  for (const Update& update : message.updates()) Check(update);
}

}  // namespace stoch::ipc
