// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/job.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "engine/ranks/facts.h"
#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/json_text.h"
#include "models/decoder/decoder_model.h"

namespace stoch {
namespace {

using Json = nlohmann::ordered_json;

// Why rank 0 tells of a model.
constexpr const char* kToLoad = "load";
constexpr const char* kToDescribe = "describe";

constexpr size_t kMostRowBytes = size_t{1} << 19;  // that are measured

size_t RowBytes(const DecoderConfig& config) {
  return std::min(kMostRowBytes, static_cast<size_t>(config.hidden_size) * sizeof(float));
}

int64_t BytesOfEnds(const MemoryPlan& plan) { return plan.rest.weights + plan.rest.scales + plan.rest.embedding; }

// A model that rank 0 opens, as the text that it sends to the other ranks.
struct Opening {
  std::string purpose, model;
  std::vector<RankFact> facts;
  std::vector<int64_t> layers;
  EngineOptions options;
  int64_t lanes = 1;
  size_t row_bytes = 0;  // of the residual stream, for hops that are measured
};

std::string TextOf(const Opening& opening) {
  const EngineOptions& options = opening.options;
  Json facts = Json::array();
  for (const RankFact& fact : opening.facts) facts.push_back({fact.name, fact.value});
  return JsonText(Json{{"purpose", opening.purpose},
                       {"model", opening.model},
                       {"facts", facts},
                       {"layers", opening.layers},
                       {"precision", PrecisionName(options.precision)},
                       {"sc", options.precision == Precision::kSc ? Describe(options.sc) : ""},
                       {"context", options.context},
                       {"max_sequences", options.max_sequences},
                       {"kv_tokens", options.kv_tokens},
                       {"max_pass_rows", options.max_pass_rows},
                       {"draft_tokens", options.draft_tokens},
                       {"lanes", opening.lanes},
                       {"row_bytes", opening.row_bytes}});
}

Opening OpeningOf(const std::string& text) {
  const nlohmann::json json = ParseBoundedJson(text, "what rank 0 tells of a model");
  Opening opening;
  try {
    opening.purpose = json.at("purpose").get<std::string>();
    opening.model = json.at("model").get<std::string>();
    for (const auto& fact : json.at("facts")) {
      opening.facts.push_back({fact.at(0).get<std::string>(), fact.at(1).get<std::string>()});
    }
    opening.layers = json.at("layers").get<std::vector<int64_t>>();
    EngineOptions& options = opening.options;
    options.precision = ParsePrecision(json.at("precision").get<std::string>());
    const auto sc = json.at("sc").get<std::string>();
    if (options.precision == Precision::kSc) options.sc = ParseScModelConfig(std::vector<std::string>{sc});
    options.context = json.at("context").get<int64_t>();
    options.max_sequences = json.at("max_sequences").get<int64_t>();
    options.kv_tokens = json.at("kv_tokens").get<int64_t>();
    options.max_pass_rows = json.at("max_pass_rows").get<int64_t>();
    options.draft_tokens = json.at("draft_tokens").get<int64_t>();
    opening.lanes = json.at("lanes").get<int64_t>();
    opening.row_bytes = json.at("row_bytes").get<size_t>();
  } catch (const nlohmann::json::exception& error) {
    throw InvalidInput(std::string("what rank 0 tells of a model: ") + error.what());
  }
  if (opening.row_bytes > kMostRowBytes) throw InvalidInput("rank 0 has rows of too many bytes");
  if (opening.lanes < 1 || opening.lanes > kMaxRanks) throw InvalidInput("rank 0 has passes out of range in flight");
  return opening;
}

// A model that rank 0 has opened, on this rank.
struct FollowedModel {
  std::shared_ptr<Backend> backend;
  ModelFiles files;
  std::unique_ptr<DecoderModel> model;
};

// The model of this rank, checked and placed; nothing of it is loaded.
FollowedModel Prepare(RankLink& link, const FollowerOptions& options, const Opening& opening, EngineOptions* engine) {
  FollowedModel followed;
  followed.files = OpenModelFiles(options.model.empty() ? opening.model : options.model);
  CheckFacts(FactsOf(options.build, followed.files), opening.facts);
  const bool fits = static_cast<int>(opening.layers.size()) == link.count() &&
                    std::all_of(opening.layers.begin(), opening.layers.end(), [](int64_t n) { return n >= 1; }) &&
                    std::accumulate(opening.layers.begin(), opening.layers.end(), int64_t{0}) ==
                        followed.files.config.num_hidden_layers;
  if (!fits) throw InvalidInput("the layers of all ranks are not those of the model");
  followed.backend = options.open_backend();
  *engine = opening.options;
  const IndexRange local = LayersOfRank(opening.layers, link.rank());
  engine->placement = options.place(followed.files, *followed.backend, local, link.count(), engine);
  *engine = FillDefaults(followed.files.config, std::move(*engine));
  return followed;
}

void Load(RankLink& link, const EngineOptions& engine, int64_t lanes, FollowedModel* followed) {
  DecoderOptions model;
  model.precision = engine.precision;
  model.sc = engine.sc;
  model.shape = ShapeOf(followed->files.config, engine);
  model.shape.lanes = lanes;
  model.placement = *engine.placement;
  model.ranks = &link;
  link.HeartbeatTo(0);
  model.progress = [&link](const LoadProgress& progress) {
    link.Heartbeat(LoadedBytes{progress.done_bytes, progress.total_bytes});
  };
  followed->model = std::make_unique<DecoderModel>(*followed->backend, followed->files, model);
}

// Microseconds of a text of this size from each rank to the next: rank after rank asks its next one, which answers.
// Rank 0 hears that others live, these do not hear it of each other.
double MeasureHop(RankLink& link, size_t bytes) {
  using Clock = std::chrono::steady_clock;
  constexpr int kTrips = 20;
  const std::string row(bytes, '.');
  const RankLink::Wait wait = link.rank() == 0 ? RankLink::Wait::kIdle : RankLink::Wait::kOpening;
  double hop_us = 0;
  for (int from = 0; from < link.count(); ++from) {
    const int to = (from + 1) % link.count();
    if (link.rank() == to) {
      for (int i = 0; i <= kTrips; ++i) SendText(link, from, TakeText(link, from, wait));
    }
    if (link.rank() != from) continue;
    Clock::time_point begin;
    for (int i = 0; i <= kTrips; ++i) {
      if (i == 1) begin = Clock::now();  // the first one waits for the other rank to come here
      SendText(link, to, row);
      (void)TakeText(link, to, wait);
    }
    hop_us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / (2 * kTrips);
  }
  return hop_us;
}

// A rank's answer to a text that tells of a model.
struct Answer {
  std::string refused;   // "": it is ready
  int64_t limit_ms = 0;  // limit(kLimit) of its devices
  RankReport report;
};

std::string TextOf(const Answer& answer) {
  return JsonText(Json{{"refused", answer.refused},
                       {"limit_ms", answer.limit_ms},
                       {"host", answer.report.host},
                       {"about", answer.report.about},
                       {"hop_us", answer.report.hop_us},
                       {"stream_bytes", answer.report.stream_bytes},
                       {"kv_bytes", answer.report.kv_bytes}});
}

Answer AnswerOf(const std::string& text, int rank) {
  try {
    const nlohmann::json json = ParseBoundedJson(text, "its answer");
    Answer answer{json.at("refused").get<std::string>(), json.at("limit_ms").get<int64_t>(), {}};
    answer.report = {rank,
                     json.at("host").get<std::string>(),
                     json.at("about").get<std::string>(),
                     json.at("hop_us").get<double>(),
                     json.at("stream_bytes").get<int64_t>(),
                     json.at("kv_bytes").get<int64_t>()};
    return answer;
  } catch (const std::exception& error) {
    throw LostRank(rank, std::string("answered what cannot be read: ") + error.what());
  }
}

}  // namespace

std::vector<int64_t> DivideLayers(const MemoryPlan& plan, int ranks) {
  const auto num_layers = static_cast<int64_t>(plan.layers.size());
  if (ranks < 2 || ranks > kMaxRanks || ranks > num_layers) {
    throw InvalidInput(std::to_string(ranks) + " ranks: allowed is 2.." +
                       std::to_string(std::min<int64_t>(kMaxRanks, num_layers)) + " for " + std::to_string(num_layers) +
                       " layers");
  }
  int64_t left = BytesOfEnds(plan);
  for (const MemoryBytes& layer : plan.layers) left += layer.total();
  std::vector<int64_t> layers;
  int64_t used = BytesOfEnds(plan);  // of this rank
  int64_t next = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t others = ranks - rank - 1;
    int64_t count = 0;
    // Up to its share, a layer that is half inside included; every rank has one, and leaves one to each that follows.
    while (next < num_layers - others) {
      const int64_t bytes = plan.layers[static_cast<size_t>(next)].total();
      if (count > 0 && others > 0 && (used + bytes / 2) * (others + 1) > left) break;
      used += bytes;
      ++next;
      ++count;
    }
    left -= used;
    used = 0;
    layers.push_back(count);
  }
  return layers;
}

