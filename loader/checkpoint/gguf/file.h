// SPDX-License-Identifier: Apache-2.0
// A model in GGUF files: one, or all parts of a split one.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "loader/checkpoint/gguf/header.h"
#include "loader/file.h"

namespace stoch::gguf {

// Whether the path is that of a GGUF file, by the end of its name.
bool IsGgufPath(const std::filesystem::path& path);

struct Part {
  std::filesystem::path path;
  MappedFile file;
  Header header;
};

struct StoredTensor {
  const Part* part = nullptr;
  const Tensor* tensor = nullptr;
  std::span<const std::byte> data() const {
    return part->file.bytes().subspan(static_cast<size_t>(tensor->begin_bytes),
                                      static_cast<size_t>(tensor->size_bytes));
  }
};

// Mapped and checked. Move-only; what it hands out is valid while it lives. Threads: safe to read.
class Model {
 public:
  // Opens `path`, and the others of a split model (NAME-00001-of-0000N.gguf), of which it must be the first.
  // Errors: InvalidInput: as ParseHeader; another part than the first, a part that is missing or says another place; a
  //         tensor in two parts; parts that lack tensors.
  explicit Model(const std::filesystem::path& path);

  const Metadata& metadata() const { return parts_.front()->header.metadata; }
  std::vector<FileStamp> stamps() const;
  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }
  const StoredTensor* Find(std::string_view name) const;  // nullptr if there is none

 private:
  std::vector<std::unique_ptr<Part>> parts_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

// Rows of a stored tensor as floats.
//
// num_heads > 0: the rows of each head alternate between its two rotated halves, as llama.cpp stores q and k of Llama
// models; they are read as Hugging Face stores them. Row h*d + j*d/2 + i is the stored row h*d + 2i + j. A vector's
// elements are permuted in the same way.
class RowDecoder final : public WeightDecoder {
 public:
  // Requires: `data` holds rows * cols elements and outlives this; cols is whole blocks; rows (of a vector: cols) are a
  //           multiple of 2 * num_heads.
  RowDecoder(Type type, const std::byte* data, int64_t rows, int64_t cols, int64_t num_heads);
  void Decode(int64_t first, int64_t count, float* out) const override;
  int64_t StoredBytes(int64_t count) const override { return count / cols_ * row_bytes_; }

 private:
  int64_t StoredIndex(int64_t index) const;
  void DecodeElements(int64_t first, int64_t count, float* out) const;

  Type type_;
  const std::byte* data_;
  int64_t cols_;
  int64_t row_bytes_;
  int64_t head_dim_;  // 0: rows are where they should be
  bool vector_;
};

}  // namespace stoch::gguf
