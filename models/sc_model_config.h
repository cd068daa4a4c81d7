// SPDX-License-Identifier: Apache-2.0
// Which SC configuration every operator of a decoder runs in, and how attention is done.
//
// Text form (the --sc flag): comma-separated settings, later ones override earlier ones.
//     preset=halved | preset=published     everything below at once
//     attention=per_token|per_head|per_row|exact
//     attention=dilated                    per_token on the positions that pairs (segments[i], dilation[i]) admit:
//     segments=2048:8192, dilation=1:4     both lists, of equal length
//     lm_head=0|1                          LM head exact (0, the default) or SC
//     silu=FILE, softmax=FILE, rms_norm=FILE    a table in the place of SiLU, exp, 1 / sqrt, of the whole model
//     NAME=VALUE                           a parameter of ScConfig on every operator it belongs to: chunk_d, mode,
//                                          granularity, group_a, group_b on linears only, everything else on all
//     OPERATOR.NAME=VALUE                  the same on one operator: down_proj.stoc_len=64
//     LAYERS.[OPERATOR.]NAME=VALUE         the same in some layers: ranges joined by +, as 0-3+28-31
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "kernels/dilated.h"
#include "kernels/math/nonlinear_table.h"
#include "kernels/sc/sc_config.h"
#include "loader/config/architecture.h"
#include "loader/research/mp_file.h"
#include "loader/research/smooth_file.h"

namespace stoch {

// The matrices of a block (LinearId), the LM head and the products of attention.
enum class ScOperatorId : uint8_t { kQProj, kKProj, kVProj, kOProj, kGateProj, kUpProj, kDownProj, kLmHead, kQk, kAv };
inline constexpr int kNumScOperators = 10;
constexpr ScOperatorId OperatorOf(LinearId id) { return static_cast<ScOperatorId>(id); }
static_assert(OperatorOf(LinearId::kQProj) == ScOperatorId::kQProj);
static_assert(OperatorOf(LinearId::kDownProj) == ScOperatorId::kDownProj);
static_assert(static_cast<int>(ScOperatorId::kLmHead) == kNumBlockLinears);

// "q_proj", ..., "lm_head", "qk", "av".
std::string_view ScOperatorName(ScOperatorId id);

using ScOperatorConfigs = std::array<ScConfig, kNumScOperators>;

// Files that a configuration refers to; they are the same if their hashes are. Hashes: the first 16 hex digits of the
// sha256 of what was read, "" where there is no file.
struct ScModelFiles {
  std::shared_ptr<const MpFile> mp;
  std::shared_ptr<const SmoothFile> smooth;
  std::string mp_sha, smooth_sha, mask_sha;
  ScNormalise normalise = ScNormalise::kFixed;  // of mp
  std::string mask_name;                        // for messages
  std::map<std::string, int64_t> mask_layers;   // entries that its schedule has, by operator

  friend bool operator==(const ScModelFiles& a, const ScModelFiles& b) {
    return a.mp_sha == b.mp_sha && a.smooth_sha == b.smooth_sha && a.mask_sha == b.mask_sha &&
           a.normalise == b.normalise;
  }
};

// Dilated attention: the lists of its pairs.
struct ScDilatedConfig {
  bool enabled = false;
  std::vector<int64_t> segments, dilation;  // tokens; empty unless enabled

  friend bool operator==(const ScDilatedConfig&, const ScDilatedConfig&) = default;
};

// A function of the whole model as a table. `name` is its file until that is read, then the first 16 digits of its
// sha256; "": the function is exact. They are the same if their names are.
struct ScTable {
  std::string name;
  std::shared_ptr<const NonlinearTable> table;

  friend bool operator==(const ScTable& a, const ScTable& b) { return a.name == b.name; }
};
struct ScTables {
  ScTable silu, softmax, rms_norm;

  friend bool operator==(const ScTables&, const ScTables&) = default;
};

// The whole SC configuration of a model. The granularity of qk and av follows from `attention`.
struct ScModelConfig {
  ScOperatorConfigs operators;
  std::map<int, ScOperatorConfigs> layers = {};  // those with settings of their own
  ScModelFiles files = {};
  AttentionMode attention = AttentionMode::kPerToken;
  ScDilatedConfig dilated = {};  // kPerToken
  bool sc_lm_head = false;
  ScTables tables = {};

  std::vector<DilatedPair> DilatedPairs() const;  // empty: attention is not dilated

  const ScConfig& at(ScOperatorId id) const { return operators[static_cast<size_t>(id)]; }
  ScConfig& at(ScOperatorId id) { return operators[static_cast<size_t>(id)]; }
  const ScConfig& at(int layer, ScOperatorId id) const {
    const auto own = layers.find(layer);
    return (own == layers.end() ? operators : own->second)[static_cast<size_t>(id)];
  }

  friend bool operator==(const ScModelConfig&, const ScModelConfig&) = default;
};

// The name of the text form: "per_token", "dilated", ...
std::string_view AttentionName(const ScModelConfig& config);

// Preset `halved`, the default: halve=1, stoc_len=128, bitrev with 64 masks, chunk_d=128, attention=per_token.
ScModelConfig HalvedScModelConfig();
// Preset `published-2026`: stoc_len=256, full grid, 64 masks, chunk_d=128, attention=per_row.
ScModelConfig Published2026ScModelConfig();
// Preset `published`: stoc_len=256, full grid, 256 masks, chunk_d=128, attention=per_head.
ScModelConfig PublishedScModelConfig();

// Applies settings in order to `base`; every element may itself be a comma-separated list. Checks the result.
// Errors: InvalidInput naming parameter, value and what is allowed: unknown names, values that do not parse, and
//         combinations that Validate refuses.
ScModelConfig ParseScModelConfig(std::span<const std::string> settings,
                                 const ScModelConfig& base = HalvedScModelConfig());

// Checks every operator that would run (Resolve) and the rules between them: attention products are bipolar with a
// sign-magnitude code (no gate=xnor) and without chunks or groups, an SC LM head is per_row without row groups of
// activations, per_head is no granularity of a linear.
// Errors: InvalidInput as above, with the operator's name in front.
void Validate(const ScModelConfig& config);

// The shortest settings that give this configuration: "preset=halved,stoc_len=64,down_proj.stoc_len=32".
// ParseScModelConfig({Describe(c)}) == c.
std::string Describe(const ScModelConfig& config);

// One row's result depends on that row alone in every linear, so a sequence's bits do not depend on what else is in the
// pass. False for per_tensor or row groups of activations.
bool IsBatchInvariant(const ScModelConfig& config);
// Which faults a model whose positions are dealt over devices does not have, as "faults of qk"; "" where it has all.
std::string WhyNotDealt(const ScModelConfig& config);
// Whether an operator that runs draws faults by row (FaultRow).
bool DrawsFaultsByRow(const ScModelConfig& config);
// Lengths depend on the other rows of a call: --mp-normalise call, or a table of fractions.
bool DependsOnCall(const ScModelConfig& config);
// Which setting makes rows of a pass depend on each other or on how a text is cut, in words; "" where none does, which is
// where IsChunkInvariant.
std::string WhyPassesCouple(const ScModelConfig& config);
// Batch-invariant, and attention depends on earlier positions only, so a sequence's bits do not depend on how it is cut
// into passes. False for attention=per_head and per_row too.
bool IsChunkInvariant(const ScModelConfig& config);

}  // namespace stoch
