// SPDX-License-Identifier: Apache-2.0
#include "app/report/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/report/table.h"
#include "engine/units.h"
#include "loader/json_text.h"

namespace stoch::cli {
namespace {

using Json = nlohmann::ordered_json;

double TokensPerSecond(const BenchResult& result) {
  return 1000 * static_cast<double>(result.tokens) / result.median_ms();
}

Table AsTable(const BenchEnvironment& environment, const std::vector<BenchResult>& results, bool units) {
  const char* percent = units ? " %" : "";
  std::vector<std::string> header = {"test", "precision", "median ms", "spread", "tokens/s"};
  if (!environment.baseline.empty()) header.push_back("x " + environment.baseline);
  header.emplace_back("share of floor");
  Table table(header);
  for (const BenchResult& result : results) {
    std::vector<std::string> row = {CaseName(result.test), result.precision, fmt::format("{:.4g}", result.median_ms()),
                                    fmt::format("{:.1f}{}", 100 * result.spread(), percent),
                                    fmt::format("{:.4g}", TokensPerSecond(result))};
    if (!environment.baseline.empty()) {
      row.push_back(result.baseline_ratio ? fmt::format("{:.3f}", *result.baseline_ratio) : "");
    }
    const double share = 100 * result.floor_ms / result.median_ms();
    row.push_back(result.floor_ms > 0 ? fmt::format("{:.1f}{}", share, percent) : "");
    table.Add(row);
  }
  return table;
}

Json AsJson(const BenchEnvironment& environment, const BenchResult& result) {
  Json json = {{"model", environment.model},
               {"device", environment.device},
               {"split", environment.split},
               {"device_name", environment.device_name},
               {"device_detail", environment.device_detail},
               {"commit", environment.commit},
               {"test", result.test.prompt > 0 ? "prompt" : "decode"},
               {"prompt", result.test.prompt},
               {"depth", result.test.depth},
               {"batch", result.test.batch},
               {"temperature", result.test.temperature},
               {"logprobs", result.test.logprobs},
               {"precision", result.precision},
               {"sc", result.sc},
               {"tokens", result.tokens},
               {"median_ms", result.median_ms()},
               {"spread", result.spread()},
               {"tokens_per_s", TokensPerSecond(result)},
               {"samples_ms", result.samples_ms}};
  if (result.baseline_ratio) json["ratio_to_" + environment.baseline] = *result.baseline_ratio;
  if (result.floor_ms > 0) json["floor_ms"] = result.floor_ms;
  if (result.fill_ms > 0) json["fill_ms"] = result.fill_ms;
  return json;
}

Json AsJson(const BenchLoad& load) {
  Json json = {{"precision", load.precision},         {"load_ms", load.load_ms},
               {"decoder_bytes", load.decoder_bytes}, {"bytes_per_parameter", load.bytes_per_parameter},
               {"kv_bytes", load.kv_bytes},           {"workspace_bytes", load.workspace_bytes}};
  for (const BenchDevice& device : load.devices) {
    json["devices"].push_back({{"device", device.name}, {"used_bytes", device.used_bytes}});
  }
  return json;
}

}  // namespace

double BenchResult::median_ms() const {
  std::vector<double> sorted = samples_ms;
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

double BenchResult::spread() const {
  const auto [low, high] = std::minmax_element(samples_ms.begin(), samples_ms.end());
  return (*high - *low) / median_ms();
}

std::string CaseName(const BenchCase& test) {
  std::string name = test.prompt > 0 ? fmt::format("prompt {}", test.prompt) : fmt::format("decode @{}", test.depth);
  if (test.batch != 1) name += fmt::format(" x{}", test.batch);
  if (test.temperature > 0) name += fmt::format(" T {:g}", test.temperature);
  if (test.logprobs >= 0) name += fmt::format(" logprobs {}", test.logprobs);
  return name;
}

std::string FormatBench(const BenchEnvironment& environment, const std::vector<BenchResult>& results,
                        const std::string& format) {
  if (format == "csv") return AsTable(environment, results, false).Csv();
  if (format == "jsonl") {
    std::string text;
    for (const BenchResult& result : results) text += JsonText(AsJson(environment, result)) + '\n';
    return text;
  }
  if (format == "json") {
    Json list = Json::array();
    for (const BenchResult& result : results) list.push_back(AsJson(environment, result));
    Json loads = Json::array();
    for (const BenchLoad& load : environment.loads) loads.push_back(AsJson(load));
    return JsonText(Json{{"read_bytes_per_s", environment.read_bytes_per_s}, {"loads", loads}, {"results", list}}, 1) +
           '\n';
  }
  const bool dealt = environment.split.starts_with("sequence");
  const std::string split = environment.split.empty() ? "" : " by " + environment.split + (dealt ? "" : "s");
  std::string text = fmt::format("{} on {}{} ({}), commit {}, memory read {}/s\n\n", environment.model,
                                 environment.device, split, environment.device_name, environment.commit,
                                 Bytes(static_cast<int64_t>(environment.read_bytes_per_s)));
  text += AsTable(environment, results, true).Markdown();
  text += "\nmedian ms: of the whole prompt, or of one decode step; spread: (max - min) / median of the repetitions";
  if (!environment.baseline.empty())
    text += fmt::format("; x {}: time over {}'s", environment.baseline, environment.baseline);
  for (const BenchLoad& load : environment.loads) {
    text += fmt::format("\n{}: loaded in {:.3g} s, decoder linears {} ({:.3g} bytes per parameter), KV cache {}",
                        load.precision, load.load_ms / 1000, Bytes(load.decoder_bytes), load.bytes_per_parameter,
                        Bytes(load.kv_bytes));
  }
  for (const BenchResult& result : results) {
    if (result.sc.empty()) continue;
    text += "\nsc: " + result.sc;
    break;
  }
  return text + '\n';
}

}  // namespace stoch::cli
