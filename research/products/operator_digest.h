// SPDX-License-Identifier: Apache-2.0
// Identity of what operators compute, whatever settings it came from.
#pragma once

#include <string>

#include "kernels/sc/sc_operator.h"
#include "loader/config/decoder_config.h"
#include "models/sc_model_config.h"

namespace stoch {

// sha256, 64 hex digits, of all that a product's bits depend on: code, Q, levels, masks, gain and floor, counts as
// little-endian int32, arithmetic, granularity, groups, chunk_d.
std::string OperatorSha256(const ScOperator& op);

// sha256 of the operators of every layer of a model in order, of every length and protected product of theirs, of the
// attention mode and of the files: two configurations with the same one give the same bits.
// Errors: InvalidInput as ScPlan.
std::string OperatorsSha256(const ScModelConfig& sc, const DecoderConfig& config);

}  // namespace stoch
