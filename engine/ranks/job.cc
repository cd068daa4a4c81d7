// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/job.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/file.h"
#include "loader/sha256.h"
#include "models/decoder/decoder_model.h"

namespace stoch {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kProtocol = 2;

int64_t BytesOfEnds(const MemoryPlan& plan) { return plan.rest.weights + plan.rest.scales + plan.rest.embedding; }

// The first 4 KiB of a tensor, or all that random ones and decoded blocks have in common: how they are made.
std::string SampleOf(const WeightSource& source) {
  constexpr int64_t kSampleBytes = 4096;
  if (source.host == nullptr) return std::to_string(source.seed) + " " + std::to_string(source.stream);
  const int64_t bytes = source.rows * source.cols * static_cast<int64_t>(DTypeSize(source.dtype));
  return Sha256Hex({static_cast<const char*>(source.host), static_cast<size_t>(std::min(bytes, kSampleBytes))});
}

// config.json, or the beginning of a GGUF file, which has the same facts.
std::string ConfigSample(const std::filesystem::path& folder) {
  constexpr int64_t kMostBytes = int64_t{1} << 20;
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return Sha256Hex(ReadSmallFile(folder / "config.json", kMostBytes));
  if (folder.empty()) return "";
  const MappedFile file(folder.string());
  return Sha256Hex({reinterpret_cast<const char*>(file.bytes().data()),
                    std::min(file.bytes().size(), static_cast<size_t>(kMostBytes))});
}

// A model that rank 0 opens, as the text that it sends to the other ranks.
struct Opening {
  std::string model, build, sample;
  std::vector<int64_t> layers;
  EngineOptions options;
  int64_t lanes = 1;
};

std::string TextOf(const Opening& opening) {
  const EngineOptions& options = opening.options;
  return Json{{"protocol", kProtocol},
              {"build", opening.build},
              {"model", opening.model},
              {"sample", opening.sample},
              {"layers", opening.layers},
              {"precision", PrecisionName(options.precision)},
              {"sc", options.precision == Precision::kSc ? Describe(options.sc) : ""},
              {"context", options.context},
              {"max_sequences", options.max_sequences},
              {"kv_tokens", options.kv_tokens},
              {"max_pass_rows", options.max_pass_rows},
              {"draft_tokens", options.draft_tokens},
              {"lanes", opening.lanes}}
      .dump();
}

Opening OpeningOf(const std::string& text) {
  const nlohmann::json json = ParseBoundedJson(text, "what rank 0 tells of a model");
  Opening opening;
  try {
    if (json.at("protocol") != kProtocol) throw InvalidInput("rank 0 speaks another protocol");
    opening.build = json.at("build").get<std::string>();
    opening.model = json.at("model").get<std::string>();
    opening.sample = json.at("sample").get<std::string>();
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
  } catch (const nlohmann::json::exception& error) {
    throw InvalidInput(std::string("what rank 0 tells of a model: ") + error.what());
  }
  if (opening.lanes < 1 || opening.lanes > kMaxRanks) throw InvalidInput("rank 0 has passes out of range in flight");
  return opening;
}

// A model that rank 0 has opened, on this rank.
struct FollowedModel {
  std::shared_ptr<Backend> backend;
  ModelFiles files;
  std::unique_ptr<DecoderModel> model;
};

void CheckFacts(const Opening& opening, const FollowerOptions& options, const ModelFiles& files) {
  const auto require = [](const char* what, const std::string& here, const std::string& there) {
    if (here == there) return;
    throw InvalidInput(std::string(what) + ": " + here + ", rank 0 has " + there);
  };
  require("build", options.build, opening.build);
  require("model (its config and the beginning of every tensor)", SampleModel(files), opening.sample);
}

FollowedModel Load(RankLink& link, const FollowerOptions& options, const Opening& opening) {
  FollowedModel followed;
  followed.files = OpenModelFiles(options.model.empty() ? opening.model : options.model);
  const DecoderConfig& config = followed.files.config;
  CheckFacts(opening, options, followed.files);
  const bool fits =
      static_cast<int>(opening.layers.size()) == link.count() &&
      std::all_of(opening.layers.begin(), opening.layers.end(), [](int64_t n) { return n >= 1; }) &&
      std::accumulate(opening.layers.begin(), opening.layers.end(), int64_t{0}) == config.num_hidden_layers;
  if (!fits) throw InvalidInput("the layers of all ranks are not those of the model");
  followed.backend = options.open_backend();
  EngineOptions engine = opening.options;
  const IndexRange local = LayersOfRank(opening.layers, link.rank());
  engine.placement = options.place(followed.files, *followed.backend, local, link.count(), &engine);
  engine = FillDefaults(config, std::move(engine));
  DecoderOptions model;
  model.precision = engine.precision;
  model.sc = engine.sc;
  model.shape = ShapeOf(config, engine);
  model.shape.lanes = opening.lanes;
  model.placement = *engine.placement;
  model.ranks = &link;
  followed.model = std::make_unique<DecoderModel>(*followed.backend, followed.files, model);
  return followed;
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

std::string SampleModel(const ModelFiles& files) {
  Sha256 sha;
  sha.Add(ConfigSample(files.folder) + "\n");
  for (const TensorInfo& info : files.weights->tensors()) {
    const bool is_vector = info.shape.size() == 1;
    const WeightSource source =
        files.weights->Matrix(info.name, is_vector ? 1 : info.shape[0], is_vector ? info.shape[0] : info.shape[1]);
    sha.Add(info.name + " " + std::string(DTypeName(info.dtype)) + " " + info.stored);
    for (const int64_t size : info.shape) sha.Add(" " + std::to_string(size));
    sha.Add(" " + SampleOf(source) + "\n");
  }
  return sha.Hex();
}

void RankJob::Open(const std::string& model, const ModelFiles& files, const EngineOptions& options,
                   std::span<const int64_t> layers) {
  Close();
  if (options.precision == Precision::kSc && !(options.sc.files == ScModelFiles{})) {
    throw InvalidInput("--ranks: files of --mp, --smooth and --mask are not told to other ranks");
  }
  const EngineOptions filled = FillDefaults(files.config, options);
  Opening opening{model, build_, SampleModel(files), {layers.begin(), layers.end()}, filled, 1};
  opening.lanes = ShapeOf(files.config, filled).lanes;
  const std::string text = TextOf(opening);
  for (int to = 1; to < link_.count(); ++to) SendText(link_, to, text);
  is_open_ = true;
}

void RankJob::Await() {
  std::string first;
  for (int from = 1; from < link_.count(); ++from) {
    // However long it takes: a rank that is gone while it loads is noticed by the launcher.
    const std::string answer = TakeText(link_, from, RankLink::Wait::kForever);
    if (!answer.empty() && first.empty()) first = "rank " + std::to_string(from) + ": " + answer;
  }
  if (first.empty()) return;
  Close();
  throw InvalidInput(first);
}

void RankJob::Close() {
  if (std::exchange(is_open_, false)) SendClose(link_);
}

void RankJob::End() {
  Close();
  for (int to = 1; to < link_.count(); ++to) SendText(link_, to, "");
}

void FollowJob(RankLink& link, const FollowerOptions& options) {
  STOCH_CHECK(link.rank() > 0);
  for (;;) {
    const std::string text = TakeText(link, 0, RankLink::Wait::kForever);
    if (text.empty()) return;
    FollowedModel followed;
    std::string refused;
    try {
      followed = Load(link, options, OpeningOf(text));
    } catch (const InvalidInput& error) {
      refused = error.what();
      if (refused.empty()) refused = "no reason was given";
    }
    SendText(link, 0, refused);
    if (refused.empty()) {
      followed.model->Follow();
    } else {
      TakeClose(link);
    }
  }
}

}  // namespace stoch
