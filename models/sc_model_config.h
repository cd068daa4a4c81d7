// Which SC configuration every operator of a decoder runs in, and how attention is done.
//
// Text form (the --sc flag): comma-separated settings, later ones override earlier ones.
//     preset=halved | preset=published     everything below at once
//     attention=per_token|per_head|per_row|exact
//     lm_head=0|1                          LM head exact (0, the default) or SC
//     NAME=VALUE                           a parameter of ScConfig on every operator it belongs to: chunk_d, mode,
//                                          granularity, group_a, group_b on linears only, everything else on all
//     OPERATOR.NAME=VALUE                  the same on one operator: down_proj.stoc_len=64
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/backend.h"
#include "kernels/sc/sc_config.h"

namespace stoch {

enum class ScOperatorId : uint8_t { kQProj, kKProj, kVProj, kOProj, kGateProj, kUpProj, kDownProj, kLmHead, kQk, kAv };
inline constexpr int kNumScOperators = 10;

// "q_proj", ..., "lm_head", "qk", "av".
std::string_view ScOperatorName(ScOperatorId id);

// Names of the text form: "per_token", ...
std::string_view AttentionModeName(AttentionMode mode);

// What: the whole SC configuration of a model. The granularity of qk and av follows from `attention`.
struct ScModelConfig {
  std::array<ScConfig, kNumScOperators> operators;
  AttentionMode attention = AttentionMode::kPerToken;
  bool sc_lm_head = false;

  const ScConfig& at(ScOperatorId id) const { return operators[static_cast<size_t>(id)]; }
  ScConfig& at(ScOperatorId id) { return operators[static_cast<size_t>(id)]; }

  friend bool operator==(const ScModelConfig&, const ScModelConfig&) = default;
};

// What: preset `halved`, the default: halve=1, stoc_len=128, bitrev with 64 masks, chunk_d=128, attention=per_token.
ScModelConfig HalvedScModelConfig();
// What: preset `published`: stoc_len=256, full grid, 256 masks, chunk_d=128, attention=per_head.
ScModelConfig PublishedScModelConfig();

// What:   applies settings in order to `base`; every element may itself be a comma-separated list. Checks the result.
// Errors: InvalidInput naming parameter, value and what is allowed: unknown names, values that do not parse, and
//         combinations that Validate refuses.
ScModelConfig ParseScModelConfig(std::span<const std::string> settings,
                                 const ScModelConfig& base = HalvedScModelConfig());

// What:   checks every operator that would run (Resolve) and the rules between them: attention products are bipolar
//         with a sign-magnitude code (no gate=xnor) and without chunks or groups, an SC LM head is per_row without row
//         groups of activations, per_head is no granularity of a linear.
// Errors: InvalidInput as above, with the operator's name in front.
void Validate(const ScModelConfig& config);

// What: the shortest settings that give this configuration: "preset=halved,stoc_len=64,down_proj.stoc_len=32".
//       ParseScModelConfig({Describe(c)}) == c.
std::string Describe(const ScModelConfig& config);

// What: one row's result depends on that row alone in every linear, so a sequence's bits do not depend on what else is
//       in the pass. False for per_tensor or row groups of activations.
bool IsBatchInvariant(const ScModelConfig& config);
// What: batch-invariant, and attention depends on earlier positions only, so a sequence's bits do not depend on how it
//       is cut into passes. False for attention=per_head and per_row too.
bool IsChunkInvariant(const ScModelConfig& config);

}  // namespace stoch
