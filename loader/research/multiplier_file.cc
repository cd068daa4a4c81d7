// SPDX-License-Identifier: Apache-2.0
#include "loader/research/multiplier_file.h"

#include <array>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "loader/quote.h"
#include "loader/research/npy_file.h"

namespace stoch {
namespace {

constexpr size_t kEntries = 65536;
constexpr int64_t kMostEntry = 1 << 17;

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

[[noreturn]] void RejectCount(const std::string& name, size_t count) {
  throw InvalidInput(name + ": expected 65536 entries, got " + std::to_string(count));
}

// Numbers in file order.
std::vector<int64_t> ParseNumbers(std::string_view text, const std::string& name) {
  std::vector<int64_t> numbers;
  const auto separates = [](char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == ',' || c == '{' || c == '}' || c == ';';
  };
  for (size_t at = 0; at < text.size();) {
    if (separates(text[at])) {
      ++at;
      continue;
    }
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), value);
    const auto next = static_cast<size_t>(end - text.data());
    if (error != std::errc() || (next < text.size() && !separates(text[next]))) {
      throw InvalidInput(name + ": byte " + std::to_string(at) + " begins " + Quoted(text.substr(at, 20)) +
                         ": expected a whole number");
    }
    numbers.push_back(value);
    if (numbers.size() > kEntries) RejectCount(name, numbers.size());
    at = next;
  }
  return numbers;
}

// A C array without comments and what comes before its first brace.
std::string ArrayText(const std::string& text, const std::string& name) {
  std::string plain;
  for (size_t at = 0; at < text.size();) {
    if (text.compare(at, 2, "//") == 0) {
      at = std::min(text.find('\n', at), text.size());
    } else if (text.compare(at, 2, "/*") == 0) {
      const size_t end = text.find("*/", at + 2);
      if (end == std::string::npos) throw InvalidInput(name + ": a comment does not end");
      at = end + 2;
      plain += ' ';
    } else {
      plain += text[at++];
    }
  }
  const size_t open = plain.find('{');
  const size_t close = plain.rfind('}');
  if (open == std::string::npos || close == std::string::npos || close < open) {
    throw InvalidInput(name + ": expected a C array in braces");
  }
  return plain.substr(open, close - open + 1);
}

struct Npy {
  std::vector<int64_t> numbers;
  bool is_unsigned = false;
};

// The entries of a .bin.
std::vector<int64_t> Uint16s(std::string_view data) {
  std::vector<int64_t> numbers(kEntries);
  for (size_t i = 0; i < kEntries; ++i) {
    uint16_t value;
    std::memcpy(&value, data.data() + i * sizeof(value), sizeof(value));
    numbers[i] = value;
  }
  return numbers;
}

Npy ReadNpy(const std::string& bytes, const std::string& name) {
  constexpr std::array<const char*, 3> kTypes = {"<i2", "<u2", "<i4"};
  const std::string expected = "a .npy of [256, 256] in int16, uint16 or int32";
  NpyArray array = ParseNpy(bytes, name, kTypes, expected);
  if (array.shape != std::vector<int64_t>{256, 256}) throw InvalidInput(name + ": another shape, expected " + expected);
  return {std::move(array.numbers), array.type == "<u2"};
}

struct Reading {
  bool is_signed;
  ScTableOrder order;  // of a signed one
  const char* name;
};
constexpr Reading kReadings[] = {{true, ScTableOrder::kByte, "signed in byte order"},
                                 {true, ScTableOrder::kNumeric, "signed in numeric order"},
                                 {false, ScTableOrder::kNumeric, "unsigned"}};

MultiplierTable Read(const std::vector<int64_t>& numbers, const Reading& reading) {
  MultiplierTable table;
  table.is_signed = reading.is_signed;
  table.entries.resize(kEntries);
  // Where operand i of numeric order is in the file.
  const bool turned = reading.is_signed && reading.order == ScTableOrder::kByte;
  const auto place = [&](size_t i) { return turned ? (i + 128) % 256 : i; };
  for (size_t a = 0; a < 256; ++a) {
    for (size_t b = 0; b < 256; ++b) {
      table.entries[a * 256 + b] = static_cast<int32_t>(numbers[place(a) * 256 + place(b)]);
    }
  }
  return table;
}

std::string Short(double value) {
  std::string text = std::to_string(value);
  return text.substr(0, text.find('.') + 2);
}

}  // namespace

MultiplierTable ParseMultiplierFile(const std::string& bytes, const std::string& name, ScTableCode code,
                                    ScTableOrder order) {
  std::vector<int64_t> numbers;
  bool is_signed = true;
  ScTableOrder own_order = ScTableOrder::kByte;
  if (EndsWith(name, ".h")) {
    numbers = ParseNumbers(ArrayText(bytes, name), name);
  } else if (EndsWith(name, ".txt")) {
    numbers = ParseNumbers(bytes, name);
    own_order = ScTableOrder::kNumeric;
  } else if (EndsWith(name, ".bin")) {
    if (bytes.size() != 2 * kEntries) {
      throw InvalidInput(name + ": expected 131072 bytes, 65536 entries of 2, got " + std::to_string(bytes.size()));
    }
    numbers = Uint16s(bytes);
    is_signed = false;
  } else if (EndsWith(name, ".npy")) {
    Npy npy = ReadNpy(bytes, name);
    is_signed = !npy.is_unsigned;
    numbers = std::move(npy.numbers);
  } else {
    throw InvalidInput(name + ": expected a multiplier table ending in .h, .bin, .txt or .npy");
  }
  if (numbers.size() != kEntries) RejectCount(name, numbers.size());
  for (const int64_t number : numbers) {
    if (number < -kMostEntry || number > kMostEntry) {
      throw InvalidInput(name + ": the entry " + std::to_string(number) + ": allowed is -131072..131072");
    }
  }
  if (code == ScTableCode::kSigned) is_signed = true;
  // A magnitude 0..127 is the same operand in both readings but in numeric order of a signed table.
  if (code == ScTableCode::kUnsigned) is_signed = false;
  if (order != ScTableOrder::kFile) own_order = order;
  const Reading chosen{is_signed, own_order, is_signed ? "signed" : "unsigned"};
  MultiplierTable table = Read(numbers, chosen);
  if (code != ScTableCode::kFile && (order != ScTableOrder::kFile || code == ScTableCode::kUnsigned)) return table;
  const double error = MeasureMultiplier(table).mae;
  for (const Reading& other : kReadings) {
    if (other.is_signed == chosen.is_signed && (!other.is_signed || other.order == chosen.order)) continue;
    const double mae = MeasureMultiplier(Read(numbers, other)).mae;
    if (mae > error / 4 || error == 0) continue;
    throw InvalidInput(name + " reads better as " + other.name + " (MAE " + Short(mae) + ") than as " + chosen.name +
                       " (MAE " + Short(error) + "): give table_code and table_order");
  }
  return table;
}

}  // namespace stoch
