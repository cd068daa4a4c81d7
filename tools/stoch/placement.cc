#include "tools/stoch/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "tools/stoch/units.h"

namespace stoch::cli {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 60;

int64_t ParseBytes(std::string_view text, std::string_view whole) {
  constexpr std::array<std::pair<std::string_view, double>, 10> kUnits = {{{"", 1},
                                                                           {"B", 1},
                                                                           {"kB", 1e3},
                                                                           {"MB", 1e6},
                                                                           {"GB", 1e9},
                                                                           {"TB", 1e12},
                                                                           {"KiB", 1024.0},
                                                                           {"MiB", 1048576.0},
                                                                           {"GiB", 1073741824.0},
                                                                           {"TiB", 1099511627776.0}}};
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  for (const auto& [name, factor] : kUnits) {
    if (error == std::errc() && unit == name && value >= 0 && value * factor < static_cast<double>(kMaxBytes)) {
      return static_cast<int64_t>(value * factor);
    }
  }
  throw InvalidInput(fmt::format("--max-memory {}: expected a size such as 60GiB, got '{}'", whole, text));
}

void CheckRoom(const DeviceRoom& room, const MemoryBytes& needed) {
  if (needed.total() <= room.bytes) return;
  throw InvalidInput(fmt::format("{}: the model needs {} there, {} more than the {} it may use",
                                 DeviceName(room.device), Bytes(needed.total()), Bytes(needed.total() - room.bytes),
                                 Bytes(room.bytes)));
}

void CheckRooms(const LlamaPlacement& placement, const MemoryPlan& plan, std::span<const DeviceRoom> rooms) {
  std::vector<Device> devices;
  for (const DeviceRoom& room : rooms) devices.push_back(room.device);
  const std::vector<MemoryBytes> needs = BytesOfDevices(placement, plan, devices);
  for (size_t i = 0; i < rooms.size(); ++i) CheckRoom(rooms[i], needs[i]);
}

// Fills devices in order, each up to its share, the last one with all that is left.
LlamaPlacement Fill(const LlamaConfig& config, const MemoryPlan& plan, std::span<const DeviceRoom> rooms,
                    std::span<const int64_t> shares) {
  const int64_t head_bytes = plan.rest.weights + plan.rest.scales + plan.rest.kv_cache;
  const int64_t workspace = plan.rest.workspace - plan.head_workspace + plan.rest.runtime;  // of every device in use
  size_t at = 0;
  int64_t used = workspace;
  int64_t only_room = 0;  // what must fit there but is nobody's share
  const auto place = [&](int64_t bytes, int64_t more) {
    // A module larger than any share begins a device of its own, where that has the room.
    const auto fits = [&] {
      const bool alone = used == workspace && shares[at] > 0;
      return (alone || used + bytes <= shares[at]) && used + bytes + only_room + more <= rooms[at].bytes;
    };
    while (at + 1 < rooms.size() && !fits()) {
      ++at;
      used = workspace;
      only_room = 0;
    }
    used += bytes;
    only_room += more;
    return rooms[at].device;
  };
  LlamaPlacement placement;
  const bool tied = config.tie_word_embeddings;
  placement.embedding = place(plan.rest.embedding + (tied ? head_bytes : 0), tied ? plan.head_workspace : 0);
  for (const MemoryBytes& layer : plan.layers) placement.layers.push_back(place(layer.total(), 0));
  placement.head = tied ? placement.embedding : place(head_bytes, plan.head_workspace);
  return placement;
}

// "cuda:1" or 1.
Device ParseDevice(const nlohmann::json& value, std::span<const DeviceRoom> rooms, const std::string& where) {
  for (const DeviceRoom& room : rooms) {
    if (value.is_number_integer() && value == room.device.index) return room.device;
    if (value.is_string() && value == DeviceName(room.device)) return room.device;
  }
  throw InvalidInput(fmt::format("{}: expected one of the devices in use, got {}", where, value.dump()));
}

// `name` is `prefix` or lies below it.
bool Covers(std::string_view prefix, std::string_view name) {
  return prefix.empty() || name == prefix || (name.substr(0, prefix.size()) == prefix && name[prefix.size()] == '.');
}

}  // namespace

std::map<int, int64_t> ParseMaxMemory(std::string_view text) {
  std::map<int, int64_t> bytes;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest = entry.size() < rest.size() ? rest.substr(entry.size() + 1) : std::string_view();
    const size_t equals = entry.find('=');
    int index = 0;
    const auto [end, error] = std::from_chars(entry.data(), entry.data() + std::min(equals, entry.size()), index);
    if (equals == std::string_view::npos || error != std::errc() || end != entry.data() + equals || index < 0 ||
        bytes.count(index) > 0) {
      throw InvalidInput(fmt::format("--max-memory {}: expected DEVICE=SIZE once per device, got '{}'", text, entry));
    }
    bytes[index] = ParseBytes(entry.substr(equals + 1), text);
  }
  return bytes;
}