std::vector<int64_t> ParseRankLayers(const std::string& option, const std::string& text, int ranks,
                                     int64_t num_layers) {
  std::vector<int64_t> layers;
  const char* at = text.data();
  const char* const end = at + text.size();
  bool good = true;
  while (good && at <= end) {
    const auto [next, error] = std::from_chars(at, end, layers.emplace_back());
    good = error == std::errc() && layers.back() >= 1 && layers.back() <= num_layers && (next == end || *next == ',');
    at = next + 1;
  }
  const bool fits = good && static_cast<int>(layers.size()) == ranks &&
                    std::accumulate(layers.begin(), layers.end(), int64_t{0}) == num_layers;
  if (fits) return layers;
  throw InvalidInput(option + " " + text + ": expected " + std::to_string(ranks) + " numbers, at least 1, that are " +
                     std::to_string(num_layers) + " layers together");
}

IndexRange LayersOfRank(std::span<const int64_t> layers, int rank) {
  IndexRange range;
  for (int before = 0; before < rank; ++before) range.begin += layers[static_cast<size_t>(before)];
  range.end = range.begin + layers[static_cast<size_t>(rank)];
  return range;
}

namespace {

void TellAlive(RankLink& link, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any changed;
  std::unique_lock lock(mutex);
  try {
    const auto ends = [&stop] { return stop.stop_requested(); };
    while (!changed.wait_for(lock, stop, std::chrono::seconds(1), ends)) SendAlive(link);
  } catch (const LostRank&) {  // whoever waits for that rank next says so
  }
}

}  // namespace

