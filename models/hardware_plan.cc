// SPDX-License-Identifier: Apache-2.0
#include "models/hardware_plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/sc/hardware/accumulator.h"
#include "models/sc_plan.h"

namespace stoch {
namespace {

class Tables {
 public:
  // An operator, for sums of up to most_dims dimensions.
  void Add(const ScConfig& config, int64_t most_dims) {
    if (!HasHardware(config)) return;
    const ScConfig resolved = Resolve(config);
    const std::pair<ScConfig, int64_t> operator_of_size(resolved, most_dims);
    if (std::find(counted_.begin(), counted_.end(), operator_of_size) != counted_.end()) return;
    counted_.push_back(operator_of_size);
    bytes_ += ScAccumulator(*MakeScOperator(config), most_dims).bytes();
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::vector<std::pair<ScConfig, int64_t>> counted_;
  int64_t bytes_ = 0;
};

bool HasHardware(const ScModelConfig& sc) {
  const auto any = [](const ScOperatorConfigs& operators) {
    return std::any_of(operators.begin(), operators.end(), [](const ScConfig& op) { return HasHardware(op); });
  };
  return any(sc.operators) ||
         std::any_of(sc.layers.begin(), sc.layers.end(), [&](const auto& layer) { return any(layer.second); });
}

}  // namespace

int64_t HardwareTableBytes(const DecoderConfig& config, const ScModelConfig& sc, int64_t positions) {
  if (!HasHardware(sc)) return 0;
  const ScPlan plan(sc, config);
  Tables tables;
  const auto add_linear = [&](int layer, ScOperatorId id, int64_t in_features) {
    ScConfig op = plan.Config(layer, id);
    const auto depth = [&](int64_t dims) { return op.chunk_d > 0 ? std::min(op.chunk_d, dims) : dims; };
    const std::vector<int32_t>* channels = plan.ProtectedChannels(layer, ScOperatorName(id));
    const int64_t own = channels == nullptr ? 0 : static_cast<int64_t>(channels->size());
    if (in_features > own) tables.Add(op, depth(in_features - own));
    if (own == 0) return;
    op.stoc_len = sc.files.mp->protected_len;
    tables.Add(op, depth(own));
  };
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (const BlockLinear& linear : config.architecture->linears) {
      const bool of_experts = config.HasExperts(layer) && !linear.expert.empty();
      add_linear(layer, OperatorOf(linear.id), SizeOf(config, of_experts ? ExpertAxis(linear.in) : linear.in));
    }
    if (sc.attention == AttentionMode::kExact) continue;
    tables.Add(plan.Config(layer, ScOperatorId::kQk), config.head_dim);
    tables.Add(plan.Config(layer, ScOperatorId::kAv), positions);
  }
  if (sc.sc_lm_head) add_linear(-1, ScOperatorId::kLmHead, config.hidden_size);
  return tables.bytes();
}

}  // namespace stoch
