// SPDX-License-Identifier: Apache-2.0
#include "loader/checkpoint/indexed_store.h"

#include <utility>

#include "kernels/base/error.h"
#include "loader/checkpoint/safetensors.h"
#include "loader/quote.h"

namespace stoch {

WeightSource IndexedStore::Matrix(std::string_view name, int64_t rows, int64_t cols) const {
  const size_t i = Index(name);
  const TensorInfo& info = tensors_[i];
  const bool vector = info.shape.size() == 1 && rows == 1 && info.shape[0] == cols;
  const bool matrix = info.shape.size() == 2 && info.shape[0] == rows && info.shape[1] == cols;
  if (!vector && !matrix) {
    const int64_t expected[] = {rows, cols};
    throw InvalidInput(Place(info) + "tensor " + Quoted(name) + ": expected shape " + ShapeText(expected) + ", got " +
                       ShapeText(info.shape));
  }
  WeightSource source = Source(i);
  source.name = info.name;
  source.rows = rows;
  source.cols = cols;
  return source;
}

void IndexedStore::Add(TensorInfo info) {
  index_.emplace(info.name, tensors_.size());
  tensors_.push_back(std::move(info));
}

size_t IndexedStore::Index(std::string_view name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) throw InvalidInput(where_ + ": tensor " + Quoted(name) + " is missing");
  return found->second;
}

}  // namespace stoch
