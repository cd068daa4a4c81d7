// SPDX-License-Identifier: Apache-2.0
#include "loader/checkpoint/gguf/file.h"

#include <charconv>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "loader/quote.h"

namespace stoch::gguf {
namespace {

constexpr std::string_view kExtension = ".gguf";
constexpr int64_t kMaxParts = 4096;
constexpr size_t kDigits = 5;

// "-00002-of-00003.gguf"
std::string PartSuffix(int64_t number, int64_t count) {
  const auto padded = [](int64_t value) {
    const std::string digits = std::to_string(value);
    return std::string(kDigits - std::min(digits.size(), kDigits), '0') + digits;
  };
  return "-" + padded(number) + "-of-" + padded(count) + std::string(kExtension);
}

std::unique_ptr<Part> OpenPart(const std::filesystem::path& path) {
  MappedFile file(path);
  Header header = ParseHeader(file.bytes(), path.string());
  return std::make_unique<Part>(Part{path, std::move(file), std::move(header)});
}

// How many parts the first one says there are.
int64_t CountParts(const Part& first) {
  const Metadata& metadata = first.header.metadata;
  const int64_t count = metadata.Integer("split.count").value_or(1);
  if (count < 0 || count > kMaxParts) {
    metadata.Fail("split.count", "expected 1 to " + std::to_string(kMaxParts) + ", got " + std::to_string(count));
  }
  const int64_t number = metadata.Integer("split.no").value_or(0);
  if (number != 0) {
    metadata.Fail("split.no", "expected the first part of a split model, got part " + std::to_string(number + 1) +
                                  " of " + std::to_string(count) + "; give the file that ends in " +
                                  PartSuffix(1, count));
  }
  return std::max<int64_t>(count, 1);
}

}  // namespace

bool IsGgufPath(const std::filesystem::path& path) { return path.extension() == kExtension; }

Model::Model(const std::filesystem::path& path) {
  parts_.push_back(OpenPart(path));
  const int64_t count = CountParts(*parts_.front());
  const std::string name = path.filename().string();
  const std::string first_suffix = PartSuffix(1, count);
  if (count > 1 && !name.ends_with(first_suffix)) {
    throw InvalidInput(path.string() + ": expected a name that ends in " + first_suffix +
                       " for the first part of a split model, got " + Quoted(name));
  }
  for (int64_t number = 2; number <= count; ++number) {
    const std::string stem = name.substr(0, name.size() - first_suffix.size());
    parts_.push_back(OpenPart(path.parent_path() / (stem + PartSuffix(number, count))));
    const Metadata& metadata = parts_.back()->header.metadata;
    const int64_t says = metadata.Integer("split.no").value_or(0);
    const int64_t of = metadata.Integer("split.count").value_or(1);
    if (says != number - 1 || of != count) {
      metadata.Fail("split.no", "expected part " + std::to_string(number) + " of " + std::to_string(count) + ", got " +
                                    std::to_string(says) + " (from 0) of " + std::to_string(of));
    }
  }
  for (const std::unique_ptr<Part>& part : parts_) {
    for (const Tensor& tensor : part->header.tensors) {
      if (!tensors_.emplace(tensor.name, StoredTensor{part.get(), &tensor}).second) {
        throw InvalidInput(part->path.string() + ": tensor " + Quoted(tensor.name) + ": is in another part too");
      }
    }
  }
  const auto expected = metadata().Integer("split.tensors.count");
  if (count > 1 && expected && *expected != static_cast<int64_t>(tensors_.size())) {
    metadata().Fail("split.tensors.count", "expected the number of tensors in all parts, " +
                                               std::to_string(tensors_.size()) + ", got " + std::to_string(*expected));
  }
}

std::vector<FileStamp> Model::stamps() const {
  std::vector<FileStamp> stamps;
  for (const std::unique_ptr<Part>& part : parts_) stamps.push_back(part->file.stamp());
  return stamps;
}

const StoredTensor* Model::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

RowDecoder::RowDecoder(Type type, const std::byte* data, int64_t rows, int64_t cols, int64_t num_heads)
    : type_(type),
      data_(data),
      cols_(cols),
      row_bytes_(cols / InfoOf(type).block_elements * InfoOf(type).block_bytes),
      head_dim_(num_heads == 0 ? 0 : (rows == 1 ? cols : rows) / num_heads),
      vector_(rows == 1) {
  STOCH_CHECK(head_dim_ % 2 == 0);
}

int64_t RowDecoder::StoredIndex(int64_t index) const {
  if (head_dim_ == 0) return index;
  const int64_t within = index % head_dim_;
  const int64_t half = head_dim_ / 2;
  return index - within + 2 * (within % half) + within / half;
}

void RowDecoder::Decode(int64_t first, int64_t count, float* out) const {
  if (vector_) return DecodeElements(first, count, out);
  for (int64_t row = first / cols_; count > 0; ++row, count -= cols_, out += cols_) {
    Dequantize(type_, data_ + StoredIndex(row) * row_bytes_, cols_, out);
  }
}

// A device's share of a vector may begin and end inside a block.
void RowDecoder::DecodeElements(int64_t first, int64_t count, float* out) const {
  STOCH_CHECK(first >= 0 && count >= 0 && count <= cols_ - first);
  std::vector<float> stored(static_cast<size_t>(cols_));
  Dequantize(type_, data_, cols_, stored.data());
  for (int64_t i = 0; i < count; ++i) out[i] = stored[static_cast<size_t>(StoredIndex(first + i))];
}

}  // namespace stoch::gguf
