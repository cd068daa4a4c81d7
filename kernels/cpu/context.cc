// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/context.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/call_check.h"

namespace stoch::cpu {

void FiniteReport::Report(Device device, const OpSite& site, std::string_view what) {
  const std::lock_guard lock(mutex_);
  first_.emplace(device.index, SiteName(site) + ": NaN or infinity in " + std::string(what));
}

void FiniteReport::Check(Device device) {
  const std::lock_guard lock(mutex_);
  const auto it = first_.find(device.index);
  if (it == first_.end()) return;
  const std::string text = it->second;
  first_.erase(it);
  throw InvalidInput(text);
}

ScLookupPtr ScLookups::Get(const ScOperatorPtr& op) {
  std::erase_if(live_, [](const auto& entry) { return entry.expired(); });
  for (const auto& entry : live_) {
    if (ScLookupPtr lookup = entry.lock(); lookup && lookup->op == op) return lookup;
  }
  ScLookupPtr lookup = MakeScLookup(op);
  live_.push_back(lookup);
  return lookup;
}

ScLookupPtr ScLookups::Get(const ScOperator& op) {
  std::erase_if(live_, [](const auto& entry) { return entry.expired(); });
  for (const auto& entry : live_) {
    if (ScLookupPtr lookup = entry.lock(); lookup && lookup->op.get() == &op) return lookup;
  }
  return MakeScLookup(ScOperatorPtr(ScOperatorPtr(), &op));
}

}  // namespace stoch::cpu
