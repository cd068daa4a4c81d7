// SPDX-License-Identifier: Apache-2.0
// Numbers for the sites (layer and op) of a backend, and the site whose kernels began last, which can be read even when
// its device is lost.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "kernels/base/buffer.h"
#include "kernels/calls.h"

namespace stoch::cuda {

// Any thread may call these functions at any time.
class SiteTable {
 public:
  // The current device decides how the pinned memory of begun() is mapped; every GPU can write it.
  // Errors: OutOfMemory, DeviceError.
  SiteTable();

  int Id(const OpSite& site);  // number of a site, >= 1; equal sites get equal numbers
  // The site with a number that Id returned. The string view in it is valid as long as the table.
  OpSite Site(int id) const;

  // Written by kernels (SiteReporter::begun): number of the site that began last, 0 = none.
  int* begun() const { return static_cast<int*>(begun_.data()); }
  // The op that began last on any device of the table; nullopt before the first op.
  std::optional<OpSite> Running() const;

 private:
  using Key = std::pair<int, std::string>;

  mutable std::mutex mutex_;
  // Number of each site, and the site of each number (a key of ids_).
  std::map<Key, int> ids_;
  std::map<int, const Key*> sites_;
  // Pinned memory of the int that begun() returns.
  Buffer begun_;
};

}  // namespace stoch::cuda
