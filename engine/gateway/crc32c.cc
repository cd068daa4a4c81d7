// SPDX-License-Identifier: Apache-2.0
#include "engine/gateway/crc32c.h"

#include <array>
#include <boost/crc.hpp>

namespace stoch::serve {

namespace {
using Crc = boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true>;
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
  Crc crc(remainder_);
  crc.process_bytes(bytes.data(), bytes.size());
  remainder_ = crc.get_interim_remainder();
  return *this;
}

uint32_t Crc32c::value() const { return Crc(remainder_).checksum(); }

}  // namespace stoch::serve
