// SPDX-License-Identifier: Apache-2.0
#include "loader/checkpoint/safetensors.h"

#include <cstring>

#include "kernels/base/error.h"
#include "loader/quote.h"

namespace stoch {

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), file_(path), header_(ParseSafetensorsHeader(file_.bytes(), path.string())) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) index_.emplace(header_.tensors[i].name, i);
}

const SafetensorsTensor* SafetensorsFile::Find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

const SafetensorsTensor& SafetensorsFile::Require(std::string_view name) const {
  const SafetensorsTensor* tensor = Find(name);
  if (tensor == nullptr) throw InvalidInput(path_.string() + ": tensor " + Quoted(name) + " is missing");
  return *tensor;
}

std::span<const std::byte> SafetensorsFile::Data(const SafetensorsTensor& tensor) const {
  return file_.bytes().subspan(static_cast<size_t>(tensor.begin_bytes), static_cast<size_t>(tensor.size_bytes));
}

void SafetensorsFile::Release(const SafetensorsTensor& tensor) const {
  file_.Release(static_cast<size_t>(tensor.begin_bytes), static_cast<size_t>(tensor.size_bytes));
}

template <typename T>
std::vector<T> SafetensorsFile::CopyAs(const SafetensorsTensor& tensor, DType dtype) const {
  if (!tensor.other_dtype.empty() || tensor.dtype != dtype) {
    throw InvalidInput(path_.string() + ": tensor " + Quoted(tensor.name) + ": expected " +
                       std::string(DTypeName(dtype)) + ", got " + std::string(tensor.dtype_name()));
  }
  std::vector<T> values(static_cast<size_t>(tensor.size_bytes) / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), Data(tensor).data(), values.size() * sizeof(T));
  return values;
}

std::vector<float> SafetensorsFile::CopyF32(const SafetensorsTensor& tensor) const {
  return CopyAs<float>(tensor, DType::kF32);
}

std::vector<int32_t> SafetensorsFile::CopyI32(const SafetensorsTensor& tensor) const {
  return CopyAs<int32_t>(tensor, DType::kI32);
}

std::string ShapeText(std::span<const int64_t> shape) {
  std::string text = "[";
  for (const int64_t dim : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(dim);
  }
  return text + "]";
}

}  // namespace stoch
