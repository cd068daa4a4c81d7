// SPDX-License-Identifier: Apache-2.0
#include "loader/checkpoint/gguf/header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "kernels/base/error.h"
#include "loader/quote.h"

static_assert(std::endian::native == std::endian::little, "GGUF files are read as little endian");

namespace stoch::gguf {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kMinVersion = 2;
constexpr uint32_t kMaxVersion = 3;
// Real files have some dozen keys, and less than a hundred thousand tensors.
constexpr uint64_t kMaxKeys = 1 << 16;
constexpr uint64_t kMaxTensors = 1 << 20;
constexpr uint64_t kMaxNameBytes = 1 << 10;
constexpr uint64_t kMaxArray = uint64_t{1} << 24;
constexpr uint32_t kMaxDims = 4;
constexpr int64_t kMaxAlignment = int64_t{1} << 20;

// Takes values off the front of the file; whatever is not there is an error.
class Reader {
 public:
  Reader(std::span<const std::byte> file, const std::string& where) : file_(file), where_(where) {}

  size_t at() const { return at_; }

  std::span<const std::byte> Take(uint64_t size, std::string_view what) {
    if (size > file_.size() - at_) {
      throw InvalidInput(where_ + ": " + std::string(what) + ": expected " + std::to_string(size) + " bytes at byte " +
                         std::to_string(at_) + ", got " + std::to_string(file_.size() - at_));
    }
    const auto taken = file_.subspan(at_, size);
    at_ += size;
    return taken;
  }

