// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/gpu/mixed_cases.h"

#include <utility>

#include "kernels/plan/linear/mixed_traits.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::test {

ScConfig MixedConfig(int64_t chunk_d) {
  ScConfig config;
  config.halve = true;
  config.chunk_d = chunk_d;
  return config;
}

MultiplierTablePtr OddTable(int gain, bool is_signed) {
  auto table = std::make_shared<MultiplierTable>();
  table->is_signed = is_signed;
  const int low = is_signed ? -128 : 0;
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) table->entries.push_back((a + low) * (b + low) * gain + (a + low == 0 ? b + low : 0));
  }
  return MultiplierTablePtr{std::move(table)};
}

std::shared_ptr<ScLengthRule> RowRule(std::vector<int> levels) {
  auto rule = std::make_shared<ScLengthRule>();
  rule->lo = 0.0f;
  rule->hi = 40.0f;
  for (size_t i = 1; i < levels.size(); ++i) rule->thresholds.push_back(1.0f - 0.25f * static_cast<float>(i + 1));
  rule->levels = std::move(levels);
  return rule;
}

ScExtrasPtr MakeExtras(const ScConfig& config, const std::shared_ptr<ScLengthRule>& rule,
                       const std::function<void(ScExtras*)>& edit) {
  auto extras = std::make_shared<ScExtras>();
  extras->op = "test_proj";
  if (rule != nullptr) {
    extras->lengths = rule;
    extras->by_length = MakeScOperators(config, rule->Lengths());
  }
  if (edit) edit(extras.get());
  return extras;
}

std::vector<LinearCase> LinearCases() {
  const ScConfig plain = MixedConfig(128);
  const auto rows = [&](const std::function<void(ScLengthRule*)>& edit, ScConfig config = MixedConfig(128)) {
    auto rule = RowRule({128, 64, 24});
    if (edit) edit(rule.get());
    config.stoc_len = 128;
    return LinearSpec{Precision::kSc, MakeScOperator(config), MakeExtras(config, rule)};
  };
  std::vector<LinearCase> cases;
  cases.push_back({"rows", rows({}), true, true});
  cases.push_back({"pruned rows", rows([](ScLengthRule* r) { r->levels = {128, 64, 0}; }), true, true});
  cases.push_back({"short rows", rows([](ScLengthRule* r) { r->levels = {90, 64, 7}; }), true, true, true, false});
  ScConfig full = MixedConfig(128);
  full.halve = false;
  cases.push_back({"rows of up to 256",
                   rows(
                       [](ScLengthRule* r) {
                         r->levels = {256, 128, 48};
                       },
                       full),
                   true, false, false});
  cases.push_back({"l2 and sign", rows([](ScLengthRule* r) {
                     r->metric = ScMetric::kL2;
                     r->sign = -1.0f;
                     r->lo = -60.0f;
                     r->hi = 0.0f;
                   }),
                   true, true});
  cases.push_back({"crest and escape", rows([](ScLengthRule* r) {
                     r->metric = ScMetric::kCrest;
                     r->hi = 1.0f;
                     r->escapes = true;
                     r->escape_threshold = 0.4;
                     r->escape_len = 96;
                   }),
                   true, true});
  cases.push_back({"call", rows([](ScLengthRule* r) { r->normalise = ScNormalise::kCall; })});
  cases.push_back({"fractions", rows([](ScLengthRule* r) {
                     r->scope = ScLengthScope::kFractions;
                     r->normalise = ScNormalise::kCall;
                     r->fractions = {0.25, 0.5, 0.25};
                   })});
  cases.push_back({"chunks", rows([](ScLengthRule* r) {
                     r->scope = ScLengthScope::kChunk;
                     r->levels = {16, 64, 128};
                     r->thresholds = {0.1f, 0.3f};
                   }),
                   true, true});
  cases.push_back({"bands", rows([](ScLengthRule* r) {
                     r->chunk_bands = {1, 0, 1};
                     r->ladders = {{128, 96, 0}, {64, 32, 8}};
                   }),
                   true, true});
  ScConfig groups = MixedConfig(128);
  groups.group_a = 3;
  groups.group_b = 5;
  cases.push_back({"groups of rows", rows({}, groups)});
  ScConfig gate = MixedConfig(128);
  gate.gate = ScGate::kXnor;
  gate.halve = false;
  cases.push_back({"xnor", rows({}, gate)});
  const auto special = [&](const std::function<void(ScExtras*)>& edit) {
    return LinearSpec{Precision::kSc, MakeScOperator(plain), MakeExtras(plain, RowRule({128, 48}), edit)};
  };
  const auto smooth = [](ScExtras* e) {
    for (int64_t i = 0; i < kMixedCols; ++i) e->smooth.push_back(0.3f + 0.01f * static_cast<float>(i));
  };
  const auto own = [&](ScExtras* e) {
    e->protected_channels = {0, 5, 130, 299};
    ScConfig longest = plain;
    longest.stoc_len = 128;
    e->protected_op = MakeScOperator(longest);
  };
  cases.push_back({"smooth", special(smooth)});
  cases.push_back({"protected", special(own)});
  cases.push_back({"smooth and protected", special([&](ScExtras* e) {
                     smooth(e);
                     own(e);
                   })});
  for (const ScArith arith : {ScArith::kInt2, ScArith::kInt7, ScArith::kInt8}) {
    ScConfig config = MixedConfig(128);
    config.arith = arith;
    cases.push_back({"integers", {Precision::kSc, MakeScOperator(config)}});
  }
  for (const int gain : {1, 4}) {  // 4: entries beyond 16 bits
    ScConfig config;
    config.chunk_d = 128;
    config.gate = ScGate::kTable;
    config.table = "odd" + std::to_string(gain);
    config.multiplier = OddTable(gain, true);
    cases.push_back({"table", {Precision::kSc, MakeScOperator(config)}});
    config.table_code = ScTableCode::kUnsigned;
    config.table += "u";
    config.multiplier = OddTable(gain, false);
    config.mode = ScMode::kUnipolar;
    config.chunk_d = 0;
    cases.push_back({"unsigned table", {Precision::kSc, MakeScOperator(config)}});
  }
  return cases;
}

