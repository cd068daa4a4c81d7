// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/closed_form/closed_form.h"

#include <bit>
#include <map>
#include <string>
#include <utility>

#include "kernels/sc/number_source.h"

namespace stoch {
namespace {

size_t At(int row, int columns, int column) {
  return static_cast<size_t>(row) * static_cast<size_t>(columns) + static_cast<size_t>(column);
}

// Rows of bytes, each stored once.
class Patterns {
 public:
  // sums and steps: of the same length for every call.
  uint16_t Add(const std::vector<uint8_t>& sums, const std::vector<uint8_t>& steps, std::vector<uint8_t>* all_sums,
               std::vector<uint8_t>* all_steps) {
    std::string key(sums.begin(), sums.end());
    key.append(steps.begin(), steps.end());
    const auto [at, is_new] = ids_.try_emplace(std::move(key), static_cast<uint16_t>(ids_.size()));
    if (is_new) {
      all_sums->insert(all_sums->end(), sums.begin(), sums.end());
      all_steps->insert(all_steps->end(), steps.begin(), steps.end());
    }
    return at->second;
  }

 private:
  std::map<std::string, uint16_t> ids_;
};

// One mask's values of side b in blocks: the low digits that a block keeps, and the high ones in their order.
struct Blocks {
  std::vector<int> low;   // [blocks]: gamma of each, the short last one included
  std::vector<int> high;  // [cycles]: pi
};

// Whether low digits stay within each block and high ones differ.
std::optional<Blocks> FindBlocks(const std::vector<int>& values, int block, int lows) {
  Blocks found;
  std::vector<bool> taken(static_cast<size_t>(block));
  for (size_t n = 0; n < values.size(); ++n) {
    const int low = values[n] % lows;
    const int high = values[n] / lows;
    if (n % static_cast<size_t>(block) == 0) {
      found.low.push_back(low);
      taken.assign(taken.size(), false);
    }
    if (low != found.low.back() || taken[static_cast<size_t>(high)]) return std::nullopt;
    taken[static_cast<size_t>(high)] = true;
    found.high.push_back(high);
  }
  return found;
}

void AddHighTables(const Blocks& blocks, ScClosedForm* form, Patterns* patterns) {
  const int block = form->block;
  std::vector<uint8_t> sums(static_cast<size_t>(block) + 1);
  std::vector<uint8_t> steps(sums.size());
  for (int k = 0; k <= form->cycles; ++k) {
    if (k % block == 0) steps.assign(steps.size(), 0);  // no cycle of this block is enabled
    if (k % block != 0) steps[static_cast<size_t>(blocks.high[static_cast<size_t>(k - 1)])] = 1;
    for (size_t h = 0; h + 1 < sums.size(); ++h) sums[h + 1] = static_cast<uint8_t>(sums[h] + steps[h]);
    form->high_pattern.push_back(patterns->Add(sums, steps, &form->high_sums, &form->high_steps));
  }
}

void AddLowTables(const Blocks& blocks, ScClosedForm* form, Patterns* patterns) {
  std::vector<uint8_t> sums(static_cast<size_t>(form->lows));
  for (int q = 0; q <= form->cycles / form->block; ++q) {
    std::vector<uint8_t> steps(sums.size());
    if (static_cast<size_t>(q) < blocks.low.size()) {
      for (size_t l = 0; l < steps.size(); ++l) steps[l] = blocks.low[static_cast<size_t>(q)] < static_cast<int>(l);
    }
    form->low_pattern.push_back(patterns->Add(sums, steps, &form->low_sums, &form->low_steps));
    for (size_t l = 0; l < steps.size(); ++l) sums[l] = static_cast<uint8_t>(sums[l] + steps[l]);
  }
}

void AddEnabled(const ScOperator& op, int mask, ScClosedForm* form) {
  for (int level = 0; level < op.levels; ++level) {
    int ones = 0;
    for (int word = 0; word < op.stream_words; ++word) {
      ones += std::popcount(op.streams_a[At(mask * op.levels + level, op.stream_words, word)]);
    }
    form->enabled.push_back(static_cast<uint16_t>(ones));
  }
}

// The tables of form A of one k.
struct FormRow {
  int q;
  const uint8_t *high_sums, *high_steps, *low_sums, *low_steps;

