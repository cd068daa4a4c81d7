// SPDX-License-Identifier: Apache-2.0
#include "research/products/operator_digest.h"

#include <bit>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "kernels/sc/sc_parameters.h"
#include "loader/sha256.h"
#include "models/sc_plan.h"
#include "models/sc_settings.h"

namespace stoch {
namespace {

// Digests of operators that live, each made once.
class Digests {
 public:
  const std::string& Of(const ScOperatorPtr& op) {
    std::string& digest = digests_[op];
    if (digest.empty()) digest = OperatorSha256(*op);
    return digest;
  }
  // Of a linear, or a product of attention, with the products next to it.
  std::string Of(const ScOperatorPtr& op, const ScExtrasPtr& extras) {
    if (op == nullptr) return "exact";
    std::string text = Of(op);
    if (extras == nullptr) return text;
    if (extras->protected_op != nullptr) text += " protected " + Of(extras->protected_op);
    for (const ScOperatorPtr& one : extras->by_length) text += " length " + (one == nullptr ? "0" : Of(one));
    return text;
  }

 private:
  std::map<ScOperatorPtr, std::string> digests_;
};

}  // namespace

std::string OperatorSha256(const ScOperator& op) {
  const ScConfig& config = op.config;
  std::string head = "stoch-operator-v1";
  const auto add = [&head](const char* name, int64_t value) {
    head += '\n' + std::string(name) + '=' + std::to_string(value);
  };
  add("code", static_cast<int64_t>(op.code));
  add("q", op.q_max);
  add("levels", op.levels);
  add("masks", op.masks);
  add("gain", std::bit_cast<uint32_t>(op.gain));
  add("floor", std::bit_cast<uint32_t>(op.scale_floor));
  add("arith", static_cast<int64_t>(config.arith));
  add("granularity", static_cast<int64_t>(config.granularity));
  add("group_a", config.group_a);
  add("group_b", config.group_b);
  add("chunk_d", config.chunk_d);
  const ScConfig ideal;
  for (const ScParameter& parameter : ScParameters()) {
    const std::string value = parameter.get(config, parameter);
    const bool is_off =
        value == parameter.get(ideal, parameter) || (parameter.name == "fault_seed" && !HasFaults(config));
    if (IsHardware(parameter) && !is_off) head += '\n' + std::string(parameter.name) + '=' + value;
  }
  head += '\n';
  Sha256 sha;
  sha.Add(head);
  const std::vector<int32_t> entries =
      op.wide_counts.empty() ? std::vector<int32_t>(op.counts.begin(), op.counts.end()) : op.wide_counts;
  static_assert(std::endian::native == std::endian::little);
  sha.Add(std::as_bytes(std::span(entries)));
  return sha.Hex();
}

std::string OperatorsSha256(const ScModelConfig& sc, const DecoderConfig& config) {
  ScPlan plan(sc, config);
  Digests digests;
  std::string text = "attention=" + std::string(AttentionName(sc));
  for (const DilatedPair& pair : sc.DilatedPairs()) {
    text += ' ' + std::to_string(pair.segment) + ':' + std::to_string(pair.dilation);
  }
  const ScModelFiles& files = sc.files;
  text += "\nmp=" + files.mp_sha + " normalise=" + std::to_string(static_cast<int>(files.normalise)) +
          "\nsmooth=" + files.smooth_sha + "\nmask=" + files.mask_sha + '\n';
  for (const TableEntry& entry : TableFunctions()) {
    const std::string& table = (sc.tables.*entry.table).name;
    if (!table.empty()) text += std::string(entry.name) + '=' + table + '\n';
  }
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (const BlockLinear& linear : config.architecture->linears) {
      const LinearSpec spec = plan.Linear(layer, OperatorOf(linear.id));
      text += digests.Of(spec.sc, spec.extras) + '\n';
    }
    if (sc.attention == AttentionMode::kExact) continue;
    const KvCacheSpec::Products products = plan.Attention(layer);
    text += digests.Of(products.qk, products.qk_extras) + '\n' + digests.Of(products.av, products.av_extras) + '\n';
  }
  text += digests.Of(plan.Linear(-1, ScOperatorId::kLmHead).sc, nullptr);
  return Sha256Hex(text);
}

}  // namespace stoch
