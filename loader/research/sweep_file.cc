// SPDX-License-Identifier: Apache-2.0
#include "loader/research/sweep_file.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/quote.h"

namespace stoch {
namespace {

// Keeps the order of keys, which is the order of a grid.
using Json = nlohmann::ordered_json;

constexpr size_t kMaxRuns = 65536;

// NAME=VALUE parts of comma-separated settings.
void AddParameters(const std::string& settings, SweepRun* run) {
  for (size_t begin = 0; begin < settings.size();) {
    const size_t end = std::min(settings.find(',', begin), settings.size());
    const size_t equals = settings.find('=', begin);
    if (equals < end) {
      run->parameters.emplace_back(settings.substr(begin, equals - begin),
                                   settings.substr(equals + 1, end - equals - 1));
    }
    begin = end + 1;
  }
}

class Reader {
 public:
  explicit Reader(std::string name) : name_(std::move(name)) {}

  SweepFile Read(const Json& root);

 private:
  [[noreturn]] void Reject(const std::string& key, const std::string& value, const std::string& allowed) const {
    throw InvalidInput(name_ + ": " + key + " = " + value + ": allowed is " + allowed);
  }
  [[noreturn]] void RejectValue(const std::string& key, const Json& value, const std::string& allowed) const {
    constexpr size_t kMostBytes = 80;
    const std::string text = value.dump(-1, ' ', true);  // as it stands in the plan, in ASCII
    Reject(key, text.size() > kMostBytes ? text.substr(0, kMostBytes) + "..." : text, allowed);
  }
  std::string Text(const Json& value, const std::string& key) const {
    if (!value.is_string()) RejectValue(key, value, "a text");
    auto text = value.get<std::string>();
    const bool plain = std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20; });
    if (!plain) RejectValue(key, value, "a text without control characters");
    return text;
  }
  std::string FileName(const Json& value, const std::string& key) const {
    std::string name = Text(value, key);
    if (name.empty()) RejectValue(key, value, "the name of a file");
    return name;
  }
  int64_t Count(const Json& value, const std::string& key) const {
    constexpr int64_t kMost = int64_t{1} << 40;
    if (!value.is_number_integer() || value.get<double>() < 1 || value.get<double>() > static_cast<double>(kMost)) {
      RejectValue(key, value, "a whole number above 0");
    }
    return value.get<int64_t>();
  }
  std::vector<std::string> Settings(const Json& value, const std::string& key) const {
    if (!value.is_array()) return {Text(value, key)};
    std::vector<std::string> settings;
    for (const Json& one : value) settings.push_back(Text(one, key));
    return settings;
  }
  std::string Scalar(const Json& value, const std::string& key) const {
    if (value.is_boolean()) return value.get<bool>() ? "1" : "0";
    if (value.is_string()) return Text(value, key);
    if (!value.is_number()) RejectValue(key, value, "texts, numbers and booleans");
    return value.dump();
  }
  void Unknown(const Json& object, const std::string& where, std::initializer_list<std::string_view> known) {
    constexpr size_t kMost = 16;
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      if (file_.unknown_keys.size() < kMost) file_.unknown_keys.push_back(where + Quoted(key));
    }
  }
  void Grid(const Json& grid, const std::vector<std::string>& base);
  void Metrics(const Json& value);
  void Seeds(const Json& root);
  void Reference(const Json& value, const std::vector<std::string>& base);
  void Repeat();

  std::string name_;
  SweepFile file_;
};

void Reader::Grid(const Json& grid, const std::vector<std::string>& base) {
  if (!grid.is_object() || grid.empty())
    RejectValue("grid", grid, "an object of lists, like {\"stoc_len\": [64, 128]}");
  std::vector<std::pair<std::string, std::vector<std::string>>> axes;
  size_t count = 1;
  for (const auto& [key, values] : grid.items()) {
    const std::string where = "grid." + Quoted(key);
    if (key.find_first_of(",=\n") != std::string::npos || key.empty()) Reject("grid", Quoted(key), "names of settings");
    if (!values.is_array() || values.empty()) RejectValue(where, values, "a list of values, like [64, 128]");
    count *= values.size();
    if (count > kMaxRuns) Reject("grid", "over " + std::to_string(kMaxRuns) + " runs", "fewer");
    auto& axis = axes.emplace_back(key, std::vector<std::string>());
    for (const Json& value : values) axis.second.push_back(Scalar(value, where));
  }
  for (size_t i = 0; i < count; ++i) {
    SweepRun run;
    run.settings = base;
    size_t stride = count;
    for (const auto& [key, values] : axes) {
      stride /= values.size();
      const std::string& value = values[i / stride % values.size()];
      run.settings.push_back(key + "=" + value);
      run.parameters.emplace_back(key, value);
    }
    file_.runs.push_back(std::move(run));
  }
}

void Reader::Metrics(const Json& value) {
  if (!value.is_array() || value.empty()) RejectValue("metrics", value, "a list of names");
  for (const Json& metric : value) file_.metrics.push_back(Text(metric, "metrics"));
  std::sort(file_.metrics.begin(), file_.metrics.end());
  file_.metrics.erase(std::unique(file_.metrics.begin(), file_.metrics.end()), file_.metrics.end());
}

