// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/site_table.h"

#include <atomic>

#include "kernels/cuda/base/memory.h"

namespace stoch::cuda {

SiteTable::SiteTable() : begun_(AllocatePinned(sizeof(int))) { *begun() = 0; }

int SiteTable::Id(const OpSite& site) {
  const std::lock_guard lock(mutex_);
  const int next = static_cast<int>(ids_.size()) + 1;
  const auto [found, is_new] = ids_.try_emplace({site.layer, std::string(site.op)}, next);
  if (is_new) sites_.emplace(next, &found->first);
  return found->second;
}

OpSite SiteTable::Site(int id) const {
  const std::lock_guard lock(mutex_);
  const Key& key = *sites_.at(id);
  return {key.first, key.second};
}

std::optional<OpSite> SiteTable::Running() const {
  const int id = std::atomic_ref<int>(*begun()).load(std::memory_order_relaxed);
  if (id == 0) return std::nullopt;
  return Site(id);
}

}  // namespace stoch::cuda
