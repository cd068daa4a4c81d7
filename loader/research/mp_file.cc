// SPDX-License-Identifier: Apache-2.0
#include "loader/research/mp_file.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>

#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/file.h"
#include "loader/quote.h"

namespace stoch {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxLengths = 32;
constexpr int kMaxLength = 256;
constexpr int64_t kMaxBuckets = 4096;
constexpr int64_t kMaxFileBytes = int64_t{64} << 20;

// Reads values of one file with errors that name it.
class Reader {
 public:
  explicit Reader(MpFile* file) : file_(*file) {}

  [[noreturn]] void Reject(const std::string& key, const std::string& value, const std::string& allowed) const {
    throw InvalidInput(file_.name + ": " + key + " = " + value + ": allowed is " + allowed);
  }
  [[noreturn]] void RejectValue(const std::string& key, const Json& value, const std::string& allowed) const {
    const std::string text = value.is_object() ? std::string(JsonTypeName(value)) : JsonText(value);
    Reject(key, Quoted(text), allowed);
  }
  void Known(const Json& object, const std::string& where, std::initializer_list<std::string_view> known) {
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        if (file_.unknown_keys.size() < 16) file_.unknown_keys.push_back(where + Quoted(key));
      }
    }
  }
  double Number(const Json& value, const std::string& key) const {
    if (!value.is_number() || !std::isfinite(value.get<double>())) RejectValue(key, value, "a finite number");
    return value.get<double>();
  }
  int64_t Integer(const Json& value, const std::string& key, int64_t low, int64_t high) const {
    const std::string allowed = "a whole number in " + std::to_string(low) + ".." + std::to_string(high);
    // As double: an unsigned number beyond int64 would wrap.
    const double given = value.is_number() ? value.get<double>() : 0.5;
    if (given != std::floor(given) || std::abs(given) >= 1e15) RejectValue(key, value, allowed);
    const auto number = static_cast<int64_t>(given);
    if (number < low || number > high) RejectValue(key, value, allowed);
    return number;
  }
  const Json& Object(const Json& value, const std::string& key) const {
    if (!value.is_object()) RejectValue(key, value, "an object");
    return value;
  }
  const Json& Array(const Json& value, const std::string& key, size_t most) const {
    if (!value.is_array()) RejectValue(key, value, "a list");
    if (value.size() > most) Reject(key, std::to_string(value.size()) + " entries", "at most " + std::to_string(most));
    return value;
  }
  std::vector<int> Lengths(const Json& value, const std::string& key) const {
    std::vector<int> lengths;
    for (const Json& length : Array(value, key, kMaxLengths)) {
      lengths.push_back(static_cast<int>(Integer(length, key, 0, kMaxLength)));
    }
    return lengths;
  }

  MpBucket Bucket(const Json& value, const std::string& key, bool rising);
  void PerRowChunk(const Json& value);
  void Bands(const Json& value);
  void Protected(const Json& value);
  void Grids(const Json& value);
  void Table(const Json& root);

 private:
  MpFile& file_;
};

