// SPDX-License-Identifier: Apache-2.0
#include "loader/crc32c.h"

#include <array>
#include <cstddef>

namespace stoch {
namespace {

constexpr size_t kSlices = 8;
using Tables = std::array<std::array<uint32_t, 256>, kSlices>;

// tables[k][b]: the remainder of byte b followed by k zero bytes.
constexpr Tables MakeTables() {
  constexpr uint32_t kReflected = 0x82F63B78;  // 0x1EDC6F41, the lowest bit first
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? kReflected : 0);
    tables[0][byte] = remainder;
  }
  for (size_t k = 1; k < kSlices; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

Crc32c& Crc32c::Add(int64_t value) {
  std::array<char, sizeof(value)> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
  return AddRaw({bytes.data(), bytes.size()});
}

Crc32c& Crc32c::Add(std::string_view bytes) {
  Add(static_cast<int64_t>(bytes.size()));
  return AddRaw(bytes);
}

Crc32c& Crc32c::AddRaw(std::string_view bytes) {
  const auto at = [&bytes](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])); };
  uint32_t remainder = remainder_;
  while (bytes.size() >= kSlices) {
    remainder ^= at(0) | at(1) << 8 | at(2) << 16 | at(3) << 24;
    remainder = kTables[7][remainder & 0xFF] ^ kTables[6][remainder >> 8 & 0xFF] ^ kTables[5][remainder >> 16 & 0xFF] ^
                kTables[4][remainder >> 24] ^ kTables[3][at(4)] ^ kTables[2][at(5)] ^ kTables[1][at(6)] ^
                kTables[0][at(7)];
    bytes.remove_prefix(kSlices);
  }
  for (size_t i = 0; i < bytes.size(); ++i) remainder = (remainder >> 8) ^ kTables[0][(remainder ^ at(i)) & 0xFF];
  remainder_ = remainder;
  return *this;
}

}  // namespace stoch
