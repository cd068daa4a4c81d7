// SPDX-License-Identifier: Apache-2.0
// CRC32C (Castagnoli) of fields one after another, each with its length, so that no two lists of fields are the same bytes.
#pragma once

#include <cstdint>
#include <string_view>

namespace stoch {

// Finds every error of up to 32 neighbouring bits, and misses others once in 2^32. It is no signature: whoever may write
// the bytes can write a fitting one.
// Bits:   the same on every machine; integers count as 8 bytes, the least significant first.
// Source: RFC 3720, appendix B.4; eight tables of bytes (slicing-by-8: Kounavis and Berry, "Novel Table Lookup-Based
//         Algorithms for High-Performance CRC Generation", 2008), because rows between ranks are megabytes and Boost.CRC
//         goes by one table.
class Crc32c {
 public:
  Crc32c& Add(int64_t value);
  Crc32c& Add(std::string_view bytes);     // its length, then the bytes
  Crc32c& AddRaw(std::string_view bytes);  // the bytes alone
  uint32_t value() const { return ~remainder_; }

 private:
  uint32_t remainder_ = 0xFFFFFFFF;
};

}  // namespace stoch
