// SPDX-License-Identifier: Apache-2.0
#include "engine/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "engine/local_plan.h"
#include "engine/units.h"
#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "loader/bounded_json.h"

namespace stoch {
namespace {

void CheckRoom(const DeviceRoom& room, const MemoryBytes& needed) {
  if (needed.total() <= room.bytes) return;
  throw InvalidInput(fmt::format("{}: the model needs {} there, {} more than the {} it may use",
                                 DeviceName(room.device), Bytes(needed.total()), Bytes(needed.total() - room.bytes),
                                 Bytes(room.bytes)));
}

void CheckRooms(const DecoderPlacement& placement, const MemoryPlan& plan, std::span<const DeviceRoom> rooms) {
  std::vector<Device> devices;
  for (const DeviceRoom& room : rooms) devices.push_back(room.device);
  const std::vector<MemoryBytes> needs = BytesOfDevices(placement, plan, devices);
  for (size_t i = 0; i < rooms.size(); ++i) CheckRoom(rooms[i], needs[i]);
}

// Fills devices in order, each up to its share, the last one with all that is left.
DecoderPlacement Fill(const DecoderConfig& config, const MemoryPlan& plan, std::span<const DeviceRoom> rooms,
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
  DecoderPlacement placement;
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

void ParseSplit(std::string_view name, std::string_view split, size_t devices, PlacementOptions* options) {
  options->by_rows = split == "row";
  options->stripes = 1;
  if (options->by_rows || split == "layer") return;
  const auto reject = [&](const std::string& allowed) {
    throw InvalidInput(fmt::format("{} {}: allowed is {}", name, split, allowed));
  };
  // A number up to the end, or -1.
  const auto number = [](std::string_view text) {
    int value = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() ? value : -1;
  };
  constexpr std::string_view kSequence = "sequence", kRow = ",row:";
  constexpr const char* kForms = "layer, row, sequence or sequence:P,row:R";
  if (!split.starts_with(kSequence)) reject(kForms);
  auto stripes = static_cast<int>(devices);
  int sharers = 1;
  if (const std::string_view sizes = split.substr(kSequence.size()); !sizes.empty()) {
    const size_t comma = sizes.find(',');
    if (comma != std::string_view::npos) {
      if (!sizes.substr(comma).starts_with(kRow)) reject(kForms);
      sharers = number(sizes.substr(comma + kRow.size()));
    }
    stripes = sizes.front() == ':' ? number(sizes.substr(1, comma == std::string_view::npos ? comma : comma - 1)) : -1;
    if (stripes < 1 || sharers < 1) reject(kForms);
  }
  if (!IsStripeCount(stripes)) {
    reject(fmt::format("1, 2, 4 or 8 devices that positions are dealt over, got {}", stripes));
  }
  if (static_cast<size_t>(stripes) * static_cast<size_t>(sharers) != devices) {
    reject(fmt::format("{} times {} = {} devices, --device names {}", stripes, sharers, stripes * sharers, devices));
  }
  options->stripes = stripes;
  options->by_rows = stripes == 1 && sharers > 1;
}

std::vector<MemoryPlan> PlanShards(const ModelFiles& files, const EngineOptions& engine, const Backend& backend,
                                   int stripes) {
  const std::vector<DecoderShard> shards =
      stripes == 1 ? DivideRows(files.config, backend.devices())
                   : DealPositions(files.config, SequenceSplit(files.config, backend.devices(), stripes).stripes);
  std::vector<MemoryPlan> plans;
  for (size_t i = 0; i < shards.size(); ++i) {
    plans.push_back(PlanShard(files, engine.precision, engine.sc, ShapeOf(files.config, engine), backend, shards, i));
  }
  return plans;
}

namespace {

// Options of PlaceNextTo.
struct Asked : PlacementOptions {
  BytesOfOthers others;
};

// Bytes of a GPU that no plan uses: allocations are rounded, memory has gaps, other programs take some, and loading stages
// 160 MiB of codes and numbers (kernels/cuda/weights/uploader.cc).
int64_t Margin(const DeviceInfo& info) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  return std::clamp(info.total_bytes / 128, 256 * kMiB, 1024 * kMiB);
}

// What may be used of every device.
std::vector<DeviceRoom> MakeRooms(const PlacementOptions& options, const Backend& backend) {
  std::map<int, int64_t> limits = options.max_memory;
  std::vector<DeviceRoom> rooms;
  for (const Device& device : backend.devices()) {
    const DeviceInfo info = backend.info(device);
    const auto limit = limits.find(device.index);
    // Plans count what the process has taken already.
    const int64_t all = device.kind == DeviceKind::kCpu
                            ? info.total_bytes
                            : std::max<int64_t>(0, info.free_bytes + info.runtime_taken_bytes - Margin(info));
    rooms.push_back({device, limit == limits.end() ? all : std::min(limit->second, all)});
    if (options.fit_kv && device.kind == DeviceKind::kCuda) {
      const double share = options.fit_kv->gpu_share * static_cast<double>(info.total_bytes);
      rooms.back().bytes = std::min(rooms.back().bytes, static_cast<int64_t>(share));
    }
    if (limit != limits.end()) limits.erase(limit);
  }
  if (!limits.empty()) throw InvalidInput(fmt::format("max_memory: device {} is not in use", limits.begin()->first));
  return rooms;
}

// Of what a CPU has free, half may go to the cache and workspaces of a context that nobody asked for.
constexpr double kHostShare = 0.5;

void CheckHostRoom(std::span<const MemoryPlan> plans, const MemoryBytes& others, const Backend& backend, double share) {
  if (backend.devices().front().kind != DeviceKind::kCpu) return;
  int64_t wanted = others.kv_cache + others.workspace;
  for (const MemoryPlan& plan : plans) wanted += plan.total.kv_cache + plan.total.workspace;
  const DeviceInfo info = backend.info(backend.devices().front());
  if (static_cast<double>(wanted) <= share * static_cast<double>(info.free_bytes)) return;
  throw InvalidInput(fmt::format("the cache needs {} of {} free", Bytes(wanted), Bytes(info.free_bytes)));
}

// Requires: engine.context is set.
DecoderPlacement PlaceInRooms(const Asked& options, const ModelFiles& files, const EngineOptions& engine,
                              const Backend& backend, std::span<const DeviceRoom> rooms, const MemoryBytes& others,
                              std::optional<double> host_share) {
  PassShape shape = ShapeOf(files.config, engine);
  if (options.by_rows || options.stripes > 1) {
    std::vector<MemoryPlan> plans = PlanShards(files, engine, backend, options.stripes);
    for (MemoryPlan& plan : plans) plan = LocalPlan(std::move(plan), options.ranks, options.local, shape, files.config);
    if (host_share) CheckHostRoom(plans, others, backend, *host_share);
    return PlaceRows(files.config, plans, rooms, options.stripes);
  }
  // At most; which devices are used is not known yet.
  shape.lanes = std::min<int64_t>(kMaxLanes, static_cast<int64_t>(rooms.size()) * options.ranks);
  const MemoryPlan plan = LocalPlan(PlanMemory(files, engine.precision, engine.sc, shape, backend), options.ranks,
                                    options.local, shape, files.config);
  if (host_share) CheckHostRoom({&plan, 1}, others, backend, *host_share);
  if (options.map_json) return PlaceByFile(files.config, plan, rooms, *options.map_json, options.map_name);
  return PlacePolicy(files.config, plan, rooms, options.policy);
}

// The same next to what else is on the first device.
DecoderPlacement PlaceContext(const Asked& options, const ModelFiles& files, const EngineOptions& engine,
                              const Backend& backend, std::span<const DeviceRoom> rooms,
                              std::optional<double> host_share) {
  if (!options.others) return PlaceInRooms(options, files, engine, backend, rooms, {}, host_share);
  const MemoryBytes others = options.others(engine);
  std::vector<DeviceRoom> left(rooms.begin(), rooms.end());
  left.front().bytes = std::max<int64_t>(0, left.front().bytes - others.total());
  try {
    return PlaceInRooms(options, files, engine, backend, left, others, host_share);
  } catch (const InvalidInput& error) {
    throw InvalidInput(fmt::format("{}, with {} for its draft model on {}", error.what(), Bytes(others.total()),
                                   DeviceName(left.front().device)));
  }
}

// The most of engine->kv_tokens that fits, found by halving; a context, if not even that fits.
void FitKvTokens(const Asked& options, const ModelFiles& files, const Backend& backend,
                 std::span<const DeviceRoom> rooms, EngineOptions* engine) {
  STOCH_CHECK(engine->context != 0);
  const auto fits = [&](int64_t pages) {
    EngineOptions tried = *engine;
    tried.kv_tokens = pages * kKvPageTokens;
    try {
      PlaceContext(options, files, tried, backend, rooms, options.fit_kv->host_share);
      return true;
    } catch (const InvalidInput&) {
      return false;
    }
  };
  PassShape shape = ShapeOf(files.config, *engine);
  const int64_t most = NumPages(shape);
  shape.kv_tokens = shape.context;
  int64_t pages = std::min(most, NumPages(shape));
  for (int64_t step = most - pages; step > 0; step /= 2) {
    while (pages + step <= most && fits(pages + step)) pages += step;
  }
  engine->kv_tokens = pages * kKvPageTokens;
}

// Requires: engine->max_pass_rows is set.
DecoderPlacement PlacePasses(const Asked& options, const ModelFiles& files, const Backend& backend,
                             EngineOptions* engine) {
  const std::vector<DeviceRoom> rooms = MakeRooms(options, backend);
  if (options.fit_kv) FitKvTokens(options, files, backend, rooms, engine);
  if (engine->context != 0) return PlaceContext(options, files, *engine, backend, rooms, std::nullopt);
  // The model's own context, or the largest half, quarter ... of it that fits.
  constexpr int64_t kLeastContext = 2048;
  const int64_t own = files.config.max_position_embeddings;
  for (engine->context = own;; engine->context /= 2) {
    const bool is_last = engine->context / 2 < kLeastContext;
    try {
      const auto host_share = is_last ? std::optional<double>() : kHostShare;
      DecoderPlacement placement = PlaceContext(options, files, *engine, backend, rooms, host_share);
      if (engine->context < own) {
        engine->notices.push_back(fmt::format(
            "A context of {} of the model's {} positions is what fits in memory; --context asks for another.",
            engine->context, own));
      }
      return placement;
    } catch (const InvalidInput&) {
      if (is_last) throw;
    }
  }
}

}  // namespace

namespace {

// As Place, of layers of other ranks too, which lie anywhere.
DecoderPlacement PlaceAll(const Asked& options, const ModelFiles& files, const Backend& backend,
                          EngineOptions* engine) {
  CheckSupported(files, engine->precision, engine->sc);
  if (options.stripes > 1) CheckDealt(engine->precision, engine->sc);
  if (engine->max_pass_rows != 0) return PlacePasses(options, files, backend, engine);
  // Where there is no room for so many rows, or for the whole context next to them, half of them, and so on.
  const int64_t least = DefaultPassRows(DeviceKind::kCpu, 1);
  std::optional<std::pair<DecoderPlacement, EngineOptions>> best;  // of the longest context, then of most rows
  for (int64_t rows = DefaultPassRows(backend.devices().front().kind, options.stripes);;
       rows = std::max(rows / 2, least)) {
    EngineOptions tried = *engine;
    tried.max_pass_rows = rows;
    try {
      DecoderPlacement placement = PlacePasses(options, files, backend, &tried);
      if (!best || tried.context > best->second.context) best.emplace(std::move(placement), std::move(tried));
    } catch (const InvalidInput&) {
      if (rows <= least && !best) throw;
    }
    const bool is_whole =
        best && (engine->context != 0 || best->second.context == files.config.max_position_embeddings);
    if (is_whole || rows <= least) break;
  }
  *engine = std::move(best->second);
  return std::move(best->first);
}

}  // namespace

DecoderPlacement Place(const PlacementOptions& options, const ModelFiles& files, const Backend& backend,
                       EngineOptions* engine) {
  return PlaceNextTo(options, files, backend, engine, {});
}

DecoderPlacement PlaceNextTo(const PlacementOptions& options, const ModelFiles& files, const Backend& backend,
                             EngineOptions* engine, const BytesOfOthers& others) {
  DecoderPlacement placement = PlaceAll({options, others}, files, backend, engine);
  placement.ranks = options.ranks;
  placement.local = options.local;
  return placement;
}

DecoderPlacement PlacePolicy(const DecoderConfig& config, const MemoryPlan& plan, std::span<const DeviceRoom> rooms,
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
        fmt::format("device_map {}: allowed is auto, balanced, balanced_low_0, sequential or a file .json", policy));
  }
  DecoderPlacement placement = Fill(config, plan, rooms, shares);
  CheckRooms(placement, plan, rooms);
  return placement;
}