  template <typename T>
  T Number(std::string_view what) {
    T value;
    std::memcpy(&value, Take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::string_view Text(std::string_view what) {
    const auto size = Number<uint64_t>(what);
    const auto bytes = Take(size, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  // A name of a key or tensor.
  std::string Name(std::string_view what) {
    const std::string_view name = Text(what);
    if (name.empty() || name.size() > kMaxNameBytes) {
      throw InvalidInput(where_ + ": " + std::string(what) + ": expected a name of 1 to " +
                         std::to_string(kMaxNameBytes) + " bytes, got " + std::to_string(name.size()));
    }
    return std::string(name);
  }

  std::span<const std::byte> Since(size_t begin) const { return file_.subspan(begin, at_ - begin); }

 private:
  std::span<const std::byte> file_;
  const std::string& where_;
  size_t at_ = 0;
};

// 0: not of one size, or unknown.
uint64_t SizeOf(ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool: return 1;
    case ValueType::kU16:
    case ValueType::kI16: return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32: return 4;
    case ValueType::kU64:
    case ValueType::kI64:
    case ValueType::kF64: return 8;
    case ValueType::kString:
    case ValueType::kArray: break;
  }
  return 0;
}

void SkipElements(Reader& reader, ValueType type, uint64_t count, const std::string& place, const std::string& where) {
  if (type == ValueType::kString) {
    for (uint64_t i = 0; i < count; ++i) reader.Text(place);
    return;
  }
  const uint64_t size = SizeOf(type);
  if (size == 0) {
    throw InvalidInput(where + ": " + place + ": expected a value type of GGUF" +
                       (type == ValueType::kArray ? " that is no array in an array, got one"
                                                  : ", got " + std::to_string(static_cast<uint32_t>(type))));
  }
  const auto bytes = reader.Take(count * size, place);
  const bool boolean = type == ValueType::kBool;
  if (boolean && std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; })) {
    throw InvalidInput(where + ": " + place + ": expected 0 or 1 for a boolean, got another byte");
  }
}

Value ReadValue(Reader& reader, const std::string& place, const std::string& where) {
  Value value;
  value.type = static_cast<ValueType>(reader.Number<uint32_t>(place));
  if (value.type == ValueType::kArray) {
    value.array = true;
    value.type = static_cast<ValueType>(reader.Number<uint32_t>(place));
    value.count = reader.Number<uint64_t>(place);
    if (value.count > kMaxArray) {
      throw InvalidInput(where + ": " + place + ": expected at most " + std::to_string(kMaxArray) + " elements, got " +
                         std::to_string(value.count));
    }
  }
  const size_t begin = reader.at();
  SkipElements(reader, value.type, value.count, place, where);
  value.bytes = reader.Since(begin);
  return value;
}

uint64_t CountBelow(Reader& reader, uint64_t most, const std::string& what, const std::string& where) {
  const auto count = reader.Number<uint64_t>("the number of " + what);
  if (count > most) {
    throw InvalidInput(where + ": expected at most " + std::to_string(most) + " " + what + ", got " +
                       std::to_string(count));
  }
  return count;
}

void CheckVersion(Reader& reader, const std::string& where) {
  const auto magic = reader.Take(kMagic.size(), "the magic number");
  if (std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) {
    throw InvalidInput(where + ": expected a GGUF file, got one that does not begin with \"GGUF\"");
  }
  const auto version = reader.Number<uint32_t>("the version");
  if (version >= kMinVersion && version <= kMaxVersion) return;
  // The bytes the other way round.
  if (version != 0 && (version & 0xffffff) == 0) {
    throw InvalidInput(where + ": expected a little-endian GGUF file, got a big-endian one");
  }
  throw InvalidInput(where + ": expected GGUF version 2 or 3, got " + std::to_string(version));
}

// What the header says of one tensor; offset_bytes is from the start of the data.
struct Entry {
  Tensor tensor;
  uint64_t offset_bytes = 0;
};

Entry ReadTensor(Reader& reader, const std::string& where) {
  Entry entry;
  entry.tensor.name = reader.Name("the name of a tensor");
  const std::string place = "tensor " + Quoted(entry.tensor.name);
  const auto fail = [&](const std::string& what) { throw InvalidInput(where + ": " + place + ": " + what); };
  const auto dims = reader.Number<uint32_t>(place);
  if (dims < 1 || dims > kMaxDims) {
    fail("expected 1 to " + std::to_string(kMaxDims) + " dimensions, got " + std::to_string(dims));
  }
  int64_t elements = 1;
  for (uint32_t i = 0; i < dims; ++i) {
    const auto dim = reader.Number<uint64_t>(place);
    // 2^60 elements at most: their bytes then stay below 2^63.
    if (dim < 1 || dim > static_cast<uint64_t>((int64_t{1} << 60) / elements)) {
      fail("expected dimensions from 1 to a product of 2^60, got " + std::to_string(dim));
    }
    elements *= static_cast<int64_t>(dim);
    entry.tensor.shape.insert(entry.tensor.shape.begin(), static_cast<int64_t>(dim));  // the file has columns first
  }
  const auto type = reader.Number<uint32_t>(place);
  const TypeInfo* info = FindType(type);
  if (info == nullptr) fail("expected one of " + ReadTypeNames() + ", got " + TypeName(type));
  if (entry.tensor.shape.back() % info->block_elements != 0) {
    fail("expected rows of a multiple of " + std::to_string(info->block_elements) + " for " + std::string(info->name) +
         ", got " + std::to_string(entry.tensor.shape.back()));
  }
  entry.tensor.type = info->type;
  entry.tensor.size_bytes = elements / info->block_elements * info->block_bytes;
  entry.offset_bytes = reader.Number<uint64_t>(place);
  return entry;
}

int64_t AlignmentOf(const Metadata& metadata) {
  constexpr std::string_view kKey = "general.alignment";
  const int64_t alignment = metadata.Integer(kKey).value_or(32);
  if (alignment < 8 || alignment > kMaxAlignment || !std::has_single_bit(static_cast<uint64_t>(alignment))) {
    metadata.Fail(kKey, "expected a power of two from 8 to " + std::to_string(kMaxAlignment) + ", got " +
                            std::to_string(alignment));
  }
  return alignment;
}

// Puts every tensor's data into the file. Gaps are padding; overlaps are refused.
std::vector<Tensor> Place(std::vector<Entry> entries, size_t header_bytes, int64_t alignment, size_t file_bytes,
                          const std::string& where) {
  const auto size = static_cast<uint64_t>(file_bytes);
  const auto step = static_cast<uint64_t>(alignment);
  const uint64_t data = (header_bytes + step - 1) / step * step;
  std::vector<Tensor> tensors;
  for (Entry& entry : entries) {
    Tensor& tensor = entry.tensor;
    const std::string place = where + ": tensor " + Quoted(tensor.name) + ": ";
    if (entry.offset_bytes % step != 0) {
      throw InvalidInput(place + "expected an offset that is a multiple of " + std::to_string(step) + ", got " +
                         std::to_string(entry.offset_bytes));
    }
    const uint64_t available = size > data ? size - data : 0;
    if (entry.offset_bytes > available || static_cast<uint64_t>(tensor.size_bytes) > available - entry.offset_bytes) {
      throw InvalidInput(place + "expected its " + std::to_string(tensor.size_bytes) + " bytes at offset " +
                         std::to_string(entry.offset_bytes) + " inside the " + std::to_string(available) +
                         " bytes of data, got beyond them");
    }
    tensor.begin_bytes = static_cast<int64_t>(data + entry.offset_bytes);
    tensors.push_back(std::move(tensor));
  }
  std::vector<const Tensor*> in_order;
  for (const Tensor& tensor : tensors) in_order.push_back(&tensor);
  std::sort(in_order.begin(), in_order.end(),
            [](const Tensor* a, const Tensor* b) { return a->begin_bytes < b->begin_bytes; });
  for (size_t i = 1; i < in_order.size(); ++i) {
    const Tensor& before = *in_order[i - 1];
    if (before.begin_bytes + before.size_bytes > in_order[i]->begin_bytes) {
      throw InvalidInput(where + ": tensor " + Quoted(in_order[i]->name) + ": overlaps the data of " +
                         Quoted(before.name));
    }
  }
  return tensors;
}

}  // namespace

Header ParseHeader(std::span<const std::byte> file, const std::string& where) {
  Reader reader(file, where);
  CheckVersion(reader, where);
  const uint64_t num_tensors = CountBelow(reader, kMaxTensors, "tensors", where);
  const uint64_t num_keys = CountBelow(reader, kMaxKeys, "keys", where);
  Header header{Metadata(where), {}};
  for (uint64_t i = 0; i < num_keys; ++i) {
    const std::string key = reader.Name("a key");
    const Value value = ReadValue(reader, "key " + Quoted(key), where);
    if (!header.metadata.Add(key, value)) throw InvalidInput(where + ": key " + Quoted(key) + " is there twice");
  }
  std::vector<Entry> entries;
  std::set<std::string, std::less<>> names;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    entries.push_back(ReadTensor(reader, where));
    const std::string& name = entries.back().tensor.name;
    if (!names.insert(name).second) throw InvalidInput(where + ": tensor " + Quoted(name) + " is there twice");
  }
  header.tensors = Place(std::move(entries), reader.at(), AlignmentOf(header.metadata), file.size(), where);
  return header;
}

}  // namespace stoch::gguf
