// SPDX-License-Identifier: Apache-2.0
#include "loader/research/count_file.h"

#include <array>
#include <bit>
#include <cstdlib>

#include "kernels/base/error.h"
#include "loader/research/npy_file.h"

namespace stoch {

CountTable ParseCountFile(const std::string& bytes, const std::string& name) {
  constexpr std::array<const char*, 3> kTypes = {"|i1", "<i2", "<i4"};
  constexpr int64_t kMostMasks = 256, kLeastLevels = 4, kMostLevels = 256, kMostEntry = 32767;
  const NpyArray array = ParseNpy(bytes, name, kTypes, "a .npy of [masks, levels, levels] in int8, int16 or int32");
  std::string text;
  for (const int64_t size : array.shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  const size_t dims = array.shape.size();
  const int64_t levels = array.shape.back();
  const int64_t masks = dims == 3 ? array.shape.front() : 1;
  const auto power = [](int64_t value) { return std::has_single_bit(static_cast<uint64_t>(value)); };
  const bool shaped = (dims == 2 || dims == 3) && array.shape[dims - 2] == levels && levels >= kLeastLevels &&
                      levels <= kMostLevels && power(levels) && masks >= 1 && masks <= kMostMasks && power(masks);
  if (!shaped) {
    throw InvalidInput(name + ": [" + text +
                       "]: allowed is [masks, levels, levels] or [levels, levels], masks a power " +
                       "of two in 1..256, levels 2^(sc_prec-1) or 2^sc_prec");
  }
  CountTable table;
  table.masks = static_cast<int>(masks);
  table.levels = static_cast<int>(levels);
  table.entries.reserve(array.numbers.size());
  for (const int64_t number : array.numbers) {
    if (std::abs(number) > kMostEntry) {
      throw InvalidInput(name + ": the entry " + std::to_string(number) + ": allowed is -32767..32767");
    }
    table.entries.push_back(static_cast<int32_t>(number));
  }
  return table;
}

}  // namespace stoch
