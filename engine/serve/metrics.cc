// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <mutex>

namespace stoch::serve {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;

const Histogram::BucketBoundaries kLatency = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                              1,     2.5,    5,     10,   25,    50,   100, 250,  1000};

}  // namespace

struct Metrics::State {
  prometheus::Registry registry;
  std::mutex naming;
  std::string model_name;  // "" until it is known
  std::mutex totals;       // of counters that are set: several scrapes at once must not add the same twice

  // A counter of something that is counted elsewhere.
  void SetTotal(Counter& counter, double total) {
    const std::lock_guard lock(totals);
    const double more = total - counter.Value();
    if (more > 0) counter.Increment(more);
  }

  Gauge& AddGauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
  }
  Counter& AddCounter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({});
  }
  Histogram& AddHistogram(const char* name, const char* help) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, kLatency);
  }

  Gauge& running = AddGauge("stoch_requests_running", "Sequences in the batch");
  Gauge& waiting = AddGauge("stoch_requests_waiting", "Sequences in the queue");
  Gauge& kv_usage = AddGauge("stoch_kv_cache_usage_ratio", "Share of the KV cache that sequences hold, 0 to 1");
  Counter& prompt_tokens = AddCounter("stoch_prompt_tokens_total", "Prompt tokens of requests that started");
  Counter& reused_tokens =
      AddCounter("stoch_prompt_tokens_reused_total", "Prompt tokens whose keys and values were there");
  Counter& generated_tokens = AddCounter("stoch_generated_tokens_total", "Tokens generated");
  Counter& drafted = AddCounter("stoch_draft_tokens_total", "Guessed tokens that passes checked");
  Counter& drafts_accepted = AddCounter("stoch_draft_tokens_accepted_total", "Guessed tokens that were right");
  prometheus::Family<Counter>& finished = prometheus::BuildCounter()
                                              .Name("stoch_requests_finished_total")
                                              .Help("Sequences that ended, by reason")
                                              .Register(registry);
  prometheus::Family<Counter>& responses = prometheus::BuildCounter()
                                               .Name("stoch_http_responses_total")
                                               .Help("HTTP responses, by status")
                                               .Register(registry);
  Counter& refused_connections =
      AddCounter("stoch_http_connections_refused_total", "Connections beyond the limit, or that could not be accepted");
  Counter& dropped_log_lines =
      AddCounter("stoch_log_lines_dropped_total", "Lines that nobody took from standard error in time");
  prometheus::Family<Gauge>& device_bytes = prometheus::BuildGauge()
                                                .Name("stoch_device_memory_bytes")
                                                .Help("Memory of a worker's devices; used: by all processes")
                                                .Register(registry);
  Counter& restarts = AddCounter("stoch_worker_restarts_total", "Workers that were lost and started again");
  Counter& ranks_lost =
      AddCounter("stoch_ranks_lost_total", "Workers on ranks that were lost while they served, whichever rank it was");
  prometheus::Family<Gauge>& hops = prometheus::BuildGauge()
                                        .Name("stoch_rank_hop_seconds")
                                        .Help("A row from one rank to another, as measured when the model was loaded")
                                        .Register(registry);
  prometheus::Family<Counter>& rank_waits = prometheus::BuildCounter()
                                                .Name("stoch_rank_waited_seconds_total")
                                                .Help("Seconds that rank 0 waited for rows of the last rank")
                                                .Register(registry);
  Counter& replays = AddCounter("stoch_sequences_replayed_total", "Sequences that went on after the loss of a worker");
  Counter& preemptions = AddCounter("stoch_sequences_preempted_total",
                                    "Sequences that gave their pages back for older ones, to go on later");
  Counter& blamed = AddCounter("stoch_sequences_refused_total", "Sequences that were blamed for three losses");
  Histogram& queue_time = AddHistogram("stoch_queue_time_seconds", "From arrival to admission");
  Histogram& first_token = AddHistogram("stoch_time_to_first_token_seconds", "From arrival to the first token");
  Histogram& inter_token = AddHistogram("stoch_inter_token_latency_seconds", "Between two tokens of a sequence");
  Histogram& end_to_end = AddHistogram("stoch_request_latency_seconds", "From arrival to the last token");
};