  int Count(int h, int l) const { return q * h + high_sums[h] + low_sums[l] + (high_steps[h] & low_steps[l]); }
};

FormRow RowOf(const ScClosedForm& form, int mask, int k) {
  const int q = k / form.block;
  const size_t high = At(form.high_pattern[At(mask, form.cycles + 1, k)], form.block + 1, 0);
  const size_t low = At(form.low_pattern[At(mask, form.cycles / form.block + 1, q)], form.lows, 0);
  return {q, &form.high_sums[high], &form.high_steps[high], &form.low_sums[low], &form.low_steps[low]};
}

bool IsExact(const ScClosedForm& form, const ScOperator& op) {
  for (int mask = 0; mask < op.masks; ++mask) {
    for (int a = 0; a < op.levels; ++a) {
      const int k = form.enabled[At(mask, op.levels, a)];
      const FormRow row = RowOf(form, mask, k);
      const ScAverageTables tables = MakeAverageTables(form, mask, k);
      for (int b = 0; b < op.levels; ++b) {
        const uint16_t h = form.high[static_cast<size_t>(b)], l = form.low[static_cast<size_t>(b)];
        const int count = op.count(mask, a, b);
        if ((tables.high[h] + tables.low[l]) / 2 != count || row.Count(h, l) != count) return false;
      }
    }
  }
  return true;
}

}  // namespace

bool HasClosedForm(const ScOperator& op, int log2_block) {
  const ScConfig& config = op.config;
  if (config.gate != ScGate::kEnabled || !op.has_streams) return false;
  const auto grid = static_cast<unsigned>(config.rng_levels);
  if (!std::has_single_bit(grid) || grid >> log2_block == 0) return false;
  const int block = 1 << log2_block;
  for (int mask = 0; mask < op.masks; ++mask) {
    if (!FindBlocks(ComparatorValues(config, ScSide::kB, mask), block, config.rng_levels / block)) return false;
  }
  return true;
}

std::optional<ScClosedForm> MakeClosedFormTables(const ScOperator& op, int log2_block) {
  if (!HasClosedForm(op, log2_block)) return std::nullopt;
  const ScConfig& config = op.config;
  ScClosedForm form;
  form.block = 1 << log2_block;
  form.lows = config.rng_levels / form.block;
  form.cycles = config.stoc_len;
  form.masks = op.masks;
  form.levels = op.levels;
  for (const int boundary : LevelBoundaries(op.levels, op.q_max, config.rng_levels)) {
    form.high.push_back(static_cast<uint16_t>(boundary / form.lows));
    form.low.push_back(static_cast<uint16_t>(boundary % form.lows));
  }
  Patterns highs, lows;
  for (int mask = 0; mask < op.masks; ++mask) {
    const std::optional<Blocks> blocks = FindBlocks(ComparatorValues(config, ScSide::kB, mask), form.block, form.lows);
    if (!blocks) return std::nullopt;
    AddHighTables(*blocks, &form, &highs);
    AddLowTables(*blocks, &form, &lows);
    AddEnabled(op, mask, &form);
  }
  return form;
}

std::optional<ScClosedForm> MakeScClosedForm(const ScOperator& op, int log2_block) {
  std::optional<ScClosedForm> form = MakeClosedFormTables(op, log2_block);
  if (form && !IsExact(*form, op)) form.reset();
  return form;
}

int ClosedFormCount(const ScClosedForm& form, int mask, int a, int b) {
  const auto level = static_cast<size_t>(b);
  return RowOf(form, mask, form.enabled[At(mask, form.levels, a)]).Count(form.high[level], form.low[level]);
}

ScAverageTables MakeAverageTables(const ScClosedForm& form, int mask, int k) {
  const FormRow row = RowOf(form, mask, k);
  ScAverageTables tables;
  for (int h = 0; h <= form.block; ++h) {
    tables.high.push_back(2 * (row.q * h + row.high_sums[h]) + row.high_steps[h]);
  }
  for (int l = 0; l < form.lows; ++l) tables.low.push_back(2 * row.low_sums[l] + row.low_steps[l]);
  return tables;
}

}  // namespace stoch
