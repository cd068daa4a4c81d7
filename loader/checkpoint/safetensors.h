// SPDX-License-Identifier: Apache-2.0
// Reads safetensors files, which are treated as hostile: nothing of a file is used before it is checked.
//
// Source: the format of github.com/huggingface/safetensors, README.md "Format"; limits as in its Rust reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/dtype.h"
#include "loader/file.h"

namespace stoch {

struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::string_view other_dtype;  // not empty: it is of this one (F64, BOOL, ...), which nothing here computes with
  std::vector<int64_t> shape;    // empty: a scalar
  int64_t begin_bytes = 0;       // from the start of the file
  int64_t size_bytes = 0;        // of an element times product of shape

  std::string_view dtype_name() const { return other_dtype.empty() ? DTypeName(dtype) : other_dtype; }
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // in the order of their data, which they cover without gap or overlap
  std::map<std::string, std::string, std::less<>> metadata;
};

// The checked header of a whole file in memory (only its header is read). A U64 length, that many bytes of JSON, then
// the data.
// Errors: InvalidInput naming `where`, the tensor, expected and got: a length beyond the file or 100 MB, text that is
//         not UTF-8 JSON of exactly this form, a name or key twice, an unknown dtype, more than 8 dimensions, a shape
//         that overflows or disagrees with its offsets, offsets outside the data, overlaps, gaps, data left over.
SafetensorsHeader ParseSafetensorsHeader(std::span<const std::byte> file, const std::string& where);

// A mapped file. Move-only; its tensors and data are valid while it lives. Threads: safe to read.
class SafetensorsFile {
 public:
  // Errors: as ParseSafetensorsHeader, and what MappedFile refuses.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const FileStamp& stamp() const { return file_.stamp(); }
  std::span<const SafetensorsTensor> tensors() const { return header_.tensors; }
  const std::map<std::string, std::string, std::less<>>& metadata() const { return header_.metadata; }

  const SafetensorsTensor* Find(std::string_view name) const;     // nullptr if there is none
  const SafetensorsTensor& Require(std::string_view name) const;  // Errors: InvalidInput if there is none

  // Row-major elements in the mapped file: may be unaligned.
  std::span<const std::byte> Data(const SafetensorsTensor& tensor) const;
  // Hint: these data will not be read again soon.
  void Release(const SafetensorsTensor& tensor) const;

  // A copy of the elements. Errors: InvalidInput if the tensor has another dtype than F32, I32.
  std::vector<float> CopyF32(const SafetensorsTensor& tensor) const;
  std::vector<int32_t> CopyI32(const SafetensorsTensor& tensor) const;

 private:
  template <typename T>
  std::vector<T> CopyAs(const SafetensorsTensor& tensor, DType dtype) const;

  std::filesystem::path path_;
  MappedFile file_;
  SafetensorsHeader header_;
  std::map<std::string, size_t, std::less<>> index_;
};

// "[2, 64]", for messages.
std::string ShapeText(std::span<const int64_t> shape);

}  // namespace stoch
