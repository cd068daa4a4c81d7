// SPDX-License-Identifier: Apache-2.0
#include "research/calibrate/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/sc/sc_parameters.h"
#include "loader/json_text.h"
#include "research/calibrate/length_samples.h"

namespace stoch {
namespace {

using Json = nlohmann::ordered_json;

bool IsAttention(ScOperatorId id) { return id == ScOperatorId::kQk || id == ScOperatorId::kAv; }

ScArith Integers(int bits) { return static_cast<ScArith>(static_cast<int>(ScArith::kInt2) + bits - 2); }

std::string ArithName(const ScConfig& op) {
  const ScParameter& arith = FindScParameter("arith");
  return arith.get(op, arith);
}

// The divergence with one product in its own arithmetic, or in integers of `bits` above 0.
double Alone(const ExactDivergence& divergence, const ScModelConfig& sc, int64_t layers,
             const OperatorSensitivity& product, int bits) {
  EngineOptions options;
  options.sc = OnlyIn(sc, layers, IsAttention(product.id), [&](int layer, ScOperatorId id, ScConfig* op) {
    if (layer != product.layer || id != product.id) return false;
    if (bits > 0) op->arith = Integers(bits);
    return true;
  });
  return divergence.Of(options);
}

}  // namespace

std::vector<OperatorSensitivity> MeasureSensitivity(const EvaluatedText& text, const ScModelConfig& sc, int bits,
                                                    const std::string& base) {
  if (bits < 2 || bits > 8) throw InvalidInput("--bits " + std::to_string(bits) + ": allowed is 2..8");
  const DecoderConfig config = OpenModelFiles(text.model).config;
  CheckWindows(text.windows, text.ids.size());
  std::vector<OperatorSensitivity> products;
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (int i = 0; i < kNumScOperators; ++i) {
      const auto id = static_cast<ScOperatorId>(i);
      const bool runs = id != ScOperatorId::kLmHead && !(IsAttention(id) && sc.attention == AttentionMode::kExact);
      if (runs && InStreams(sc.at(layer, id))) products.push_back({layer, id});
    }
  }
  if (products.empty()) throw InvalidInput("no operator runs in streams: there is nothing to rank");
  const ExactDivergence divergence(text, base);
  for (OperatorSensitivity& product : products) {
    product.in_streams = Alone(divergence, sc, config.num_hidden_layers, product, 0);
    product.in_integers = Alone(divergence, sc, config.num_hidden_layers, product, bits);
  }
  std::stable_sort(products.begin(), products.end(),
                   [](const OperatorSensitivity& a, const OperatorSensitivity& b) { return a.gain() > b.gain(); });
  return products;
}

std::string SensitivityMask(std::span<const OperatorSensitivity> ranked, const ScModelConfig& sc, int64_t layers,
                            double share, int bits) {
  if (!(share >= 0 && share <= 1)) throw InvalidInput("--share " + std::to_string(share) + ": allowed is 0..1");
  const auto count = static_cast<size_t>(std::floor(share * static_cast<double>(ranked.size())));
  Json schedule = Json::object();
  for (const OperatorSensitivity& product : ranked.first(count)) {
    Json& entries = schedule[std::string(ScOperatorName(product.id))];
    for (int layer = 0; entries.is_null() || static_cast<int64_t>(entries.size()) < layers; ++layer) {
      entries.push_back(ArithName(sc.at(layer, product.id)));
    }
    entries[static_cast<size_t>(product.layer)] = "int" + std::to_string(bits);
  }
  const Json mask = {{"format", "scmp_llm_hybrid_v1"}, {"int_bits", bits}, {"schedule", schedule}};
  return JsonText(mask, 1) + '\n';
}

}  // namespace stoch