DecoderPlacement PlaceByFile(const DecoderConfig& config, const MemoryPlan& plan, std::span<const DeviceRoom> rooms,
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
  DecoderPlacement placement;
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

DecoderPlacement PlaceRows(const DecoderConfig& config, std::span<const MemoryPlan> plans,
                           std::span<const DeviceRoom> rooms, int stripes) {
  std::vector<Device> devices;
  for (size_t i = 0; i < rooms.size(); ++i) {
    CheckRoom(rooms[i], plans[i].total);
    devices.push_back(rooms[i].device);
  }
  return stripes > 1 ? SequenceSplit(config, devices, stripes) : RowSplit(config, devices);
}

std::vector<MemoryBytes> BytesOfDevices(const DecoderPlacement& placement, const MemoryPlan& plan,
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

std::vector<std::pair<std::string, Device>> ModuleMap(const DecoderConfig& config, const DecoderPlacement& placement) {
  std::vector<std::pair<std::string, Device>> map = {{"model.embed_tokens", placement.embedding}};
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    map.emplace_back("model.layers." + std::to_string(i), placement.layers[static_cast<size_t>(i)]);
  }
  map.emplace_back("model.norm", placement.head);
  map.emplace_back("lm_head", placement.head);
  return map;
}

}  // namespace stoch
