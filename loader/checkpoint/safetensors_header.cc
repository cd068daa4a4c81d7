// SPDX-License-Identifier: Apache-2.0
// ParseSafetensorsHeader: a SAX handler that accepts the one form a header has, so that no JSON document of unknown
// size is ever built, and then the checks of what the header claims about the data.

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "kernels/base/error.h"
#include "loader/checkpoint/safetensors.h"
#include "loader/quote.h"

namespace stoch {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxRank = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kU8, DType::kI8, DType::kI32, DType::kI64};

// The others of the format, which tensors that are not used may have, and the bytes of an element.
struct OtherDType {
  std::string_view name;
  int64_t bytes;
};
constexpr OtherDType kOtherDTypes[] = {{"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"I16", 2},
                                       {"U16", 2},  {"U32", 4},     {"F64", 8},     {"U64", 8},     {"C64", 8}};

// What one entry of the header says, before it is checked against the others.
struct Entry {
  std::string name;
  std::optional<DType> dtype;
  const OtherDType* other = nullptr;
  std::optional<std::vector<int64_t>> shape;
  std::optional<std::vector<int64_t>> data_offsets;

  bool has_dtype() const { return dtype || other != nullptr; }
};

class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& where) : where_(where) {}

  std::vector<Entry>& entries() { return entries_; }
  std::map<std::string, std::string, std::less<>>& metadata() { return metadata_; }

  bool start_object(size_t) override {
    switch (state_) {
      case State::kStart: state_ = State::kNames; return true;
      case State::kNames:
        if (key_ == kMetadataKey) {
          state_ = State::kMetadata;
        } else {
          entries_.emplace_back().name = key_;
          state_ = State::kEntry;
          key_.clear();
        }
        return true;
      case State::kMetadata:
      case State::kEntry:
      case State::kNumbers:
      case State::kEnd: break;
    }
    Unexpected("an object");
  }

  bool key(std::string& key) override {
    if (state_ == State::kEntry && key != "dtype" && key != "shape" && key != "data_offsets") {
      key_.clear();
      Fail(Place() + "expected the keys dtype, shape and data_offsets, got " + Quoted(key));
    }
    key_ = key;
    if (state_ == State::kNames && !names_.insert(key).second) Fail("tensor " + Quoted(key) + " is given twice");
    return true;
  }

  bool end_object() override {
    if (state_ == State::kEntry) {
      const Entry& entry = entries_.back();
      if (!entry.has_dtype() || !entry.shape || !entry.data_offsets) {
        key_.clear();
        Fail(Place() + "expected dtype, shape and data_offsets, got fewer keys");
      }
    }
    state_ = state_ == State::kNames ? State::kEnd : State::kNames;
    return true;
  }

  bool start_array(size_t) override {
    if (state_ != State::kEntry || key_ == "dtype") Unexpected("an array");
    std::optional<std::vector<int64_t>>& numbers = Numbers();
    if (numbers) Fail(Place() + "is given twice");
    numbers.emplace();
    state_ = State::kNumbers;
    return true;
  }

  bool end_array() override {
    const size_t size = Numbers()->size();
    if (key_ == "data_offsets" && size != 2) Fail(Place() + "expected two numbers, got " + std::to_string(size));
    state_ = State::kEntry;
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (state_ != State::kNumbers) Unexpected("a number");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      Fail(Place() + "expected numbers below 2^63, got " + std::to_string(value));
    }
    std::vector<int64_t>& numbers = *Numbers();
    if (numbers.size() == kMaxRank) {
      Fail(Place() + "expected at most " + std::to_string(kMaxRank) + " numbers, got more");
    }
    numbers.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(std::string& value) override {
    if (state_ == State::kMetadata) {
      if (!metadata_.emplace(key_, value).second) Fail("metadata key " + Quoted(key_) + " is given twice");
      return true;
    }
    if (state_ != State::kEntry || key_ != "dtype") Unexpected("a string");
    Entry& entry = entries_.back();
    if (entry.has_dtype()) Fail(Place() + "is given twice");
    for (const DType dtype : kDTypes) {
      if (value == DTypeName(dtype)) entry.dtype = dtype;
    }
    for (const OtherDType& other : kOtherDTypes) {
      if (value == other.name) entry.other = &other;
    }
    if (!entry.has_dtype()) {
      Fail(Place() + "expected F32, F16, BF16, U8, I8, I32, I64 or another type of the format, got " + Quoted(value) +
           "; to run, the checkpoint would have to be converted to one of them");
    }
    return true;
  }

  bool null() override {
    if (state_ == State::kNames && key_ == kMetadataKey) return true;  // none
    Unexpected("null");
  }
  bool boolean(bool) override { Unexpected("a boolean"); }
  bool number_integer(int64_t) override { Unexpected("a negative number"); }
  bool number_float(double, const std::string&) override { Unexpected("a number that is no integer below 2^64"); }
  bool binary(binary_t&) override { Unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    Fail("expected a header of UTF-8 JSON, got something else at byte " + std::to_string(position) + " of it");
  }

 private:
  enum class State { kStart, kNames, kEntry, kNumbers, kMetadata, kEnd };

  [[noreturn]] void Fail(const std::string& what) const { throw InvalidInput(where_ + ": " + what); }

  // "tensor "x": shape: ", as far as the current place is inside one.
  std::string Place() const {
    if (state_ == State::kStart) return "header: ";
    if (state_ == State::kMetadata) return "metadata " + Quoted(key_) + ": ";
    if (state_ == State::kNames) return "tensor " + Quoted(key_) + ": ";
    return "tensor " + Quoted(entries_.back().name) + ": " + (key_.empty() ? "" : key_ + ": ");
  }

  [[noreturn]] void Unexpected(const std::string& got) const {
    const char* expected = "numbers from 0 on";
    switch (state_) {
      case State::kStart:
      case State::kNames: expected = "an object"; break;
      case State::kMetadata: expected = "a string"; break;
      case State::kEntry: expected = key_ == "dtype" ? "a string" : "an array"; break;
      case State::kNumbers:
      case State::kEnd: break;
    }
    Fail(Place() + "expected " + expected + ", got " + got);
  }

  std::optional<std::vector<int64_t>>& Numbers() {
    return key_ == "shape" ? entries_.back().shape : entries_.back().data_offsets;
  }

  const std::string& where_;
  State state_ = State::kStart;
  std::string key_;
  std::vector<Entry> entries_;
  std::set<std::string> names_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