LlamaPlacement PlacePolicy(const LlamaConfig& config, const MemoryPlan& plan, std::span<const DeviceRoom> rooms,
                           std::string_view policy) {
  std::vector<int64_t> shares;
  for (const DeviceRoom& room : rooms) shares.push_back(room.bytes);
  if (policy == "auto" || policy == "balanced" || policy == "balanced_low_0") {
    const bool low_0 = policy == "balanced_low_0" && rooms.size() > 1;
    const auto users = static_cast<int64_t>(rooms.size()) - (low_0 ? 1 : 0);
    const int64_t workspace = plan.rest.workspace - plan.head_workspace + plan.rest.runtime;
    int64_t largest = 0;
    for (const MemoryBytes& layer : plan.layers) largest = std::max(largest, layer.total());
    // Half a layer over the even share, so that rounding to whole layers does not pile up on the last device.
    const int64_t even =
        (plan.total.total() - plan.rest.workspace - plan.rest.runtime) / users + largest / 2 + workspace;
    for (size_t i = 0; i < shares.size(); ++i) shares[i] = std::min(shares[i], low_0 && i == 0 ? 0 : even);
  } else if (policy != "sequential") {
    throw InvalidInput(
        fmt::format("--device-map {}: allowed is auto, balanced, balanced_low_0, sequential or a file .json", policy));
  }
  LlamaPlacement placement = Fill(config, plan, rooms, shares);
  CheckRooms(placement, plan, rooms);
  return placement;
}

LlamaPlacement PlaceByFile(const LlamaConfig& config, const MemoryPlan& plan, std::span<const DeviceRoom> rooms,
                           std::string_view json, const std::string& where) {
  const nlohmann::json map = ParseBoundedJson(json, where);
  if (!map.is_object()) {
    throw InvalidInput(fmt::format("{}: expected an object {{module: device}}, got {}", where, JsonTypeName(map)));
  }
  const std::vector<std::pair<std::string, Device>> modules =
      ModuleMap(config, SingleDevice(config, rooms.front().device));
  for (const auto& [name, value] : map.items()) {
    const auto covers = [&prefix = name](const auto& module) { return Covers(prefix, module.first); };
    if (std::none_of(modules.begin(), modules.end(), covers)) {
      throw InvalidInput(fmt::format("{}: the model has no module '{}'", where, name));
    }
  }
  std::map<std::string, Device> devices;
  for (const auto& [module, unused] : modules) {
    std::string best;
    bool found = false;
    for (const auto& [name, value] : map.items()) {
      if (!Covers(name, module) || (found && name.size() < best.size())) continue;
      best = name;
      found = true;
    }
    if (!found) throw InvalidInput(fmt::format("{}: no device for the module {}", where, module));
    devices[module] = ParseDevice(map[best], rooms, fmt::format("{}: {}", where, best));
  }
  LlamaPlacement placement;
  placement.embedding = devices["model.embed_tokens"];
  placement.head = devices["lm_head"];
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    placement.layers.push_back(devices["model.layers." + std::to_string(i)]);
  }
  if (!(devices["model.norm"] == placement.head) ||
      (config.tie_word_embeddings && !(placement.embedding == placement.head))) {
    throw InvalidInput(where + ": model.norm, lm_head and an embedding tied to it belong on one device");
  }
  CheckRooms(placement, plan, rooms);
  return placement;
}

LlamaPlacement PlaceRows(const LlamaConfig& config, std::span<const MemoryPlan> plans,
                         std::span<const DeviceRoom> rooms) {
  std::vector<Device> devices;
  for (size_t i = 0; i < rooms.size(); ++i) {
    CheckRoom(rooms[i], plans[i].total);
    devices.push_back(rooms[i].device);
  }
  return RowSplit(config, devices);
}

std::vector<MemoryBytes> BytesOfDevices(const LlamaPlacement& placement, const MemoryPlan& plan,
                                        std::span<const Device> devices) {
  std::vector<MemoryBytes> sums;
  for (const Device& device : devices) {
    MemoryBytes& sum = sums.emplace_back();
    for (size_t i = 0; i < placement.layers.size(); ++i) {
      if (placement.layers[i] == device) sum += plan.layers[i];
    }
    if (placement.embedding == device) {
      sum.embedding += plan.rest.embedding;
      sum.host += plan.rest.host;
    }
    if (placement.head == device) {
      sum.weights += plan.rest.weights;
      sum.scales += plan.rest.scales;
      sum.kv_cache += plan.rest.kv_cache;
    }
    // Every device that does anything has a workspace of its own.
    if (sum.total() + sum.host > 0) {
      sum.workspace = plan.rest.workspace - plan.head_workspace;
      sum.runtime = plan.rest.runtime;
    }
    if (placement.head == device) sum.workspace += plan.head_workspace;
  }
  return sums;
}

std::vector<std::pair<std::string, Device>> ModuleMap(const LlamaConfig& config, const LlamaPlacement& placement) {
  std::vector<std::pair<std::string, Device>> map = {{"model.embed_tokens", placement.embedding}};
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    map.emplace_back("model.layers." + std::to_string(i), placement.layers[static_cast<size_t>(i)]);
  }
  map.emplace_back("model.norm", placement.head);
  map.emplace_back("lm_head", placement.head);
  return map;
}

}  // namespace stoch::cli
