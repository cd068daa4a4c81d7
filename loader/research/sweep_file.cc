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
    Reject(key, value.is_structured() ? value.type_name() : Quoted(value.dump(-1, ' ', true)), allowed);
  }
  std::string Text(const Json& value, const std::string& key) const {
    if (!value.is_string()) RejectValue(key, value, "a text");
    const auto text = value.get<std::string>();
    const bool plain = std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20; });
    if (!plain) RejectValue(key, value, "a text without control characters");
    return text;
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

  std::string name_;
  SweepFile file_;
};

void Reader::Grid(const Json& grid, const std::vector<std::string>& base) {
  if (!grid.is_object() || grid.empty()) RejectValue("grid", grid, "an object of lists");
  std::vector<std::pair<std::string, std::vector<std::string>>> axes;
  size_t count = 1;
  for (const auto& [key, values] : grid.items()) {
    const std::string where = "grid." + Quoted(key);
    if (key.find_first_of(",=\n") != std::string::npos || key.empty()) Reject("grid", Quoted(key), "names of settings");
    if (!values.is_array() || values.empty()) RejectValue(where, values, "a list of values");
    count *= values.size();
    if (count > kMaxRuns) Reject("grid", "over " + std::to_string(kMaxRuns) + " runs", "fewer");
    auto& axis = axes.emplace_back(key, std::vector<std::string>());
    for (const Json& value : values) axis.second.push_back(Scalar(value, where));
  }
  for (size_t i = 0; i < count; ++i) {
    SweepRun run{base, {}};
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
  if (root.contains("array")) file_.array = Text(root["array"], "array");
  if (root.contains("energy")) file_.energy = Text(root["energy"], "energy");
  if (root.contains("files")) {
    const Json& files = root["files"];
    if (!files.is_object()) RejectValue("files", files, "an object");
    if (files.contains("mp")) file_.mp = Text(files["mp"], "files.mp");
    if (files.contains("smooth")) file_.smooth = Text(files["smooth"], "files.smooth");
    if (files.contains("mask")) file_.mask = Text(files["mask"], "files.mask");
    Unknown(files, "files.", {"mp", "smooth", "mask"});
  }
  Metrics(root.contains("metrics") ? root["metrics"] : Json::array({"ppl"}));
  std::vector<std::string> base;
  if (root.contains("base")) base = Settings(root["base"], "base");
  if (root.contains("grid")) Grid(root["grid"], base);
  if (root.contains("runs")) {
    const Json& runs = root["runs"];
    if (!runs.is_array()) RejectValue("runs", runs, "a list of settings");
    if (file_.runs.size() + runs.size() > kMaxRuns) Reject("runs", std::to_string(runs.size()), "fewer");
    for (const Json& settings : runs) {
      SweepRun run{base, {}};
      for (std::string& one : Settings(settings, "runs")) {
        AddParameters(one, &run);
        run.settings.push_back(std::move(one));
      }
      file_.runs.push_back(std::move(run));
    }
  }
  if (file_.runs.empty()) Reject("grid and runs", "nothing", "at least one run");
  Unknown(root, "",
          {"model", "text", "tokenizer", "max_windows", "ctx", "array", "energy", "base", "grid", "runs", "files",
           "metrics"});
  return file_;
}

}  // namespace

SweepFile ParseSweepFile(const std::string& text, const std::string& name) {
  ParseBoundedJson(text, name);  // limits, and keys that are given twice
  return Reader(name).Read(Json::parse(text));
}

}  // namespace stoch