MpBucket Reader::Bucket(const Json& value, const std::string& key, bool rising) {
  MpBucket bucket;
  Json wrapped;
  const Json* object = &value;
  if (value.is_array()) {  // thresholds alone
    wrapped = {{"thresholds", value}};
    object = &wrapped;
  }
  Object(*object, key);
  if (!object->contains("thresholds")) Reject(key + ".thresholds", "nothing", "a list");
  constexpr double kSlack = 1e-6;
  for (const Json& threshold : Array(object->at("thresholds"), key + ".thresholds", kMaxLengths)) {
    const double number = Number(threshold, key + ".thresholds");
    if (number < 0 || number > 1) RejectValue(key + ".thresholds", threshold, "numbers in 0..1");
    if (!bucket.thresholds.empty()) {
      const double before = bucket.thresholds.back();
      if (rising ? number < before : number > before + kSlack) {
        RejectValue(key + ".thresholds", threshold, rising ? "numbers that do not fall" : "numbers that do not rise");
      }
    }
    bucket.thresholds.push_back(number);
  }
  const char* levels = rising ? "levels" : "stoc_len_levels";
  if (object->contains(levels)) bucket.levels = Lengths(object->at(levels), key + "." + levels);
  if (rising &&
      (bucket.levels.empty() || !std::is_sorted(bucket.levels.begin(), bucket.levels.end(), std::less_equal<>()))) {
    Reject(key + ".levels", std::to_string(bucket.levels.size()) + " lengths in this order", "lengths that rise");
  }
  const size_t count = bucket.levels.empty() ? file_.levels.size() : bucket.levels.size();
  if (bucket.thresholds.size() + 1 != count) {
    Reject(key + ".thresholds", std::to_string(bucket.thresholds.size()) + " entries",
           std::to_string(count - 1) + ", one less than lengths");
  }
  const auto optional = [&](const char* name, std::optional<double>* to) {
    if (!object->contains(name) || object->at(name).is_null()) return;
    const double number = Number(object->at(name), key + "." + name);
    if (!std::isfinite(static_cast<float>(number))) {
      RejectValue(key + "." + name, object->at(name), "a number that float32 holds");
    }
    *to = number;
  };
  optional("metric_mean", &bucket.metric_mean);
  optional("metric_std", &bucket.metric_std);
  optional("metric_lo", &bucket.metric_lo);
  optional("metric_hi", &bucket.metric_hi);
  if (bucket.metric_lo && bucket.metric_hi &&
      !(static_cast<float>(*bucket.metric_lo) < static_cast<float>(*bucket.metric_hi))) {
    Reject(key + ".metric_lo", std::to_string(*bucket.metric_lo), "a number below metric_hi");
  }
  Known(*object, key + ".", {"thresholds", levels, "metric_mean", "metric_std", "metric_lo", "metric_hi"});
  return bucket;
}

void Reader::PerRowChunk(const Json& value) {
  Object(value, "per_row_chunk");
  file_.chunk_layer_buckets = file_.layer_buckets;
  if (value.contains("layer_buckets")) {
    file_.chunk_layer_buckets = Integer(value["layer_buckets"], "per_row_chunk.layer_buckets", 0, kMaxBuckets);
  }
  if (!value.contains("buckets")) Reject("per_row_chunk.buckets", "nothing", "an object");
  for (const auto& [key, bucket] : Object(value["buckets"], "per_row_chunk.buckets").items()) {
    file_.chunk_buckets[key] = Bucket(bucket, "per_row_chunk." + Quoted(key), true);
  }
  Known(value, "per_row_chunk.", {"layer_buckets", "buckets"});
}

void Reader::Bands(const Json& value) {
  Object(value, "k_bands");
  const int64_t bands = value.contains("n_bands") ? Integer(value["n_bands"], "k_bands.n_bands", 1, 64) : 0;
  if (bands == 0) Reject("k_bands.n_bands", "nothing", "a whole number in 1..64");
  file_.band_chunk_d = value.contains("chunk_d") ? Integer(value["chunk_d"], "k_bands.chunk_d", 1, 1 << 20) : 128;
  constexpr int64_t kMaxChannels = 1 << 24;
  if (value.contains("residual_width")) {
    for (const auto& [key, width] : Object(value["residual_width"], "k_bands.residual_width").items()) {
      file_.residual_width[key] = Integer(width, "k_bands.residual_width." + Quoted(key), 1, kMaxChannels);
    }
  }
  constexpr size_t kMaxChunks = 1 << 16;
  if (value.contains("chunk_bands")) {
    for (const auto& [key, list] : Object(value["chunk_bands"], "k_bands.chunk_bands").items()) {
      std::vector<int>& of = file_.chunk_bands[key];
      for (const Json& band : Array(list, "k_bands.chunk_bands." + Quoted(key), kMaxChunks)) {
        of.push_back(static_cast<int>(Integer(band, "k_bands.chunk_bands." + Quoted(key), 0, bands - 1)));
      }
    }
  }
  if (value.contains("ladders")) {
    for (const auto& [key, list] : Object(value["ladders"], "k_bands.ladders").items()) {
      const std::string where = "k_bands.ladders." + Quoted(key);
      std::vector<std::vector<int>>& ladders = file_.ladders[key];
      for (const Json& ladder : Array(list, where, 64)) {
        ladders.push_back(Lengths(ladder, where));
        if (ladders.back().size() != file_.levels.size()) {
          Reject(where, std::to_string(ladders.back().size()) + " lengths", std::to_string(file_.levels.size()));
        }
      }
      if (static_cast<int64_t>(ladders.size()) != bands) {
        Reject(where, std::to_string(ladders.size()) + " ladders", std::to_string(bands));
      }
    }
  }
  Known(value, "k_bands.", {"n_bands", "chunk_d", "residual_width", "chunk_bands", "ladders"});
}

