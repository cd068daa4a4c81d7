// SPDX-License-Identifier: Apache-2.0
#include "app/report/sensitivity.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "app/report/table.h"
#include "loader/json_text.h"

namespace stoch::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSchema = "stoch-sensitivity-v1";

Json ProductJson(const OperatorSensitivity& product) {
  return {{"layer", product.layer},
          {"op", ScOperatorName(product.id)},
          {"kl_in_streams", product.in_streams},
          {"kl_in_integers", product.in_integers},
          {"difference", product.gain()}};
}

// {schema, model_sha256, text_sha256, config, bits, layer, ...}
Json RowOf(const SensitivityReport& report, const OperatorSensitivity& product) {
  Json json = {{"schema", kSchema},
               {"model_sha256", report.model_sha256},
               {"text_sha256", report.text_sha256},
               {"config", report.config},
               {"bits", report.bits}};
  json.update(ProductJson(product));
  return json;
}

std::string Csv(const SensitivityReport& report) {
  std::vector<std::string> header;
  std::string text;
  for (const OperatorSensitivity& product : report.ranked) {
    const Json row = RowOf(report, product);
    std::vector<std::string> cells;
    for (const auto& [key, value] : row.items()) {
      if (text.empty()) header.push_back(key);
      cells.push_back(value.is_string() ? value.get<std::string>() : JsonText(value));
    }
    if (text.empty()) text = CsvLine(header);
    text += CsvLine(cells);
  }
  return text;
}

}  // namespace

std::string FormatSensitivity(const SensitivityReport& report, const std::string& format) {
  if (format == "md") return SensitivityTable(report.ranked, report.bits);
  if (format == "csv") return Csv(report);
  std::string lines;
  Json products = Json::array();
  for (const OperatorSensitivity& product : report.ranked) {
    lines += JsonText(RowOf(report, product)) + '\n';
    products.push_back(ProductJson(product));
  }
  if (format == "jsonl") return lines;
  return JsonText(Json{{"schema", kSchema},
                       {"model", report.model},
                       {"model_sha256", report.model_sha256},
                       {"text_sha256", report.text_sha256},
                       {"config", report.config},
                       {"ctx", report.ctx},
                       {"windows", report.windows},
                       {"bits", report.bits},
                       {"products", products}},
                  1) +
         '\n';
}

std::string SensitivityTable(std::span<const OperatorSensitivity> ranked, int bits) {
  Table table({"operator", "layer", "KL in streams", fmt::format("KL in int{}", bits), "difference"});
  for (const OperatorSensitivity& product : ranked) {
    table.Add({std::string(ScOperatorName(product.id)), std::to_string(product.layer),
               fmt::format("{:.3e}", product.in_streams), fmt::format("{:.3e}", product.in_integers),
               fmt::format("{:.3e}", product.gain())});
  }
  return table.Markdown();
}

}  // namespace stoch::cli
