// SPDX-License-Identifier: Apache-2.0
// Which device holds which part of a model: device_map and max_memory with the meaning Hugging Face's accelerate gives
// them, except that the plan counts KV cache and workspace too.
//
// Modules in definition order: model.embed_tokens, model.layers.N, model.norm, lm_head. A decoder layer is never split;
// model.norm and lm_head stay together, and with the embedding where that is tied to the head.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kernels/backend.h"
#include "loader/checkpoint/weight_store.h"
#include "models/decoder/memory_plan.h"
#include "models/decoder/weights.h"

namespace stoch {

// What a KV cache that is as large as memory allows leaves to others.
struct KvFit {
  double gpu_share = 0.9;   // of a GPU's memory, for all that the model takes there
  double host_share = 0.5;  // of what a CPU has free, for cache and workspaces
};

// How a model is divided over all devices of a backend.
struct PlacementOptions {
  bool by_rows = false;                      // every matrix divided over all devices, else whole layers
  int stripes = 1;                           // 2, 4, 8: positions dealt over so many equal groups of devices instead
  std::string policy = "auto";               // of PlacePolicy; read for whole layers without a map
  std::optional<std::string> map_json = {};  // of PlaceByFile, for whole layers
  std::string map_name = "device_map";       // what errors call map_json
  // Bytes that may be used, by device index. Else a GPU may be filled with what is free on it less a margin, a CPU with
  // its whole memory (mapped weights can leave it again).
  std::map<int, int64_t> max_memory = {};
  // Where ranks divide the model: how many, and the layers of this one.
  int ranks = 1;
  IndexRange local = {};
  // The cache gets as many of the engine's kv_tokens as fit, one context at least. Requires: the engine's context is
  // set.
  std::optional<KvFit> fit_kv = {};
};

// Sets by_rows or stripes as `split` says: layer, row, sequence (positions dealt over all of `devices` devices), or
// sequence:P,row:R (over P groups of R devices, each of which divides every matrix by rows).
// Errors: InvalidInput for anything else, P other than 1, 2, 4, 8, or P times R other than the devices. `name` is what
//         messages call it: "--split".
void ParseSplit(std::string_view name, std::string_view split, size_t devices, PlacementOptions* options);

// What each device would hold of the model that Engine::Open with `engine` loads; EngineOptions::placement is made for
// it. Without max_memory a GPU may be filled with what is free on it less a margin, a CPU with its whole memory. A
// context of 0 becomes the model's own, or what fits of it, which is then a notice of the engine. With fit_kv the
// engine's kv_tokens become what fits of them. max_pass_rows of 0 become DefaultPassRows, or fewer where there is no room
// for those or for the whole context next to them.
// Errors: InvalidInput: max_memory of a device that the backend lacks, settings that the model cannot take, or not so
//         divided (CheckSupported, CheckDealt), and those of the functions below.
DecoderPlacement Place(const PlacementOptions& options, const ModelFiles& files, const Backend& backend,
                       EngineOptions* engine);

// What each device of a row split over the whole backend would hold, or of positions dealt over so many groups of its
// devices.
std::vector<MemoryPlan> PlanShards(const ModelFiles& files, const EngineOptions& engine, const Backend& backend,
                                   int stripes = 1);

// What else an engine with these options has on the first device: its draft model.
using BytesOfOthers = std::function<MemoryBytes(const EngineOptions& engine)>;

// Place, with room for the others; the size of a KV cache that fit_kv asks for leaves room, too. Empty: there are none.
// Errors: as Place, which say what the others take.
DecoderPlacement PlaceNextTo(const PlacementOptions& options, const ModelFiles& files, const Backend& backend,
                             EngineOptions* engine, const BytesOfOthers& others);

struct DeviceRoom {
  Device device;
  int64_t bytes = 0;  // that may be used
};

// Places the modules in order. balanced (= auto): as evenly as they go; balanced_low_0: as little as possible on the
// first device; sequential: each device is filled before the next.
// Errors: InvalidInput for another policy, or if it does not fit, saying by how much.
DecoderPlacement PlacePolicy(const DecoderConfig& config, const MemoryPlan& plan, std::span<const DeviceRoom> rooms,
                             std::string_view policy);

// The placement of a JSON object {module: device}: a module name covers all below it ("model.layers" every layer, ""
// everything), the longest name wins; a device is its index or its name ("cuda:1").
// Errors: InvalidInput: not such an object, an unknown module or device, a module nobody covers, a tied embedding or
//         model.norm elsewhere than lm_head, or a device that does not have the room.
DecoderPlacement PlaceByFile(const DecoderConfig& config, const MemoryPlan& plan, std::span<const DeviceRoom> rooms,
                             std::string_view json, const std::string& where);

// Every matrix divided over all devices by rows, or positions dealt over so many groups of them.
// Errors: InvalidInput where one of them lacks the room, saying by how much. plans[i]: PlanShard of rooms[i].
DecoderPlacement PlaceRows(const DecoderConfig& config, std::span<const MemoryPlan> plans,
                           std::span<const DeviceRoom> rooms, int stripes = 1);

// What each device would hold of a model placed by layers, in the order of `devices`.
std::vector<MemoryBytes> BytesOfDevices(const DecoderPlacement& placement, const MemoryPlan& plan,
                                        std::span<const Device> devices);

// Module names and their devices, in definition order.
std::vector<std::pair<std::string, Device>> ModuleMap(const DecoderConfig& config, const DecoderPlacement& placement);

}  // namespace stoch