void Reader::Protected(const Json& value) {
  Object(value, "protected_channels");
  if (!value.contains("stoc_len")) Reject("protected_channels.stoc_len", "nothing", "a length");
  file_.protected_len = static_cast<int>(Integer(value["stoc_len"], "protected_channels.stoc_len", 1, kMaxLength));
  if (!value.contains("indices")) Reject("protected_channels.indices", "nothing", "an object");
  constexpr size_t kMaxChannels = 1 << 20;
  for (const auto& [key, list] : Object(value["indices"], "protected_channels.indices").items()) {
    std::vector<int32_t>& channels = file_.protected_channels[key];
    for (const Json& channel : Array(list, "protected_channels " + Quoted(key), kMaxChannels)) {
      channels.push_back(static_cast<int32_t>(Integer(channel, "protected_channels " + Quoted(key), 0, INT32_MAX)));
    }
    std::sort(channels.begin(), channels.end());
    channels.erase(std::unique(channels.begin(), channels.end()), channels.end());
  }
  Known(value, "protected_channels.", {"stoc_len", "indices"});
}

void Reader::Grids(const Json& value) {
  for (const auto& [key, grid] : Object(value, "per_rung_grid").items()) {
    const std::string where = "per_rung_grid." + Quoted(key);
    const Json length = Json::parse(key, nullptr, false);
    const auto cycles = static_cast<int>(Integer(length.is_discarded() ? Json(key) : length, where, 1, kMaxLength));
    if (!file_.grids.emplace(cycles, static_cast<int>(Integer(grid, where, 1, kMaxLength))).second) {
      Reject(where, "a second grid", "one for each length");
    }
  }
}

void Reader::Table(const Json& root) {
  Object(root, "the table");
  if (!root.contains("stoc_len_levels")) Reject("stoc_len_levels", "nothing", "a list of lengths that fall");
  file_.levels = Lengths(root["stoc_len_levels"], "stoc_len_levels");
  if (file_.levels.size() < 2 || !std::is_sorted(file_.levels.begin(), file_.levels.end(), std::greater_equal<>())) {
    RejectValue("stoc_len_levels", root["stoc_len_levels"], "at least 2 lengths that fall");
  }
  if (root.contains("sc_prec")) file_.sc_prec = static_cast<int>(Integer(root["sc_prec"], "sc_prec", 3, 8));
  if (root.contains("halve_bipolar_stoc_len")) {
    const Json& halve = root["halve_bipolar_stoc_len"];
    if (!halve.is_boolean()) RejectValue("halve_bipolar_stoc_len", halve, "true or false");
    file_.halve = halve.get<bool>();
  }
  if (root.contains("layer_buckets")) {
    file_.layer_buckets = Integer(root["layer_buckets"], "layer_buckets", 0, kMaxBuckets);
  }
  if (root.contains("operator_defaults")) {
    for (const auto& [key, bucket] : Object(root["operator_defaults"], "operator_defaults").items()) {
      file_.operator_defaults[key] = Bucket(bucket, "operator_defaults." + Quoted(key), false);
    }
  }
  if (root.contains("buckets")) {
    for (const auto& [key, bucket] : Object(root["buckets"], "buckets").items()) {
      file_.buckets[key] = Bucket(bucket, "buckets." + Quoted(key), false);
    }
  }
  if (root.contains("dispatch_metrics")) {
    for (const auto& [key, value] : Object(root["dispatch_metrics"], "dispatch_metrics").items()) {
      const std::string where = "dispatch_metrics." + Quoted(key);
      Object(value, where);
      MpDispatch& dispatch = file_.dispatch[key];
      if (value.contains("metric")) {
        const Json& metric = value["metric"];
        if (metric != "amax" && metric != "l2" && metric != "crest") RejectValue(where, metric, "amax, l2, crest");
        dispatch.metric = metric.get<std::string>();
      }
      if (value.contains("sign")) {
        dispatch.sign = static_cast<int>(Integer(value["sign"], where + ".sign", -1, 1));
        if (dispatch.sign == 0) RejectValue(where + ".sign", value["sign"], "1 or -1");
      }
    }
  }
  if (root.contains("per_row_chunk") && !root["per_row_chunk"].is_null()) PerRowChunk(root["per_row_chunk"]);
  if (root.contains("k_bands") && !root["k_bands"].is_null()) Bands(root["k_bands"]);
  if (root.contains("protected_channels") && !root["protected_channels"].is_null()) {
    Protected(root["protected_channels"]);
  }
  if (root.contains("per_rung_grid") && !root["per_rung_grid"].is_null()) Grids(root["per_rung_grid"]);
  Known(
      root, "",
      {"stoc_len_levels", "sc_prec", "halve_bipolar_stoc_len", "layer_buckets", "timestep_buckets", "operator_defaults",
       "buckets", "dispatch_metrics", "per_row_chunk", "k_bands", "protected_channels", "per_rung_grid", "normalise",
       "schema", "metadata", "expected_avg_stoc_len", "expected_flop_avg_stoc_len", "metric_fidelity_rho"});
}

}  // namespace

