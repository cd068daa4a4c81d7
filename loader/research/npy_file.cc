// SPDX-License-Identifier: Apache-2.0
#include "loader/research/npy_file.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include "kernels/base/check.h"
#include "kernels/base/error.h"

namespace stoch {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMostDims = 4;
constexpr int64_t kMostNumbers = int64_t{1} << 26;

template <typename T>
std::vector<int64_t> Elements(std::string_view data) {
  std::vector<T> values(data.size() / sizeof(T));
  std::memcpy(values.data(), data.data(), values.size() * sizeof(T));
  return {values.begin(), values.end()};
}

// What stands after 'key': in a header without blanks; "" if nothing does.
std::string_view ValueOf(std::string_view header, const std::string& key) {
  const std::string quoted = '\'' + key + "':";
  const size_t at = header.find(quoted);
  return at == std::string_view::npos ? std::string_view() : header.substr(at + quoted.size());
}

// "(64,128,128)"; empty for what is no shape of 1 to 4 dimensions.
std::vector<int64_t> ShapeOf(std::string_view text) {
  std::vector<int64_t> shape;
  if (text.empty() || text[0] != '(') return {};
  const size_t close = text.find(')');
  if (close == std::string_view::npos) return {};
  for (std::string_view rest = text.substr(1, close - 1); !rest.empty();) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc() || value < 0 || value > kMostNumbers || shape.size() == kMostDims) return {};
    shape.push_back(value);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    if (!rest.empty() && rest[0] != ',') return {};
    if (!rest.empty()) rest.remove_prefix(1);
  }
  return shape;
}

// Numbers of Fortran order in C order.
std::vector<int64_t> Turned(const std::vector<int64_t>& numbers, const std::vector<int64_t>& shape) {
  std::vector<int64_t> turned(numbers.size());
  std::vector<int64_t> index(shape.size(), 0);
  for (const int64_t number : numbers) {  // the first index is fastest
    size_t at = 0;
    for (size_t d = 0; d < shape.size(); ++d) at = at * static_cast<size_t>(shape[d]) + static_cast<size_t>(index[d]);
    turned[at] = number;
    for (size_t d = 0; d < shape.size() && ++index[d] == shape[d]; ++d) index[d] = 0;
  }
  return turned;
}

}  // namespace

NpyArray ParseNpy(const std::string& bytes, const std::string& name, std::span<const char* const> types,
                  const std::string& expected) {
  const auto reject = [&](const std::string& what) -> void {
    throw InvalidInput(name + ": " + what + ", expected " + expected);
  };
  if (bytes.size() < 12 || bytes.compare(0, kMagic.size(), kMagic) != 0) reject("no .npy header");
  const bool is_first = bytes[6] == 1;
  const size_t prefix = is_first ? 10 : 12;
  const auto byte = [&](size_t at) { return static_cast<size_t>(static_cast<uint8_t>(bytes[at])); };
  size_t header_size = byte(8) | byte(9) << 8;
  if (!is_first) header_size |= byte(10) << 16 | byte(11) << 24;
  if (header_size > bytes.size() - prefix) reject("a header beyond the end");
  std::string header = bytes.substr(prefix, header_size);
  std::erase(header, ' ');
  NpyArray array;
  array.shape = ShapeOf(ValueOf(header, "shape"));
  if (array.shape.empty()) reject("another shape");
  size_t count = 1;
  for (const int64_t size : array.shape) {
    count *= static_cast<size_t>(size);
    if (count > static_cast<size_t>(kMostNumbers)) reject("too large a shape");
  }
  for (const char* type : types) {
    if (ValueOf(header, "descr").starts_with('\'' + std::string(type) + '\'')) array.type = type;
  }
  if (array.type.empty()) reject("another type of number");
  std::string_view data = bytes;
  data.remove_prefix(prefix + header_size);
  const size_t size = static_cast<size_t>(array.type.back() - '0');
  if (data.size() != count * size) {
    reject(std::to_string(data.size() / size) + " numbers of a shape of " + std::to_string(count));
  }
  if (array.type == "|i1") array.numbers = Elements<int8_t>(data);
  if (array.type == "<i2") array.numbers = Elements<int16_t>(data);
  if (array.type == "<u2") array.numbers = Elements<uint16_t>(data);
  if (array.type == "<i4") array.numbers = Elements<int32_t>(data);
  if (ValueOf(header, "fortran_order").starts_with("True")) array.numbers = Turned(array.numbers, array.shape);
  return array;
}

std::string NpyOfInt16(std::span<const int64_t> shape, std::span<const int16_t> numbers) {
  std::string text;
  size_t count = 1;
  for (const int64_t size : shape) {
    text += std::to_string(size) + ", ";
    count *= static_cast<size_t>(size);
  }
  STOCH_CHECK(count == numbers.size());
  std::string header = "{'descr': '<i2', 'fortran_order': False, 'shape': (" + text + "), }";
  constexpr size_t kAlignment = 64, kPrefix = 10;
  while ((kPrefix + header.size() + 1) % kAlignment != 0) header += ' ';
  header += '\n';
  std::string bytes(kMagic);
  bytes += {'\x01', '\x00', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  bytes += header;
  return bytes.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int16_t));
}

}  // namespace stoch
