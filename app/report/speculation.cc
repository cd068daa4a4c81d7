// SPDX-License-Identifier: Apache-2.0
#include "app/report/speculation.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/report/table.h"
#include "loader/json_text.h"

namespace stoch::cli {
namespace {

using Json = nlohmann::ordered_json;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Json AsJson(const SpeculationEnvironment& environment, const SpeculationResult& result) {
  return {
      {"model", environment.model},
      {"device", environment.device},
      {"device_name", environment.device_name},
      {"commit", environment.commit},
      {"precision", environment.precision},
      {"sc", environment.sc},
      {"speculate", environment.speculate},
      {"draft_tokens", environment.draft_tokens},
      {"temperature", environment.temperature},
      {"told", environment.told},
      {"prompt", result.prompt},
      {"sequences", result.sequences},
      {"prompt_tokens", result.prompt_tokens},
      {"tokens", result.tokens},
      {"tokens_per_s", result.tokens_per_s()},
      {"tokens_per_s_with", result.with_tokens_per_s()},
      {"gain", result.gain()},
      {"same_ids", result.same_ids},
      {"passes", result.passes},
      {"passes_with", result.with_passes},
      {"drafts",
       {{"passes", result.drafts.passes}, {"drafted", result.drafts.drafted}, {"accepted", result.drafts.accepted}}},
      {"samples_ms", result.samples_ms},
      {"samples_ms_with", result.with_samples_ms}};
}

Table AsTable(const std::vector<SpeculationResult>& results) {
  Table table({"prompt", "sequences", "tokens/s without", "with", "x", "passes without", "with", "with guesses",
               "guessed", "right"});
  for (const SpeculationResult& result : results) {
    table.Add({result.prompt, std::to_string(result.sequences), fmt::format("{:.4g}", result.tokens_per_s()),
               fmt::format("{:.4g}", result.with_tokens_per_s()), fmt::format("{:.3f}", result.gain()),
               std::to_string(result.passes), std::to_string(result.with_passes), std::to_string(result.drafts.passes),
               std::to_string(result.drafts.drafted), std::to_string(result.drafts.accepted)});
  }
  return table;
}

}  // namespace

double SpeculationResult::tokens_per_s() const { return 1000 * static_cast<double>(tokens) / Median(samples_ms); }
double SpeculationResult::with_tokens_per_s() const {
  return 1000 * static_cast<double>(tokens) / Median(with_samples_ms);
}

double SpeculationResult::gain() const {
  std::vector<double> ratios;
  for (size_t i = 0; i < samples_ms.size(); ++i) ratios.push_back(samples_ms[i] / with_samples_ms[i]);
  return Median(ratios);
}

std::string FormatSpeculation(const SpeculationEnvironment& environment, const std::vector<SpeculationResult>& results,
                              const std::string& format) {
  if (format == "csv") return AsTable(results).Csv();
  if (format == "jsonl") {
    std::string text;
    for (const SpeculationResult& result : results) text += JsonText(AsJson(environment, result)) + '\n';
    return text;
  }
  if (format == "json") {
    Json list = Json::array();
    for (const SpeculationResult& result : results) list.push_back(AsJson(environment, result));
    return JsonText(Json{{"results", list}}, 1) + '\n';
  }
  std::string text = fmt::format("{} on {} ({}), commit {}, {}, guesses by {}, {} at most\n\n", environment.model,
                                 environment.device, environment.device_name, environment.commit, environment.precision,
                                 environment.speculate, environment.draft_tokens);
  text += AsTable(results).Markdown();
  text +=
      "\ntokens/s: of all sequences, after their prompts; x: with guesses over without, median of runs next to each "
      "other; with guesses: shares of passes that had some, counted for each sequence";
  if (environment.told)
    text += "\nthe answers are told, as random weights give none: guesses are right where they are the next token told";
  const auto changed = [](const SpeculationResult& result) { return !result.same_ids; };
  if (std::any_of(results.begin(), results.end(), changed)) text += "\nGUESSES CHANGED IDS: that is a bug of stoch";
  if (!environment.sc.empty()) text += "\nsc: " + environment.sc;
  return text + '\n';
}

}  // namespace stoch::cli
