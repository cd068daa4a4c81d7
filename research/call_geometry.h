// SPDX-License-Identifier: Apache-2.0
// The products that a call of so many tokens is made of, from the shape of a model and its configuration alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "loader/config/decoder_config.h"
#include "models/sc_model_config.h"
#include "research/trace.h"

namespace stoch {

// What multiplies.
enum class ProductKind : uint8_t { kStreams, kTable, kInteger, kE4m3, kMxInt8, kFp };

// One operator of one layer.
struct ModelOperator {
  int layer = -1;  // -1: the LM head
  ScOperatorId id = ScOperatorId::kLmHead;
  std::string name;
  ProductKind kind = ProductKind::kFp;
  bool is_attention = false;
  bool mixed = false;           // rows have lengths of their own
  ScConfig config;              // resolved, where kind is not kFp
  int64_t d_in = 0, d_out = 0;  // of a linear
  int64_t row_factor = 1;       // experts that a row takes
  int64_t protected_channels = 0;
  std::vector<int64_t> protected_of_experts = {};  // of a layer with experts: in place of it, by expert
  int protected_len = 0;
  int64_t window = 0;
  bool smoothed = false;

  bool of_experts() const { return !protected_of_experts.empty(); }
};

// By layer, in the order in which the operators of a layer run, the LM head last.
// Errors: InvalidInput as ScPlan.
std::vector<ModelOperator> ListModelOperators(const DecoderConfig& config, const ScModelConfig& sc);

// Rows of a call, its first position, and rows of the LM head.
struct CallShape {
  int64_t start = 0, rows = 0, head_rows = 0;
  bool operator<(const CallShape& other) const {
    return std::tie(start, rows, head_rows) < std::tie(other.start, other.rows, other.head_rows);
  }
};

// Lengths of the rows of a call.
struct CallLengths {
  int64_t per_row = 1;
  std::vector<int> values;  // [rows][per_row]
};
// Layer, operator, query head or expert (-1: none).
using LengthsKey = std::tuple<int, ScOperatorId, int64_t>;

class CallGeometry {
 public:
  // Keeps `config`.
  CallGeometry(const DecoderConfig& config, const ScModelConfig& sc)
      : config_(config), mode_(sc.attention), dilated_(sc.DilatedPairs()) {}

  // One product for a linear, and one of all heads, or of those that admit alike; of mixed lengths one for each head,
  // and one for protected channels; the same for every expert that has rows.
  // Requires: `lengths` has those of all rows where the operator is mixed.
  std::vector<TraceCall> Calls(const ModelOperator& op, const CallShape& shape,
                               const std::map<LengthsKey, CallLengths>& lengths) const;
  Int128 Macs(const ModelOperator& op, const CallShape& shape) const;

 private:
  std::vector<TraceCall> ExpertCalls(const ModelOperator& op, const std::map<LengthsKey, CallLengths>& lengths) const;
  TraceCall AttentionCall(const ModelOperator& op, const CallShape& shape) const;
  // AttentionCall, or where it is dilated one for the heads that admit alike.
  std::vector<TraceCall> AttentionCalls(const ModelOperator& op, const CallShape& shape) const;

  const DecoderConfig& config_;
  AttentionMode mode_;
  std::vector<DilatedPair> dilated_;
};

}  // namespace stoch
