// SPDX-License-Identifier: Apache-2.0
// Any bytes are either refused with one sentence or read as a multiplier table: as they are in every form, and filled up
// to 65536 entries, more than mutation would ever write, in the form that the size says.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "loader/research/multiplier_file.h"
#include "tests/fuzz/try.h"

namespace {

// Zeros behind what is there.
std::string Filled(const std::string& text, const std::string& name) {
  constexpr size_t kEntries = 65536;
  if (name == "fuzz.bin") return text + std::string(2 * kEntries - std::min(2 * kEntries, text.size()), '\0');
  if (name == "fuzz.npy") {
    // Behind a header whose length the file says, of 2 or 4 bytes an entry.
    const size_t wide = text.find("i4") == std::string::npos ? 2 : 4;
    const size_t header = text.size() < 10 ? 0 : static_cast<uint8_t>(text[8]) + 256 * static_cast<uint8_t>(text[9]);
    const size_t full = 10 + header + wide * kEntries;
    return text + std::string(full - std::min(full, text.size()), '\0');
  }
  size_t entries = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (digit && (i + 1 == text.size() || text[i + 1] < '0' || text[i + 1] > '9')) ++entries;
  }
  std::string filled = text;
  for (; entries < kEntries; ++entries) filled += ",0";
  return name == "fuzz.h" ? filled + "};" : filled;
}

void Parse(const std::string& bytes, const std::string& name) {
  stoch::test::Try([&] {
    const stoch::MultiplierTable table =
        stoch::ParseMultiplierFile(bytes, name, stoch::ScTableCode::kFile, stoch::ScTableOrder::kFile);
    stoch::test::Check(table.entries.size() == 65536);
    for (const int32_t entry : table.entries) stoch::test::Check(std::abs(entry) <= 1 << 17);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::array<std::string, 4> kNames = {"fuzz.h", "fuzz.txt", "fuzz.bin", "fuzz.npy"};
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const std::string& name : kNames) Parse(text, name);
  const std::string& name = text.starts_with("\x93NUMPY") ? kNames[3] : kNames[size % 3];
  Parse(Filled(text, name), name);
  return 0;
}
