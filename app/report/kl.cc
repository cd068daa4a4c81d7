// SPDX-License-Identifier: Apache-2.0
#include "app/report/kl.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

namespace stoch::cli {
namespace {

constexpr size_t kPercentile99 = 7;
static_assert(kKlPercentiles[kPercentile99] == 99);

std::string PercentileName(size_t i) {
  if (i == 0) return "Minimum";
  if (i + 1 == std::size(kKlPercentiles)) return "Maximum";
  return kKlPercentiles[i] == 50 ? "Median" : fmt::format("{:.1f}%", kKlPercentiles[i]);
}

std::string Line(const std::string& name, const MeanError& value, double factor, const char* unit) {
  return fmt::format("{:<24}: {:10.6f} ± {:10.6f}{}\n", name, value.mean * factor, value.error * factor, unit);
}

nlohmann::ordered_json Pair(const MeanError& value) { return {{"mean", value.mean}, {"error", value.error}}; }

nlohmann::ordered_json Percentiles(const std::vector<double>& values) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (size_t i = 0; i < values.size(); ++i) json[fmt::format("{}", kKlPercentiles[i])] = values[i];
  return json;
}

}  // namespace

std::vector<std::string> KlCells(const KlSummary& summary) {
  return {fmt::format("{:.6f}", summary.kld.mean), fmt::format("{:.4f}", summary.kld_percentiles[kPercentile99]),
          fmt::format("{:.2f} %", summary.same_top.mean * 100), fmt::format("{:.3f} %", summary.rms_dp.mean * 100)};
}

std::string KlText(const KlSummary& summary) {
  const auto perplexity = [](const MeanError& nll) {
    return MeanError{std::exp(nll.mean), std::exp(nll.mean) * nll.error};
  };
  std::string text = "====== Perplexity statistics ======\n";
  text += Line("Mean PPL(Q)", perplexity(summary.nll), 1, "");
  text += Line("Mean PPL(base)", perplexity(summary.nll_base), 1, "");
  text += fmt::format("{:<24}: {:9.2f}%\n", "Cor(ln(PPL(Q)), ln(PPL(base)))", summary.correlation * 100);
  text += Line("Mean ln(PPL(Q)/PPL(base))", summary.log_ppl_ratio, 1, "");
  text += "\n====== KL divergence statistics ======\n";
  text += Line("Mean    KLD", summary.kld, 1, "");
  for (size_t i = summary.kld_percentiles.size(); i-- > 0;) {
    text += fmt::format("{:<8}KLD: {:10.6f}\n", PercentileName(i), summary.kld_percentiles[i]);
  }
  text += "\n====== Token probability statistics ======\n";
  text += Line("Mean    Δp", summary.dp, 100, " %");
  for (size_t i = summary.dp_percentiles.size(); i-- > 0;) {
    text += fmt::format("{:<8}Δp: {:8.3f}%\n", PercentileName(i), summary.dp_percentiles[i] * 100);
  }
  text += Line("RMS Δp", summary.rms_dp, 100, " %");
  text += Line("Same top p", summary.same_top, 100, " %");
  return text;
}

nlohmann::ordered_json KlJson(const KlSummary& summary) {
  return {{"rows", summary.rows},
          {"nll", Pair(summary.nll)},
          {"nll_base", Pair(summary.nll_base)},
          {"correlation", summary.correlation},
          {"log_ppl_ratio", Pair(summary.log_ppl_ratio)},
          {"kld", Pair(summary.kld)},
          {"kld_percentiles", Percentiles(summary.kld_percentiles)},
          {"dp", Pair(summary.dp)},
          {"dp_percentiles", Percentiles(summary.dp_percentiles)},
          {"rms_dp", Pair(summary.rms_dp)},
          {"same_top", Pair(summary.same_top)}};
}

}  // namespace stoch::cli
