// SPDX-License-Identifier: Apache-2.0
#include "python/src/multiplier.h"

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/sc/sc_parameters.h"
#include "loader/research/count_file.h"
#include "loader/research/multiplier_file.h"
#include "loader/sha256.h"
#include "research/sc_files.h"

namespace stoch::python {
namespace {

constexpr size_t kShaDigits = 16;  // of the sha256, in descriptions

// Every table of this process, by the digits that descriptions have. Tables of one hash may be read in two ways.
struct Known {
  std::mutex mutex;
  std::multimap<std::string, MultiplierTablePtr> tables;
};

Known& TheKnown() {
  static auto* const known = new Known;
  return *known;
}

MultiplierTablePtr Remember(const std::shared_ptr<MultiplierTable>& table) {
  MultiplierTablePtr made(table);
  Known& known = TheKnown();
  const std::lock_guard lock(known.mutex);
  const auto [begin, end] = known.tables.equal_range(made->sha256.substr(0, kShaDigits));
  for (auto it = begin; it != end; ++it) {
    if (it->second == made) return it->second;
  }
  known.tables.emplace(made->sha256.substr(0, kShaDigits), made);
  return made;
}

// The same for counts.
struct KnownCounts {
  std::mutex mutex;
  std::map<std::string, CountTablePtr> tables;
};

KnownCounts& TheCounts() {
  static auto* const known = new KnownCounts;
  return *known;
}

CountTablePtr RememberCounts(const std::shared_ptr<CountTable>& table) {
  KnownCounts& known = TheCounts();
  const std::lock_guard lock(known.mutex);
  return known.tables.emplace(table->sha256.substr(0, kShaDigits), CountTablePtr(table)).first->second;
}

void ResolveCounts(ScConfig* config) {
  if (config->gate != ScGate::kCounts || config->counts.empty() || config->count_table.get() != nullptr) return;
  CountTablePtr table;
  {
    KnownCounts& known = TheCounts();
    const std::lock_guard lock(known.mutex);
    const auto found = known.tables.find(config->counts);
    if (found != known.tables.end()) table = found->second;
  }
  if (table.get() == nullptr) table = RememberCounts(ReadCountTable(config->counts));
  config->counts = table->sha256.substr(0, kShaDigits);
  config->count_table = std::move(table);
}

MultiplierTablePtr Find(const std::string& digits, ScTableCode code) {
  Known& known = TheKnown();
  const std::lock_guard lock(known.mutex);
  MultiplierTablePtr found;
  const auto [begin, end] = known.tables.equal_range(digits);
  for (auto it = begin; it != end; ++it) {
    if (found.get() == nullptr || it->second->is_signed == (code != ScTableCode::kUnsigned)) found = it->second;
  }
  return found;
}

// Reads `code` and `order` as the parameters table_code and table_order do.
ScConfig Reading(const std::string& code, const std::string& order) {
  ScConfig config;
  if (!code.empty()) SetScParameter(config, "table_code", code);
  if (!order.empty()) SetScParameter(config, "table_order", order);
  return config;
}

}  // namespace

MultiplierTablePtr OpenMultiplier(const std::string& path, const std::string& code, const std::string& order) {
  const ScConfig reading = Reading(code, order);
  return Remember(ReadMultiplierTable(path, reading.table_code, reading.table_order));
}

MultiplierTablePtr ParseMultiplier(const std::string& npy, const std::string& code, const std::string& order) {
  const ScConfig reading = Reading(code, order);
  auto table =
      std::make_shared<MultiplierTable>(ParseMultiplierFile(npy, "array.npy", reading.table_code, reading.table_order));
  Sha256 sha;
  sha.Add(std::as_bytes(std::span(table->entries)));
  table->sha256 = sha.Hex();
  return Remember(table);
}

std::string KeepCounts(const std::string& npy) {
  auto table = std::make_shared<CountTable>(ParseCountFile(npy, "counts"));
  Sha256 sha;
  sha.Add(std::as_bytes(std::span(table->entries)));
  table->sha256 = sha.Hex();
  return RememberCounts(table)->sha256.substr(0, kShaDigits);
}

void ResolveTables(ScConfig* config) {
  ResolveCounts(config);
  if (config->gate != ScGate::kTable || config->table.empty() || config->multiplier.get() != nullptr) return;
  MultiplierTablePtr table = Find(config->table, config->table_code);
  if (table.get() == nullptr) {
    table = Remember(ReadMultiplierTable(config->table, config->table_code, config->table_order));
  }
  config->multiplier = std::move(table);
  config->table = config->multiplier->sha256.substr(0, kShaDigits);
  config->table_order = ScTableOrder::kFile;
}

}  // namespace stoch::python
