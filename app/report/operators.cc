// SPDX-License-Identifier: Apache-2.0
#include "app/report/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <utility>

#include "app/report/table.h"
#include "kernels/sc/sc_parameters.h"
#include "models/decoder/memory_plan.h"
#include "models/sc_plan.h"
#include "research/products/operator_digest.h"

namespace stoch::cli {
namespace {

using Json = nlohmann::ordered_json;

const char* MetricName(ScMetric metric) {
  switch (metric) {
    case ScMetric::kAmax: return "amax";
    case ScMetric::kL2: return "l2";
    case ScMetric::kCrest: return "crest";
  }
  return "?";
}

std::string TextOf(const ScConfig& config, std::string_view parameter) {
  const ScParameter& found = FindScParameter(parameter);
  return found.get(config, found);
}

std::string ArithmeticText(const ScConfig& config) {
  if (config.arith != ScArith::kSc) return TextOf(config, "arith");
  if (config.gate == ScGate::kTable) return fmt::format("table {} ({})", config.table, TextOf(config, "table_code"));
  if (config.gate == ScGate::kCounts) return fmt::format("counts {} ({})", config.counts, TextOf(config, "mode"));
  return fmt::format("streams ({}, {})", TextOf(config, "mode"), TextOf(config, "gate"));
}

std::string LengthsText(const ScConfig& config, const ScExtras* extras) {
  if (config.arith != ScArith::kSc || config.gate == ScGate::kTable) return "";
  if (extras == nullptr || extras->lengths == nullptr) return std::to_string(config.stoc_len);
  const ScLengthRule& rule = *extras->lengths;
  const char* normalise = rule.normalise == ScNormalise::kFixed ? "fixed" : "call";
  std::string how;
  switch (rule.scope) {
    case ScLengthScope::kRow: how = rule.ladders.empty() ? "row" : "row and band"; break;
    case ScLengthScope::kChunk: how = "row and chunk"; break;
    case ScLengthScope::kFractions: how = "order of rows"; break;
  }
  return fmt::format("{} by {}: {}{}, {}{}", fmt::join(rule.Lengths(), " "), how, rule.sign < 0 ? "-" : "",
                     MetricName(rule.metric), normalise, rule.escapes ? ", escape gate" : "");
}

// Steps after the sum of a product (docs/hardware.md), as ", then NAME=VALUE" each; "" without any.
std::string AfterSumText(const ScConfig& config) {
  std::string text;
  for (const char* name : {"fault_product", "acc_bits", "fault_acc"}) {
    if (TextOf(config, name) != TextOf({}, name)) text += fmt::format(", then {}={}", name, TextOf(config, name));
  }
  return text;
}

std::string CountsText(const ScOperator& op) {
  if (op.config.arith == ScArith::kFp8E4m3) return "numbers of E4M3, exact sums";
  if (op.is_int_product) return "multiplication: every entry is the exact product";
  if (!op.wide_counts.empty()) return fmt::format("lookup of 32-bit entries: up to {}", op.max_count);
  if (op.code == ScCode::kOffset) return "lookup of 16-bit entries: signs lie in the table";
  return fmt::format("lookup of counts up to {}", op.max_count);
}

constexpr const char* kGates = "gates, cycle by cycle: adder=";

// The way of a backend without kernels to choose from: it looks counts up, or simulates gates.
std::string LookupText(const ScOperator& op) {
  const bool has_gates = op.config.adder != ScAdder::kCounter;
  return (has_gates ? kGates + TextOf(op.config, "adder") : CountsText(op)) + AfterSumText(op.config);
}

std::string KernelText(const Backend& backend, const LinearSpec& spec, int64_t out_features, int64_t in_features) {
  constexpr int64_t kPrompt = 512;
  const std::string decode = backend.LinearKernel(spec, {&out_features, 1}, in_features, 1);
  if (decode.empty()) return LookupText(*spec.sc);
  const std::string prompt = backend.LinearKernel(spec, {&out_features, 1}, in_features, kPrompt);
  return decode == prompt ? decode : decode + "; prompts: " + prompt;
}

OperatorRow RowOf(const LinearSpec& spec, std::string_view name) {
  OperatorRow row;
  row.op = std::string(name);
  if (spec.sc == nullptr) {
    row.arithmetic = "fp32";
    row.kernel = "exact";
    return row;
  }
  const ScExtras* extras = spec.extras.get();
  row.arithmetic = ArithmeticText(spec.sc->config);
  row.lengths = LengthsText(spec.sc->config, extras);
  if (extras != nullptr && !extras->protected_channels.empty()) {
    row.protected_channels =
        fmt::format("{} at {}", extras->protected_channels.size(), extras->protected_op->config.stoc_len);
  }
  row.smoothed = extras != nullptr && !extras->smooth.empty();
  row.sha256 = OperatorSha256(*spec.sc);
  return row;
}

bool Alike(const OperatorRow& a, const OperatorRow& b) {
  return a.op == b.op && a.arithmetic == b.arithmetic && a.lengths == b.lengths &&
         a.protected_channels == b.protected_channels && a.smoothed == b.smoothed && a.kernel == b.kernel &&
         a.sha256 == b.sha256;
}

// Rows of a layer join those that are alike.
void Join(std::vector<OperatorRow>* rows, OperatorRow row, int layer) {
  const auto found =
      std::find_if(rows->begin(), rows->end(), [&](const OperatorRow& other) { return Alike(other, row); });
  if (found != rows->end()) {
    found->layers.push_back(layer);
    return;
  }
  row.layers = {layer};
  // Next to the rows of its operator.
  const auto last = std::find_if(rows->rbegin(), rows->rend(), [&](const auto& other) { return other.op == row.op; });
  rows->insert(last == rows->rend() ? rows->end() : last.base(), std::move(row));
}

std::string LayersText(const std::vector<int>& layers) {
  std::string text;
  for (size_t i = 0, end; i < layers.size(); i = end) {
    end = i + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
    text += (text.empty() ? "" : "+") + std::to_string(layers[i]);
    if (end > i + 1) text += "-" + std::to_string(layers[end - 1]);
  }
  return text.empty() ? "-" : text;
}

// An order of kernels: those that no fast one stands in for come last.
int SlownessOf(const std::string& kernel) {
  constexpr const char* kSlowestFirst[] = {", because ", kGates, ", then ", "32-bit entries"};
  for (size_t i = 0; i < std::size(kSlowestFirst); ++i) {
    if (kernel.find(kSlowestFirst[i]) != std::string::npos) return static_cast<int>(std::size(kSlowestFirst) - i);
  }
  return 0;
}

}  // namespace

std::string SlowestKernelText(const ScModelConfig& sc, const DecoderConfig& config, const Backend& backend,
                              const DecoderShard& shard) {
  constexpr int64_t kStep[] = {1};
  std::vector<std::pair<std::string, std::string>> kernels;  // by operator
  for (const OperatorKernels& one : KernelsOf(config, Precision::kSc, sc, backend, shard, kStep)) {
    if (!one.kernels[0].empty()) kernels.emplace_back(one.op, one.kernels[0]);
  }
  if (kernels.empty()) {  // nothing is chosen by the number of tokens
    for (const OperatorRow& row : OperatorRows(sc, config, backend)) {
      if (row.sha256.empty()) continue;  // exact
      kernels.emplace_back(row.op + (row.layers.empty() ? "" : " of layers " + LayersText(row.layers)), row.kernel);
    }
  }
  if (kernels.empty()) return "no operator is in SC";
  const auto slowest = std::max_element(kernels.begin(), kernels.end(), [](const auto& a, const auto& b) {
    return SlownessOf(a.second) < SlownessOf(b.second);
  });
  return slowest->first + ": " + slowest->second;
}

std::vector<OperatorRow> OperatorRows(const ScModelConfig& sc, const DecoderConfig& config, const Backend& backend) {
  ScPlan plan(sc, config);
  std::vector<OperatorRow> rows;
  std::vector<LinearSpec> kept;  // equal operators are built once while one of them lives
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (const BlockLinear& linear : config.architecture->linears) {
      const ScOperatorId id = OperatorOf(linear.id);
      kept.push_back(plan.Linear(layer, id));
      OperatorRow row = RowOf(kept.back(), ScOperatorName(id));
      if (kept.back().sc != nullptr) {
        row.kernel = KernelText(backend, kept.back(), SizeOf(config, linear.out), SizeOf(config, linear.in));
      }
      Join(&rows, std::move(row), layer);
    }
    if (sc.attention == AttentionMode::kExact) continue;
    const KvCacheSpec::Products products = plan.Attention(layer);
    for (const auto& [id, op, extras] : {std::tuple(ScOperatorId::kQk, products.qk, products.qk_extras),
                                         std::tuple(ScOperatorId::kAv, products.av, products.av_extras)}) {
      kept.push_back({Precision::kSc, op, extras});
      OperatorRow row = RowOf(kept.back(), ScOperatorName(id));
      if (backend.name() == "cpu") row.kernel = LookupText(*op);  // others choose by length: `kernels`
      Join(&rows, std::move(row), layer);
    }
  }
  const LinearSpec head = plan.Linear(-1, ScOperatorId::kLmHead);
  rows.push_back(RowOf(head, "lm_head"));
  if (head.sc != nullptr) rows.back().kernel = KernelText(backend, head, config.vocab_size, config.hidden_size);
  return rows;
}

std::string OperatorsText(const std::vector<OperatorRow>& rows) {
  Table table({"operator", "layers", "arithmetic", "lengths", "protected channels", "smoothed", "kernel", "sha256"});
  const auto or_none = [](const std::string& text) { return text.empty() ? std::string("-") : text; };
  for (const OperatorRow& row : rows) {
    table.Add({row.op, LayersText(row.layers), row.arithmetic, or_none(row.lengths), or_none(row.protected_channels),
               row.smoothed ? "yes" : "-", or_none(row.kernel), or_none(row.sha256.substr(0, 16))});
  }
  return table.Markdown();
}

Json OperatorsJson(const std::vector<OperatorRow>& rows) {
  Json json = Json::array();
  for (const OperatorRow& row : rows) {
    json.push_back({{"operator", row.op},
                    {"layers", row.layers},
                    {"arithmetic", row.arithmetic},
                    {"lengths", row.lengths},
                    {"protected_channels", row.protected_channels},
                    {"smoothed", row.smoothed},
                    {"kernel", row.kernel},
                    {"operator_sha256", row.sha256}});
  }
  return json;
}

}  // namespace stoch::cli