Metrics::Metrics() : state_(std::make_unique<State>()) {
  // Present from the start, so that rates over them are defined.
  for (const char* reason : {"stop", "length", "cancelled", "error"}) state_->finished.Add({{"reason", reason}});
}
Metrics::~Metrics() = default;

void Metrics::SetLoad(const JobRunner::Load& load) {
  state_->running.Set(static_cast<double>(load.running));
  state_->waiting.Set(static_cast<double>(load.waiting));
  state_->kv_usage.Set(load.kv_usage);
}
void Metrics::AddPromptTokens(int64_t tokens) { state_->prompt_tokens.Increment(static_cast<double>(tokens)); }
void Metrics::AddReusedTokens(int64_t tokens) { state_->reused_tokens.Increment(static_cast<double>(tokens)); }
void Metrics::AddGeneratedTokens(int64_t tokens) { state_->generated_tokens.Increment(static_cast<double>(tokens)); }
void Metrics::AddDrafts(int64_t drafted, int64_t accepted) {
  state_->drafted.Increment(static_cast<double>(drafted));
  state_->drafts_accepted.Increment(static_cast<double>(accepted));
}
void Metrics::CountFinished(std::string_view reason) {
  state_->finished.Add({{"reason", std::string(reason)}}).Increment();
}
void Metrics::CountResponse(int status) { state_->responses.Add({{"code", std::to_string(status)}}).Increment(); }
void Metrics::CountRefusedConnection() { state_->refused_connections.Increment(); }
void Metrics::SetDroppedLogLines(uint64_t lines) {
  state_->SetTotal(state_->dropped_log_lines, static_cast<double>(lines));
}
void Metrics::SetFaults(const JobRunner::Faults& faults) {
  state_->SetTotal(state_->restarts, static_cast<double>(faults.restarts));
  state_->SetTotal(state_->ranks_lost, static_cast<double>(faults.ranks_lost));
  state_->SetTotal(state_->replays, static_cast<double>(faults.replays));
  state_->SetTotal(state_->preemptions, static_cast<double>(faults.preemptions));
  state_->SetTotal(state_->blamed, static_cast<double>(faults.refused));
}
void Metrics::SetWorkers(const std::vector<JobRunner::Worker>& workers) {
  for (size_t i = 0; i < workers.size(); ++i) {
    const auto set = [&](const char* kind, int64_t bytes) {
      state_->device_bytes.Add({{"worker", std::to_string(i)}, {"kind", kind}}).Set(static_cast<double>(bytes));
    };
    set("total", workers[i].device_bytes);
    set("used", workers[i].device_used_bytes);
    const std::vector<double>& hops = workers[i].hop_seconds;
    for (size_t from = 0; from < hops.size(); ++from) {
      state_->hops
          .Add({{"worker", std::to_string(i)},
                {"from", std::to_string(from)},
                {"to", std::to_string((from + 1) % hops.size())}})
          .Set(hops[from]);
    }
    if (hops.empty()) continue;
    state_->SetTotal(state_->rank_waits.Add({{"worker", std::to_string(i)}, {"rank", std::to_string(hops.size() - 1)}}),
                     workers[i].rank_waited_seconds);
  }
}
void Metrics::SetBuild(const std::string& version, const std::string& commit) {
  prometheus::BuildGauge()
      .Name("stoch_build_info")
      .Help("1; the labels say what is running")
      .Register(state_->registry)
      .Add({{"version", version}, {"commit", commit}})
      .Set(1);
}
void Metrics::ObserveQueueTime(double seconds) { state_->queue_time.Observe(seconds); }
void Metrics::ObserveTimeToFirstToken(double seconds) { state_->first_token.Observe(seconds); }
void Metrics::ObserveInterToken(double seconds) { state_->inter_token.Observe(seconds); }
void Metrics::ObserveEndToEnd(double seconds) { state_->end_to_end.Observe(seconds); }

void Metrics::SetModel(const std::string& name) {
  const std::lock_guard lock(state_->naming);
  state_->model_name = name;
}

std::string Metrics::Text() const {
  std::vector<prometheus::MetricFamily> families = state_->registry.Collect();
  std::string model;
  {
    const std::lock_guard lock(state_->naming);
    model = state_->model_name;
  }
  for (prometheus::MetricFamily& family : families) {
    if (model.empty()) break;
    for (prometheus::ClientMetric& metric : family.metric) metric.label.push_back({"model_name", model});
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace stoch::serve
