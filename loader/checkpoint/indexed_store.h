// SPDX-License-Identifier: Apache-2.0
// What every kind of WeightStore shares: names, shapes and aliases. They differ in where the numbers are.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "loader/checkpoint/weight_store.h"

namespace stoch {

class IndexedStore : public WeightStore {
 public:
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  bool Has(std::string_view name) const override { return index_.contains(name); }

  WeightSource Matrix(std::string_view name, int64_t rows, int64_t cols) const override;

 protected:
  explicit IndexedStore(std::string where) : where_(std::move(where)) {}

  void Add(TensorInfo info);
  void AddAlias(std::string_view alias, std::string_view name) { index_.emplace(alias, Index(name)); }
  size_t Index(std::string_view name) const;  // Errors: InvalidInput if it is missing

 private:
  virtual WeightSource Source(size_t i) const = 0;  // where the numbers of tensors()[i] are

  std::string Place(const TensorInfo& info) const { return (info.file.empty() ? where_ : info.file) + ": "; }

  std::string where_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace stoch
