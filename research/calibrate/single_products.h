// SPDX-License-Identifier: Apache-2.0
// Models of which some products alone are not exact, and how far from the exact model they are on a text.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "engine/engine.h"
#include "engine/perplexity.h"
#include "models/sc_model_config.h"
#include "research/calibrate/exact_windows.h"

namespace stoch {

// Whether a product of a layer stays in what `sc` says, which may be changed.
using KeepsProduct = std::function<bool(int layer, ScOperatorId id, ScConfig* op)>;

// `sc` in the products that `keeps` chooses. The others: exact, of attention int8, or all of attention exact without
// `with_attention`, since it is exact for a whole model or not at all. The LM head is exact.
ScModelConfig OnlyIn(const ScModelConfig& sc, int64_t layers, bool with_attention, const KeepsProduct& keeps);

// What models are evaluated on.
struct EvaluatedText {
  CalibrationWindows windows;
  std::shared_ptr<Backend> backend;
  std::string model;
  std::span<const int32_t> ids;
};

// The windows through the model in another configuration.
PerplexityResult EvaluateWindows(const EvaluatedText& text, const EngineOptions& configuration,
                                 const decltype(PerplexityOptions::on_logits)& on_logits);

// Divergences (KL, as stoch perplexity --kl) from the exact model, whose logits wait in a file.
class ExactDivergence {
 public:
  // Writes `base`, which is removed with this. Errors: InvalidInput for a file that cannot be written.
  ExactDivergence(const EvaluatedText& text, const std::string& base);
  ~ExactDivergence();
  ExactDivergence(const ExactDivergence&) = delete;
  ExactDivergence& operator=(const ExactDivergence&) = delete;

  double Of(const EngineOptions& configuration) const;

 private:
  const EvaluatedText& text_;
  std::string base_;
  int64_t vocab_size_;
};

}  // namespace stoch