RankJob::RankJob(RankLink& link, std::string build, std::string host)
    : link_(link),
      build_(std::move(build)),
      host_(std::move(host)),
      alive_([this](const std::stop_token& stop) { TellAlive(link_, stop); }) {}

void RankJob::Tell(const std::string& purpose, const std::string& model, const ModelFiles& files,
                   const EngineOptions& options, std::span<const int64_t> layers) {
  Close();
  if (options.precision == Precision::kSc && !(options.sc.files == ScModelFiles{})) {
    throw InvalidInput("--ranks: files of --mp, --smooth and --mask are not told to other ranks");
  }
  const EngineOptions filled = FillDefaults(files.config, options);
  Opening opening{purpose, model, FactsOf(build_, files), {layers.begin(), layers.end()},
                  filled,  1,     RowBytes(files.config)};
  opening.lanes = ShapeOf(files.config, filled).lanes;
  const std::string text = TextOf(opening);
  others_.assign(static_cast<size_t>(link_.count() - 1), {});
  for (int to = 1; to < link_.count(); ++to) SendText(link_, to, text);
}

LoadedBytes RankJob::HearOthers(std::chrono::milliseconds most) {
  LoadedBytes all;
  for (size_t i = 0; i < others_.size(); ++i) {
    Other& other = others_[i];
    while (!other.answer) {
      std::optional<LoadingWord> word = HearLoading(link_, static_cast<int>(i) + 1, most);
      if (!word) break;
      other.heard = std::chrono::steady_clock::now();
      if (word->gets_on) other.got_on = other.heard;
      if (word->loaded) other.loaded = *word->loaded;
      if (!word->text) continue;
      other.answer = std::move(word->text);
      other.loaded.done = other.loaded.total;
    }
    all.done += other.loaded.done;
    all.total += other.loaded.total;
  }
  return all;
}

std::vector<RankReport> RankJob::TakeAnswers(const std::function<void(const LoadedBytes& others)>& on_loaded) {
  constexpr std::chrono::milliseconds kTurn(100);
  const auto begin = std::chrono::steady_clock::now();
  for (Other& other : others_) other.heard = other.got_on = begin;
  const auto has_answer = [](const Other& other) { return other.answer.has_value(); };
  while (!std::all_of(others_.begin(), others_.end(), has_answer)) {
    const LoadedBytes loaded = HearOthers(kTurn);
    if (on_loaded) on_loaded(loaded);
    const auto now = std::chrono::steady_clock::now();
    for (size_t i = 0; i < others_.size(); ++i) {
      if (others_[i].answer) continue;
      const int rank = static_cast<int>(i) + 1;
      const std::chrono::milliseconds limit = link_.limit(RankLink::Wait::kOpening);
      if (now - others_[i].heard >= link_.limit(RankLink::Wait::kIdle)) {
        throw SilentRank(link_, rank, RankLink::Wait::kIdle);
      }
      if (now - others_[i].got_on < limit) continue;
      throw LostRank(rank, "lives, and loads nothing for " + std::to_string(limit.count()) + " ms");
    }
  }
  std::vector<RankReport> reports;
  std::string first;
  for (int from = 1; from < link_.count(); ++from) {
    const Answer answer = AnswerOf(*others_[static_cast<size_t>(from - 1)].answer, from);
    reports.push_back(answer.report);
    link_.HearLimit(from, std::chrono::milliseconds(answer.limit_ms));
    if (static_cast<int>(hosts_.size()) < from) hosts_.push_back(answer.report.host);
    if (answer.refused.empty() || !first.empty()) continue;
    first = "rank " + std::to_string(from) + " (" + answer.report.host + "): " + answer.refused;
  }
  if (first.empty()) return reports;
  Close();
  throw InvalidInput(first);
}

