// SPDX-License-Identifier: Apache-2.0
// The ops of a backend by number, and the one whose kernels began last, which is known when its device is lost too.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "kernels/base/buffer.h"
#include "kernels/calls.h"

namespace stoch::cuda {

// Threads: any.
class SiteTable {
 public:
  // Memory of the host that every GPU can write, as the current device gives it.
  // Errors: OutOfMemory, DeviceError.
  SiteTable();

  int Id(const OpSite& site);  // >= 1; the same of the same site
  // The site of an id that Id gave. Its name lives as long as the table.
  OpSite Site(int id) const;

  int* begun() const { return static_cast<int*>(begun_.data()); }  // SiteReporter
  // The op that began last on any device of the table; nullopt before the first one.
  std::optional<OpSite> Running() const;

 private:
  using Key = std::pair<int, std::string>;

  mutable std::mutex mutex_;
  std::map<Key, int> ids_;
  std::map<int, const Key*> sites_;
  Buffer begun_;
};

}  // namespace stoch::cuda
