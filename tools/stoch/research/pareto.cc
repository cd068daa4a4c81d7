// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/research/pareto.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/base/error.h"
#include "loader/json_text.h"

namespace stoch::cli {

std::vector<int> ParseAverages(const std::string& text) {
  std::vector<int> averages;
  if (text.empty()) return averages;
  int numbers[3] = {};
  std::istringstream parts(text);
  char colon = ':';
  for (int& number : numbers) {
    if (&number != numbers && !(parts >> colon)) break;
    if (colon != ':' || !(parts >> number)) break;
  }
  constexpr int kMost = 256;
  const auto [low, high, step] = numbers;
  if (!parts.eof() || low < 1 || high < low || step < 1 || (high - low) / step >= kMost) {
    throw InvalidInput("--pareto " + text + ": allowed is LO:HI:STEP, up to 256 average lengths, as 32:96:8");
  }
  for (int average = low; average <= high; average += step) averages.push_back(average);
  return averages;
}

std::string ParetoPlanJson(const ParetoPlan& plan) {
  using Json = nlohmann::ordered_json;
  Json json{{"model", plan.model}, {"text", plan.text}, {"ctx", plan.windows.ctx}};
  json["max_windows"] = plan.windows.count;
  json["metrics"] = {"ppl", "kl"};
  std::vector<std::string> base = plan.sc;
  if (plan.files.mask_bits > 0) base.push_back(fmt::format("mask_bits={}", plan.files.mask_bits));
  if (!base.empty()) json["base"] = base;
  Json files = Json::object();
  if (!plan.files.smooth.empty()) files["smooth"] = plan.files.smooth;
  if (!plan.files.mask.empty()) files["mask"] = plan.files.mask;
  if (!files.empty()) json["files"] = files;
  Json runs = Json::array();
  for (const int average : plan.averages) runs.push_back(fmt::format("series=uniform,stoc_len={}", average));
  for (const std::string& table : plan.tables) runs.push_back("series=mixed,mp=" + table);
  json["runs"] = runs;
  return JsonText(json, 2) + '\n';
}

}  // namespace stoch::cli