void RankJob::Open(const std::string& model, const ModelFiles& files, const EngineOptions& options,
                   std::span<const int64_t> layers) {
  Tell(kToLoad, model, files, options, layers);
  is_open_ = true;
  hop_us_ = MeasureHop(link_, RowBytes(files.config));
}

void RankJob::Await(const std::function<void(const LoadedBytes& others)>& on_loaded) {
  reports_ = TakeAnswers(on_loaded);
  RankReport own;
  own.host = host_;
  own.hop_us = hop_us_;
  reports_.insert(reports_.begin(), std::move(own));
}

std::vector<RankReport> RankJob::Describe(const std::string& model, const ModelFiles& files,
                                          const EngineOptions& options, std::span<const int64_t> layers,
                                          const std::string& about) {
  Tell(kToDescribe, model, files, options, layers);
  const double hop_us = MeasureHop(link_, RowBytes(files.config));
  std::vector<RankReport> reports = TakeAnswers();
  RankReport own;
  own.host = host_;
  own.about = about;
  own.hop_us = hop_us;
  reports.insert(reports.begin(), std::move(own));
  return reports;
}

void RankJob::Close() {
  if (std::exchange(is_open_, false)) SendClose(link_);
}

void RankJob::End() {
  Close();
  alive_ = {};  // what they hear last is this
  for (int to = 1; to < link_.count(); ++to) SendText(link_, to, "");
}

void RankJob::OnStuck(std::function<void(const std::string&)> on_stuck) {
  const std::lock_guard lock(stuck_mutex_);
  on_stuck_ = std::move(on_stuck);
}

void RankJob::TellStuck(const std::string& why) {
  const std::lock_guard lock(stuck_mutex_);
  if (on_stuck_) on_stuck_(why);
}

std::string RankJob::NameOfHost(int rank) const {
  if (rank == 0) return " (" + host_ + ")";
  const auto index = static_cast<size_t>(rank - 1);
  return index < hosts_.size() ? " (" + hosts_[index] + ")" : "";
}

void FollowJob(RankLink& link, const FollowerOptions& options) {
  STOCH_CHECK(link.rank() > 0);
  for (;;) {
    const std::string text = TakeText(link, 0, RankLink::Wait::kIdle);
    if (text.empty()) return;
    const auto tell_alive = [&link] {
      return std::jthread([&link](const std::stop_token& stop) { TellAlive(link, stop); });
    };
    std::jthread alive = tell_alive();
    FollowedModel followed;
    Answer answer;
    answer.report.rank = link.rank();
    answer.report.host = options.host;
    const Opening opening = OpeningOf(text);
    answer.report.hop_us = MeasureHop(link, opening.row_bytes);
    try {
      EngineOptions engine;
      followed = Prepare(link, options, opening, &engine);
      if (opening.purpose == kToDescribe) {
        answer.report.about = options.describe(followed.files, *followed.backend, engine);
      } else {
        Load(link, engine, opening.lanes, &followed);
        answer.report.stream_bytes = followed.model->weights().stream_bytes;
        answer.report.kv_bytes = followed.model->kv_cache_bytes();
      }
    } catch (const InvalidInput& error) {
      answer.refused = error.what();
      if (answer.refused.empty()) answer.refused = "no reason was given";
    } catch (const LostRank&) {
      throw;
    } catch (const std::exception& error) {
      SendLost(link, 0, link.rank(), error.what());
      throw;
    }
    answer.limit_ms = link.limit(RankLink::Wait::kLimit).count();
    link.HeartbeatTo(-1);
    alive = {};  // rank 0 hears nothing else until somebody waits for rows
    SendText(link, 0, TextOf(answer));
    if (opening.purpose == kToDescribe) continue;
    if (answer.refused.empty()) {
      followed.model->Follow();
    } else {
      TakeClose(link);
    }
    alive = tell_alive();  // giving back hundreds of GB takes its time
  }
}

}  // namespace stoch
