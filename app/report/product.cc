// SPDX-License-Identifier: Apache-2.0
#include "app/report/product.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>

#include "app/report/table.h"
#include "kernels/base/error.h"
#include "loader/json_text.h"
#include "loader/research/npy_file.h"
#include "models/sc_settings.h"
#include "research/products/operator_digest.h"

namespace stoch::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShaDigits = 16;

// Without what only changes scopes.
ScConfig OneProduct(const ScConfig& config) {
  const ScConfig plain;
  ScConfig product = config;
  product.granularity = plain.granularity;
  product.group_a = plain.group_a;
  product.group_b = plain.group_b;
  product.chunk_d = plain.chunk_d;
  return Resolve(product);
}

bool Runs(const ScModelConfig& sc, ScOperatorId id, const ScConfig& op) {
  if (op.arith != ScArith::kSc || op.gate == ScGate::kTable) return false;
  if (id == ScOperatorId::kLmHead) return sc.sc_lm_head;
  return !IsAttentionProduct(id) || sc.attention != AttentionMode::kExact;
}

Json CorrelationJson(const StreamCorrelation& correlation, const std::string& name) {
  const bool defined = correlation.pairs > 0;
  return {{name, defined ? Json(correlation.mean) : Json()},
          {"abs_" + name, defined ? Json(correlation.mean_abs) : Json()}};
}

std::string Short(double value) { return fmt::format("{:.6g}", value); }

std::string CorrelationText(const StreamCorrelation& correlation) {
  if (correlation.pairs == 0) return "undefined";
  return fmt::format("{:.4f} (mean abs {:.4f}, {} pairs)", correlation.mean, correlation.mean_abs, correlation.pairs);
}

std::string ReportText(const DistinctProduct& product) {
  const ScOperator& op = *product.op;
  const ProductReport report = ReportProduct(op);
  const ProductErrors& e = report.errors;
  const double length = op.config.stoc_len;
  std::string text = fmt::format("{}\nproduct {}, sha256 {}: {} masks, {} pairs of levels, {} cycles\n\n",
                                 fmt::join(product.operators, " "), product.config,
                                 OperatorSha256(op).substr(0, kShaDigits), op.masks, e.pairs, op.config.stoc_len);
  Table errors({"error of a count", "counts", "of the length"});
  for (const auto& [name, value] : {std::pair("mean abs e", e.mae), std::pair("bias", e.bias),
                                    std::pair("rmse", e.rmse), std::pair("max abs e", e.max)}) {
    errors.Add({name, Short(value), Short(value / length)});
  }
  errors.Add({fmt::format("mean abs e of the worst mask, {}", e.worst_mask), Short(e.worst_mask_mae),
              Short(e.worst_mask_mae / length)});
  text += errors.Markdown();
  if (report.correlation) {
    text += fmt::format(
        "\nSCC of the two streams of a dimension     {}\n"
        "SCC of two masks of side a, equal levels  {}\n"
        "SCC of two masks of side b, equal levels  {}\n",
        CorrelationText(report.correlation->sides), CorrelationText(report.correlation->dims_a),
        CorrelationText(report.correlation->dims_b));
  }
  if (report.progress) {
    for (size_t i = 0; i < ProductProgress::kBounds.size(); ++i) {
      const std::optional<int>& cycles = report.progress->cycles_within[i];
      text += fmt::format("mean error of count / t at most {:<4} from cycle  {}\n", ProductProgress::kBounds[i],
                          cycles ? std::to_string(*cycles) : "never");
    }
  }
  return text;
}

template <typename Add>
void ForEachPair(const ScOperator& op, const Add& add) {
  const int low = op.code == ScCode::kOffset ? -op.q_max : 0;
  for (int mask = 0; mask < op.masks; ++mask) {
    for (int a = low; a <= op.q_max; ++a) {
      for (int b = low; b <= op.q_max; ++b) add(mask, a, b, op.count(mask, a - low, b - low));
    }
  }
}

}  // namespace

