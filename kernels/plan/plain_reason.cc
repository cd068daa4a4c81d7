// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/plain_reason.h"

#include <string_view>
#include <vector>

#include "kernels/sc/sc_parameters.h"

namespace stoch {
namespace {

std::string ReasonOf(const ScConfig& config) {
  const ScConfig plain;
  for (const char* name : {"adder", "acc_bits", "fault_product", "fault_weight", "fault_activation", "fault_acc",
                           "arith", "gate", "mode"}) {
    const ScParameter& parameter = FindScParameter(name);
    const std::string text = parameter.get(config, parameter);
    const bool is_fast = text == parameter.get(plain, parameter) || (name == std::string_view("gate") && text == "and");
    if (!is_fast) return std::string(name) + '=' + text;
  }
  return "";
}

std::string ReasonOf(const ScOperatorPtr& op, const ScExtrasPtr& extras) {
  if (std::string reason = ReasonOf(op->config); !reason.empty()) return reason;
  if (extras == nullptr) return "";
  if (!extras->smooth.empty()) return "smooth";
  if (!extras->protected_channels.empty()) return "protected channels";
  const ScLengthRule* rule = extras->lengths.get();
  const bool is_alone =
      rule == nullptr || (rule->normalise == ScNormalise::kFixed && rule->scope != ScLengthScope::kFractions);
  return is_alone ? "" : "lengths of a whole call";
}

}  // namespace

std::string PlainReason(const LinearSpec& spec) {
  return spec.sc == nullptr ? std::string() : ReasonOf(spec.sc, spec.extras);
}

std::string PlainReason(const KvCacheSpec& spec) {
  if (spec.mode == AttentionMode::kExact) return "";
  std::vector<KvCacheSpec::Products> layers = spec.layers;
  if (layers.empty()) layers.push_back({spec.qk, spec.av});
  for (const KvCacheSpec::Products& layer : layers) {
    std::string reason = ReasonOf(layer.qk, layer.qk_extras);
    if (reason.empty()) reason = ReasonOf(layer.av, layer.av_extras);
    if (!reason.empty()) return reason;
  }
  if (spec.dilated) return "attention=dilated";
  if (spec.smooths_qk) return "factors of qk, a table of softmax or a cap of scores";
  return spec.stripes > 1 ? "mixed lengths over dealt positions" : "";
}

}  // namespace stoch