int64_t LayerBucket(int64_t layer, int64_t layers, int64_t buckets) {
  if (buckets <= 1 || layers <= 1) return 0;
  const double share = static_cast<double>(layer) / static_cast<double>(layers - 1);
  return std::min(buckets - 1, static_cast<int64_t>(share * static_cast<double>(buckets)));
}

MpFile ParseMpFile(const std::string& text, const std::string& name, const std::filesystem::path& folder,
                   std::string* contents) {
  MpFile file;
  file.name = name;
  Reader reader(&file);
  *contents = text;
  const Json root = ParseBoundedJson(text, name);
  reader.Object(root, "the file");
  if (!root.contains("type")) {
    reader.Table(root);
    return file;
  }
  const Json& type = root["type"];
  if (!root.contains("stoc_len_levels")) reader.Reject("stoc_len_levels", "nothing", "a list of lengths that fall");
  const std::vector<int> levels = reader.Lengths(root["stoc_len_levels"], "stoc_len_levels");
  if (type == "MPConfig") {
    file.levels = levels;
    if (levels.size() < 2 || !std::is_sorted(levels.begin(), levels.end(), std::greater_equal<>())) {
      reader.RejectValue("stoc_len_levels", root["stoc_len_levels"], "at least 2 lengths that fall");
    }
    if (!root.contains("level_fractions")) reader.Reject("level_fractions", "nothing", "a list");
    for (const Json& value : reader.Array(root["level_fractions"], "level_fractions", kMaxLengths)) {
      const double fraction = reader.Number(value, "level_fractions");
      if (fraction < 0 || fraction > 1) reader.RejectValue("level_fractions", value, "numbers in 0..1");
      file.level_fractions.push_back(fraction);
    }
    constexpr double kSlack = 1e-3;
    const double sum = std::accumulate(file.level_fractions.begin(), file.level_fractions.end(), 0.0);
    if (sum > 1 + kSlack) reader.RejectValue("level_fractions", root["level_fractions"], "a sum of at most 1");
    if (file.level_fractions.size() != levels.size()) {
      reader.Reject("level_fractions", std::to_string(file.level_fractions.size()) + " entries",
                    std::to_string(levels.size()));
    }
    reader.Known(root, "", {"type", "stoc_len_levels", "level_fractions"});
    return file;
  }
  if (type != "AdaptiveMPConfig") reader.RejectValue("type", type, "AdaptiveMPConfig, MPConfig");
  if (!root.contains("threshold_table_path") || !root["threshold_table_path"].is_string()) {
    reader.Reject("threshold_table_path", "nothing", "a file next to this one");
  }
  const std::filesystem::path path = folder / root["threshold_table_path"].get<std::string>();
  const std::string table_text = ReadSmallFile(path, kMaxFileBytes);
  *contents += table_text;
  file.name = path.string();
  reader.Table(ParseBoundedJson(table_text, path.string()));
  file.name = name;
  if (file.levels != levels) {
    reader.RejectValue("stoc_len_levels", root["stoc_len_levels"], "those of the table " + path.filename().string());
  }
  if (root.contains("escape_gate_k") && !root["escape_gate_k"].is_null()) {
    file.escape_k = reader.Number(root["escape_gate_k"], "escape_gate_k");
  }
  if (root.contains("escape_stoc_len") && !root["escape_stoc_len"].is_null()) {
    file.escape_len = static_cast<int>(reader.Integer(root["escape_stoc_len"], "escape_stoc_len", 1, kMaxLength));
  }
  reader.Known(root, "", {"type", "stoc_len_levels", "threshold_table_path", "escape_gate_k", "escape_stoc_len"});
  return file;
}

}  // namespace stoch