std::vector<DistinctProduct> DistinctProducts(const ScModelConfig& sc, std::string_view only) {
  std::vector<DistinctProduct> products;
  std::vector<ScConfig> configs;
  bool found = only.empty();
  const auto add = [&](ScOperatorId id, const ScConfig& config, const std::string& name) {
    found = found || name == only;
    if (!Runs(sc, id, config) || (!only.empty() && name != only)) return;
    const ScConfig one = OneProduct(config);
    const auto known = std::find(configs.begin(), configs.end(), one);
    if (known != configs.end()) {
      products[static_cast<size_t>(known - configs.begin())].operators.push_back(name);
      return;
    }
    configs.push_back(one);
    products.push_back({{name}, Describe(one), MakeScOperator(one)});
  };
  for (int i = 0; i < kNumScOperators; ++i) {
    const ScOperatorId id = OperatorAt(i);
    const std::string name(ScOperatorName(id));
    add(id, sc.at(id), name);
    for (const auto& [layer, operators] : sc.layers) {
      const ScConfig& own = operators[static_cast<size_t>(i)];
      if (id == ScOperatorId::kLmHead || (own == sc.at(id) && only.empty())) continue;
      add(id, own, std::to_string(layer) + '.' + name);
    }
  }
  if (!found) {
    throw InvalidInput("--op " + std::string(only) +
                       ": allowed is an operator, as q_proj, or one of a layer with settings of its own, as 3.q_proj");
  }
  return products;
}

Json ReportJson(const ScOperator& op) {
  const ProductReport report = ReportProduct(op);
  const ProductErrors& e = report.errors;
  const double length = op.config.stoc_len;
  Json json = {{"mae", e.mae},
               {"bias", e.bias},
               {"rmse", e.rmse},
               {"max", e.max},
               {"worst_mask", e.worst_mask},
               {"worst_mask_mae", e.worst_mask_mae},
               {"masks", op.masks},
               {"pairs", e.pairs}};
  json["relative"] = {{"mae", e.mae / length},
                      {"bias", e.bias / length},
                      {"rmse", e.rmse / length},
                      {"max", e.max / length},
                      {"worst_mask_mae", e.worst_mask_mae / length}};
  if (report.correlation) {
    json.update(CorrelationJson(report.correlation->sides, "scc"));
    json["scc_pairs"] = report.correlation->sides.pairs;
    json.update(CorrelationJson(report.correlation->dims_a, "scc_dims_a"));
    json.update(CorrelationJson(report.correlation->dims_b, "scc_dims_b"));
  }
  if (report.progress) {
    json["mae_of_cycles"] = report.progress->mae_of_cycles;
    for (size_t i = 0; i < ProductProgress::kBounds.size(); ++i) {
      const std::optional<int>& cycles = report.progress->cycles_within[i];
      json[fmt::format("cycles_within_{}", ProductProgress::kBounds[i])] = cycles ? Json(*cycles) : Json();
    }
  }
  return json;
}

const ScOperator& OnlyProduct(const std::vector<DistinctProduct>& products, const char* option) {
  if (products.size() == 1) return *products.front().op;
  std::string names;
  for (const DistinctProduct& product : products) {
    names += (names.empty() ? "" : " | ") + fmt::format("{}", fmt::join(product.operators, " "));
  }
  throw InvalidInput(
      fmt::format("{}: {} products differ ({}): choose an operator with --op", option, products.size(), names));
}

std::string ProductsText(const std::vector<DistinctProduct>& products) {
  std::string text;
  for (const DistinctProduct& product : products) text += (text.empty() ? "" : "\n") + ReportText(product);
  return text;
}

std::string ProductsJson(const std::vector<DistinctProduct>& products) {
  Json list = Json::array();
  for (const DistinctProduct& product : products) {
    Json one = {{"operators", product.operators},
                {"config", product.config},
                {"operator_sha256", OperatorSha256(*product.op)},
                {"stoc_len", product.op->config.stoc_len}};
    one.update(ReportJson(*product.op));
    list.push_back(std::move(one));
  }
  return JsonText(Json{{"products", list}});
}

std::string ProductCsv(const ScOperator& op) {
  std::string text = "mask,a,b,count,ideal\n";
  const double scale = static_cast<double>(op.q_max) * op.q_max;
  ForEachPair(op, [&](int mask, int a, int b, int count) {
    const double ideal = static_cast<double>(int64_t{op.config.stoc_len} * a * b) / scale;
    fmt::format_to(std::back_inserter(text), "{},{},{},{},{}\n", mask, a, b, count, ideal);
  });
  return text;
}

std::string ProductCounts(const ScOperator& op) {
  if (!op.wide_counts.empty())
    throw InvalidInput("--counts: counts up to " + std::to_string(op.max_count) + " do not fit 16 bits");
  const std::array<int64_t, 3> shape = {op.masks, op.levels, op.levels};
  return NpyOfInt16(shape, op.counts);
}

}  // namespace stoch::cli
