// SPDX-License-Identifier: Apache-2.0
#include "research/calibrate/single_products.h"

#include <algorithm>
#include <filesystem>

#include "engine/kl_divergence.h"

namespace stoch {
namespace {

bool IsAttention(ScOperatorId id) { return id == ScOperatorId::kQk || id == ScOperatorId::kAv; }

}  // namespace

ScModelConfig OnlyIn(const ScModelConfig& sc, int64_t layers, bool with_attention, const KeepsProduct& keeps) {
  ScModelConfig one = sc;
  if (!with_attention) one.attention = AttentionMode::kExact;
  for (int layer = 0; layer < layers; ++layer) {
    ScOperatorConfigs operators;
    for (int i = 0; i < kNumScOperators; ++i) {
      const auto id = static_cast<ScOperatorId>(i);
      ScConfig& op = operators[static_cast<size_t>(i)];
      op = sc.at(layer, id);
      if (id == ScOperatorId::kLmHead || keeps(layer, id, &op)) continue;
      op = sc.at(layer, id);
      op.arith = IsAttention(id) ? ScArith::kInt8 : ScArith::kFp;
    }
    one.layers[layer] = operators;
  }
  one.sc_lm_head = false;
  return one;
}

PerplexityResult EvaluateWindows(const EvaluatedText& text, const EngineOptions& configuration,
                                 const decltype(PerplexityOptions::on_logits)& on_logits) {
  EngineOptions options = configuration;
  options.context = text.windows.ctx;
  options.max_pass_rows = std::max(options.max_pass_rows, text.windows.ctx);
  const auto engine = Engine::Open(text.backend, OpenModelFiles(text.model), options);
  PerplexityOptions evaluation;
  evaluation.ctx = text.windows.ctx;
  evaluation.max_windows = text.windows.count;
  evaluation.on_logits = on_logits;
  return EvaluatePerplexity(*engine, text.ids, evaluation);
}

ExactDivergence::ExactDivergence(const EvaluatedText& text, const std::string& base)
    : text_(text), base_(base), vocab_size_(OpenModelFiles(text.model).config.vocab_size) {
  try {
    KlBaseWriter writer(base_, vocab_size_);
    EngineOptions exact;
    exact.precision = Precision::kFp32;
    EvaluateWindows(text_, exact, [&](const TensorView& logits, std::span<const int32_t> targets) {
      writer.Add(*text_.backend, logits, targets);
    });
    writer.Close();
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(base_, ignored);
    throw;
  }
}

ExactDivergence::~ExactDivergence() {
  std::error_code ignored;
  std::filesystem::remove(base_, ignored);
}

double ExactDivergence::Of(const EngineOptions& configuration) const {
  KlBaseReader reader(base_, vocab_size_);
  KlComparison comparison(*text_.backend, vocab_size_);
  EvaluateWindows(text_, configuration, [&](const TensorView& logits, std::span<const int32_t> targets) {
    comparison.Add(reader, logits, targets);
  });
  return comparison.Summary().kld.mean;
}

}  // namespace stoch
