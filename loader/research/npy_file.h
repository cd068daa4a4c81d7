// SPDX-License-Identifier: Apache-2.0
// Arrays of whole numbers as numpy saves them (.npy).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace stoch {

struct NpyArray {
  std::string type;              // as in the header: "<i2", "<u2", "<i4", "|i1"
  std::vector<int64_t> shape;    // as given
  std::vector<int64_t> numbers;  // C order, whatever the file has
};

// The array of `bytes`, a file of that name, versions 1.0 to 3.0, of one of `types`, C or Fortran order.
// Errors: InvalidInput "NAME: ..., expected EXPECTED": no header, another type, sizes that disagree.
// Source: numpy's format specification (numpy.lib.format).
NpyArray ParseNpy(const std::string& bytes, const std::string& name, std::span<const char* const> types,
                  const std::string& expected);

// The bytes of an array of int16, C order, version 1.0. Requires: as many numbers as the shape says.
std::string NpyOfInt16(std::span<const int64_t> shape, std::span<const int16_t> numbers);

}  // namespace stoch