void Reader::Seeds(const Json& root) {
  if (root.contains("repeat")) {
    if (root.contains("seeds")) Reject("repeat", "a number next to seeds", "one of the two");
    const int64_t count = Count(root["repeat"], "repeat");
    if (count > static_cast<int64_t>(kMaxRuns)) RejectValue("repeat", root["repeat"], "1.." + std::to_string(kMaxRuns));
    for (int64_t seed = 1; seed <= count; ++seed) file_.seeds.push_back(static_cast<uint64_t>(seed));
  }
  if (!root.contains("seeds")) return;
  const Json& seeds = root["seeds"];
  if (!seeds.is_array() || seeds.empty()) RejectValue("seeds", seeds, "a list of whole numbers");
  for (const Json& seed : seeds) {
    if (!seed.is_number_unsigned()) RejectValue("seeds", seed, "whole numbers in 0..2^64-1");
    const auto value = seed.get<uint64_t>();
    if (std::find(file_.seeds.begin(), file_.seeds.end(), value) != file_.seeds.end()) {
      RejectValue("seeds", seed, "every seed once");
    }
    file_.seeds.push_back(value);
  }
}

void Reader::Reference(const Json& value, const std::vector<std::string>& base) {
  if (!value.is_number()) {
    file_.reference_settings = base;
    for (std::string& one : Settings(value, "reference")) file_.reference_settings.push_back(std::move(one));
    return;
  }
  const std::string allowed = "a configuration in 0.." + std::to_string(file_.runs.size() - 1) + ", or settings";
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= file_.runs.size()) {
    RejectValue("reference", value, allowed);
  }
  file_.reference = value.get<size_t>();
}

// Every configuration once for each seed.
void Reader::Repeat() {
  std::vector<SweepRun> configurations = std::move(file_.runs);
  file_.runs.clear();
  for (size_t i = 0; i < configurations.size(); ++i) {
    SweepRun& one = configurations[i];
    one.configuration = i;
    const bool exact = std::any_of(one.settings.begin(), one.settings.end(), [](const std::string& setting) {
      return setting == "fp32" || setting == "fp16" || setting.starts_with("precision=fp");
    });
    if (file_.seeds.empty() || exact) {
      file_.runs.push_back(std::move(one));
      continue;
    }
    if (file_.runs.size() + file_.seeds.size() > kMaxRuns)
      Reject("seeds", "over " + std::to_string(kMaxRuns) + " runs", "fewer");
    for (const uint64_t seed : file_.seeds) {
      SweepRun& run = file_.runs.emplace_back(one);
      run.seed = seed;
      run.settings.push_back("source_seed=" + std::to_string(seed));
      run.parameters.emplace_back("seed", std::to_string(seed));
    }
  }
}

SweepFile Reader::Read(const Json& root) {
  if (!root.is_object()) RejectValue("the file", root, "an object");
  for (const char* key : {"model", "text"}) {
    if (!root.contains(key)) Reject(key, "nothing", "a text");
  }
  file_.model = Text(root["model"], "model");
  file_.text = Text(root["text"], "text");
  if (root.contains("tokenizer")) file_.tokenizer = Text(root["tokenizer"], "tokenizer");
  if (root.contains("max_windows")) file_.max_windows = Count(root["max_windows"], "max_windows");
  if (root.contains("ctx")) file_.ctx = Count(root["ctx"], "ctx");
  if (root.contains("windows_per_row")) file_.windows_per_row = Count(root["windows_per_row"], "windows_per_row");
  if (root.contains("array")) file_.array = Text(root["array"], "array");
  if (root.contains("energy")) file_.energy = Text(root["energy"], "energy");
  if (root.contains("files")) {
    const Json& files = root["files"];
    if (!files.is_object()) RejectValue("files", files, "an object");
    if (files.contains("mp")) file_.mp = FileName(files["mp"], "files.mp");
    if (files.contains("smooth")) file_.smooth = FileName(files["smooth"], "files.smooth");
    if (files.contains("mask")) file_.mask = FileName(files["mask"], "files.mask");
    Unknown(files, "files.", {"mp", "smooth", "mask"});
  }
  Metrics(root.contains("metrics") ? root["metrics"] : Json::array({"ppl"}));
  std::vector<std::string> base;
  if (root.contains("base")) base = Settings(root["base"], "base");
  file_.base_settings = base.size();
  if (root.contains("grid")) Grid(root["grid"], base);
  if (root.contains("runs")) {
    const Json& runs = root["runs"];
    if (!runs.is_array()) RejectValue("runs", runs, "a list of settings");
    if (file_.runs.size() + runs.size() > kMaxRuns) Reject("runs", std::to_string(runs.size()), "fewer");
    for (const Json& settings : runs) {
      SweepRun run;
      run.settings = base;
      for (std::string& one : Settings(settings, "runs")) {
        AddParameters(one, &run);
        run.settings.push_back(std::move(one));
      }
      file_.runs.push_back(std::move(run));
    }
  }
  if (file_.runs.empty()) Reject("grid and runs", "nothing", "at least one run");
  Seeds(root);
  if (root.contains("reference")) Reference(root["reference"], base);
  Repeat();
  Unknown(root, "",
          {"model", "text", "tokenizer", "max_windows", "ctx", "windows_per_row", "array", "energy", "base", "grid",
           "runs", "files", "metrics", "seeds", "repeat", "reference"});
  return file_;
}

}  // namespace

SweepFile ParseSweepFile(const std::string& text, const std::string& name) {
  ParseBoundedJson(text, name);  // limits, and keys that are given twice
  return Reader(name).Read(Json::parse(text));
}

}  // namespace stoch
