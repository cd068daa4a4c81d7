// SPDX-License-Identifier: Apache-2.0
// What every operator of every layer of a model computes, for `stoch inspect`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "loader/config/decoder_config.h"
#include "models/decoder/shard.h"
#include "models/sc_model_config.h"

namespace stoch::cli {

// One operator of the layers that have it alike.
struct OperatorRow {
  std::vector<int> layers;  // empty: the LM head
  std::string op;
  std::string arithmetic;          // "streams", "table 0123456789abcdef (signed)", "int7", "fp32"
  std::string lengths;             // "128", "128, 32 by row: amax, fixed"; "" without streams
  std::string protected_channels;  // "3 at 128"; "" where there are none
  bool smoothed = false;
  std::string kernel;  // which, and why
  std::string sha256;  // of the operator (OperatorSha256); "" where it is exact
};

// In the order of a layer, the LM head last. Errors: InvalidInput as ScPlan.
std::vector<OperatorRow> OperatorRows(const ScModelConfig& sc, const DecoderConfig& config, const Backend& backend);

// The operator whose kernel for a token has the fewest fast ones like it, and the kernel: "q_proj: mixed generic, because
// fault_product=0.01". Requires: `shard` as a device holds it.
std::string SlowestKernelText(const ScModelConfig& sc, const DecoderConfig& config, const Backend& backend,
                              const DecoderShard& shard);

std::string OperatorsText(const std::vector<OperatorRow>& rows);
nlohmann::ordered_json OperatorsJson(const std::vector<OperatorRow>& rows);

}  // namespace stoch::cli