ExpectedRoutes::ExpectedRoutes(const LinearCase& c)
    : case_(c),
      longest_(MakeScTraits(*LongestOperator(OperatorsBySlot(c.spec.sc, c.spec.extras)))),
      usual_(MakeScTraits(*MakeScOperator(MixedConfig(128)))) {}

std::optional<LinearRoute> ExpectedRoutes::At(const GpuTraits& gpu, int64_t rows) const {
  // Stages of shorter streams fit less shared memory, and some GPUs have too little for tables of 128 cycles.
  const bool wgmma = case_.prompts && CanPrefillWgmma(gpu, longest_, true);
  const std::vector<int64_t> out_features = {70, 33};
  const auto plain = [&](int64_t tokens) {
    return PlanScLinear(gpu, usual_, {tokens, kMixedCols, out_features}).route;
  };
  const bool batches = case_.decodes && case_.batches && longest_.stoc_len == 128;
  if (batches && wgmma && rows >= 17 && rows <= 128) return LinearRoute::kMixedBatch;
  const bool looks_up = case_.decodes && case_.looks_up && rows >= 2;
  if (looks_up && rows <= 4 && plain(4) == LinearRoute::kScFew) return LinearRoute::kMixedFew;
  if (looks_up && rows > 4 && rows <= 128 && plain(8) == LinearRoute::kScTable) return LinearRoute::kMixedTable;
  if (case_.prompts && wgmma && rows >= 33) return LinearRoute::kMixedPrompt;
  if (case_.decodes && rows <= 32) return LinearRoute::kMixedDecode;
  return std::nullopt;
}

}  // namespace stoch::test