// The tensor of an entry, its shape checked against overflow and its own offsets; begin_bytes counts from the data.
SafetensorsTensor MakeTensor(Entry& entry, const std::string& where) {
  SafetensorsTensor tensor;
  tensor.name = std::move(entry.name);
  tensor.dtype = entry.dtype.value_or(DType::kU8);
  if (entry.other != nullptr) tensor.other_dtype = entry.other->name;
  tensor.shape = std::move(*entry.shape);
  tensor.size_bytes = entry.other != nullptr ? entry.other->bytes : static_cast<int64_t>(DTypeSize(tensor.dtype));
  for (const int64_t dim : tensor.shape) {
    if (__builtin_mul_overflow(tensor.size_bytes, dim, &tensor.size_bytes)) {
      throw InvalidInput(where + ": tensor " + Quoted(tensor.name) +
                         ": expected a shape of fewer than 2^63 bytes, got " + ShapeText(tensor.shape));
    }
  }
  tensor.begin_bytes = (*entry.data_offsets)[0];
  const int64_t end = (*entry.data_offsets)[1];
  if (end < tensor.begin_bytes || end - tensor.begin_bytes != tensor.size_bytes) {
    throw InvalidInput(where + ": tensor " + Quoted(tensor.name) + ": expected " + std::to_string(tensor.size_bytes) +
                       " bytes for " + std::string(tensor.dtype_name()) + ShapeText(tensor.shape) +
                       ", got data_offsets " + ShapeText(*entry.data_offsets));
  }
  return tensor;
}

// Sorts the tensors by their data and checks that these cover `data_bytes` bytes exactly once.
void CheckLayout(std::vector<SafetensorsTensor>& tensors, int64_t data_bytes, const std::string& where) {
  std::sort(tensors.begin(), tensors.end(), [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
    return std::tie(a.begin_bytes, a.size_bytes, a.name) < std::tie(b.begin_bytes, b.size_bytes, b.name);
  });
  int64_t covered = 0;
  const SafetensorsTensor* previous = nullptr;
  for (const SafetensorsTensor& tensor : tensors) {
    const int64_t begin = tensor.begin_bytes;
    const int64_t end = begin + tensor.size_bytes;
    if (end > data_bytes) {
      throw InvalidInput(where + ": tensor " + Quoted(tensor.name) + ": expected data up to byte " +
                         std::to_string(end) + ", got " + std::to_string(data_bytes) +
                         " bytes of data (is the file truncated?)");
    }
    if (begin < covered) {
      throw InvalidInput(where + ": tensors " + Quoted(previous->name) + " and " + Quoted(tensor.name) +
                         " overlap: expected data from byte " + std::to_string(covered) + " on, got " +
                         std::to_string(begin));
    }
    if (begin > covered) {
      throw InvalidInput(where + ": tensor " + Quoted(tensor.name) + ": expected data from byte " +
                         std::to_string(covered) + " on, got " + std::to_string(begin) + ", which leaves a gap");
    }
    covered = end;
    previous = &tensor;
  }
  if (covered != data_bytes) {
    throw InvalidInput(where + ": expected " + std::to_string(covered) + " bytes of data after the header, got " +
                       std::to_string(data_bytes));
  }
}

}  // namespace

SafetensorsHeader ParseSafetensorsHeader(std::span<const std::byte> file, const std::string& where) {
  if (file.size() < kLengthBytes) {
    throw InvalidInput(where + ": expected a safetensors file of at least 8 bytes, got " + std::to_string(file.size()));
  }
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) header_bytes |= static_cast<uint64_t>(file[i]) << (8 * i);
  const uint64_t limit = std::min(kMaxHeaderBytes, static_cast<uint64_t>(file.size()) - kLengthBytes);
  if (header_bytes > limit) {
    throw InvalidInput(where + ": no safetensors file, or cut short: header length: expected at most " +
                       std::to_string(limit) + " bytes, got " + std::to_string(header_bytes));
  }
  const char* text = reinterpret_cast<const char*>(file.data() + kLengthBytes);
  // The parser would skip a byte order mark, and take a zero byte for the end of the text.
  const std::string_view header_text(text, header_bytes);
  if (!header_text.starts_with('{') || header_text.find('\0') != std::string_view::npos) {
    throw InvalidInput(where + ": expected a header of JSON text that begins with {, got " + Quoted(header_text));
  }
  HeaderReader reader(where);
  nlohmann::json::sax_parse(header_text, &reader);

  SafetensorsHeader header;
  header.metadata = std::move(reader.metadata());
  header.tensors.reserve(reader.entries().size());
  for (Entry& entry : reader.entries()) header.tensors.push_back(MakeTensor(entry, where));
  const int64_t data_begin = static_cast<int64_t>(kLengthBytes + header_bytes);
  CheckLayout(header.tensors, static_cast<int64_t>(file.size()) - data_begin, where);
  for (SafetensorsTensor& tensor : header.tensors) tensor.begin_bytes += data_begin;
  return header;
}

}  // namespace stoch
