// SPDX-License-Identifier: Apache-2.0
#include "app/report/profile.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "app/report/cost.h"
#include "app/report/kl.h"
#include "app/report/table.h"
#include "loader/json_text.h"

namespace stoch::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kWorst = 10;

// {schema, model_sha256, text_sha256, config, mode, layer, ...}
Json RowOf(const ProfileReport& report, const ProfileResult& result, const ProfileRow& row) {
  Json json = {{"schema", "stoch-profile-v1"},
               {"model_sha256", report.model_sha256},
               {"text_sha256", report.text_sha256},
               {"config", result.config},
               {"mode", report.mode}};
  json.update(ProfileRowJson(row));
  return json;
}

Json SummaryOf(const ProfileReport& report, const ProfileResult& result) {
  Json worst = Json::array();
  for (const size_t i : result.Worst(kWorst)) {
    const ProfileRow& row = result.rows[i];
    worst.push_back({{"layer", row.layer < 0 ? Json(nullptr) : Json(row.layer)},
                     {"op", row.op},
                     {"mse", row.error.mse},
                     {"mse_share", result.MseShare(i)}});
  }
  Json json = {{"config", result.config},
               {"windows", result.perplexity.windows},
               {"predictions", result.perplexity.predictions},
               {"mean_nll", result.perplexity.mean_nll},
               {"ppl", result.perplexity.ppl},
               {"ppl_error", result.perplexity.ppl_error},
               {"dnll", result.kl.nll.mean - result.kl.nll_base.mean},
               {"same_top", result.kl.same_top.mean},
               {"kl", KlJson(result.kl)},
               {"sc_cost", result.cost.ToJson()},
               {"worst", worst}};
  if (report.energy) json["energy"] = EnergyJson(PriceCost(result.cost, *report.energy), *report.energy);
  return json;
}

std::string Csv(const ProfileReport& report) {
  std::vector<std::string> header;
  std::string text;
  for (const ProfileResult& result : report.results) {
    for (const ProfileRow& row : result.rows) {
      const Json json = RowOf(report, result, row);
      std::vector<std::string> cells;
      if (header.empty()) {
        for (const auto& [key, value] : json.items()) header.push_back(key);
        text += CsvLine(header);
      }
      for (const auto& [key, value] : json.items()) {
        cells.push_back(value.is_null() ? "" : value.is_string() ? value.get<std::string>() : value.dump());
      }
      text += CsvLine(cells);
    }
  }
  return text;
}

std::string Number(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

std::string Layer(const ProfileRow& row) { return row.layer < 0 ? "-" : std::to_string(row.layer); }

std::string Markdown(const ProfileReport& report, const ProfileResult& result) {
  std::string text = fmt::format("{}: {}, {} errors\n\n", report.model, result.config, report.mode);
  Table table({"layer", "operator", "head", "mse", "of quantization", "of streams", "cross", "bias", "max", "SQNR dB",
               "cosine", "sigma 50 %", "90 %", "99 %"});
  for (const ProfileRow& row : result.rows) {
    const ErrorMetrics& e = row.error;
    table.Add({Layer(row), row.op, row.head < 0 ? "-" : std::to_string(row.head), Number(e.mse, "{:.4g}"),
               Number(e.mse_quant, "{:.4g}"), Number(e.mse_stream, "{:.4g}"), Number(e.cross, "{:.3g}"),
               Number(e.bias, "{:.3g}"), Number(e.max_abs, "{:.4g}"), Number(e.sqnr_db, "{:.2f}"),
               Number(e.cosine, "{:.6f}"), Number(e.sigma_p50, "{:.4g}"), Number(e.sigma_p90, "{:.4g}"),
               Number(e.sigma_p99, "{:.4g}")});
  }
  text += table.Markdown() + "\nLargest shares of mse:\n\n";
  Table worst({"layer", "operator", "mse", "share"});
  for (const size_t i : result.Worst(kWorst)) {
    const ProfileRow& row = result.rows[i];
    worst.Add({Layer(row), row.op, Number(row.error.mse, "{:.4g}"), fmt::format("{:.1f} %", 100 * result.MseShare(i))});
  }
  text += worst.Markdown();
  text += fmt::format("\nppl {:.4f} +- {:.4f}, {:+.5f} nll against fp32, mean KLD {:.6f}, same top {:.2f} %\n",
                      result.perplexity.ppl, result.perplexity.ppl_error, result.kl.nll.mean - result.kl.nll_base.mean,
                      result.kl.kld.mean, 100 * result.kl.same_top.mean);
  text += CostText(result.cost);
  return report.energy ? text + EnergyText(PriceCost(result.cost, *report.energy)) : text;
}

}  // namespace

std::string FormatProfile(const ProfileReport& report, const std::string& format) {
  if (format == "csv") return Csv(report);
  std::string text;
  if (format == "md") {
    for (const ProfileResult& result : report.results) {
      text += (text.empty() ? "" : "\n") + Markdown(report, result);
    }
    return text;
  }
  Json list = Json::array();
  for (const ProfileResult& result : report.results) {
    Json rows = Json::array();
    for (const ProfileRow& row : result.rows) {
      rows.push_back(RowOf(report, result, row));
      if (format == "jsonl") text += JsonText(rows.back()) + '\n';
    }
    Json summary = SummaryOf(report, result);
    if (format == "jsonl") {
      Json line = {{"schema", "stoch-profile-config-v1"},
                   {"model_sha256", report.model_sha256},
                   {"text_sha256", report.text_sha256},
                   {"mode", report.mode}};
      line.update(summary);
      text += JsonText(line) + '\n';
      continue;
    }
    summary["rows"] = rows;
    list.push_back(summary);
  }
  if (format == "jsonl") return text;
  return JsonText(Json{{"schema", "stoch-profile-v1"},
                       {"model", report.model},
                       {"model_sha256", report.model_sha256},
                       {"text_sha256", report.text_sha256},
                       {"mode", report.mode},
                       {"ctx", report.ctx},
                       {"configurations", list}},
                  1) +
         '\n';
}

}  // namespace stoch::cli
