// SPDX-License-Identifier: Apache-2.0
// Matrices that multiply the same activations, as they are in every layer: what plans of memory and of kernels ask of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "loader/config/decoder_config.h"
#include "models/sc_model_config.h"

namespace stoch {

// On one device.
struct OperatorGroup {
  std::vector<ScOperatorId> ids;
  std::string op;                     // "qkv_proj", "lm_head"
  std::vector<int64_t> out_features;  // of each
  int64_t in_features = 0;
  ExpertShape of_token = {};  // the linears of experts: rows of x for a token, slots of a row, experts; else no experts
};

// Whether a plan of `a` is one of `b`: rules of lengths may differ in their thresholds and bounds.
bool PlannedAlike(const LinearSpec& a, const LinearSpec& b);

// What is loaded for a group, [layers][ids]: in every layer, but none twice that is planned alike. The LM head has one.
// sc: read in kSc. Errors: InvalidInput as ScPlan.
std::vector<std::vector<LinearSpec>> LayerSpecs(const DecoderConfig& config, Precision precision,
                                                const ScModelConfig& sc, std::span<const ScOperatorId> ids);

// Scratch of a group in any layer. Matrices of one specification share launches: of all of them at most.
int64_t GroupScratchBytes(const OperatorGroup& group, const std::vector<std::vector<LinearSpec>>& layers,
                          int64_t tokens, const Backend& backend);
// The kernels of so many tokens, those of one specification together, "; " between different ones.
std::string GroupKernels(const OperatorGroup& group, const std::vector<std::vector<LinearSpec>>& layers, int64_t tokens,
                         const Backend& backend);

}  // namespace stoch
