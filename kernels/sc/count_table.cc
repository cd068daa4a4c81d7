// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/count_table.h"

#include "kernels/base/error.h"

namespace stoch {
void CheckCountTable(const CountTable& table, int sc_prec, bool unipolar, const std::string& name) {
  const int magnitudes = 1 << (sc_prec - 1);
  const int codes = 1 << sc_prec;
  if (table.levels == codes || (table.levels == magnitudes && !unipolar)) return;
  const auto shape = [](const std::string& masks, int levels) {
    return '[' + masks + ", " + std::to_string(levels) + ", " + std::to_string(levels) + ']';
  };
  std::string allowed = shape("masks", codes);
  if (!unipolar) allowed = shape("masks", magnitudes) + " or " + allowed;
  throw InvalidInput(name + ": " + shape(std::to_string(table.masks), table.levels) + ": allowed for sc_prec=" +
                     std::to_string(sc_prec) + (unipolar ? " with mode=unipolar" : "") + " is " + allowed);
}

}  // namespace stoch
