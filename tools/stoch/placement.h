// Which device holds which part of a model: --device-map and --max-memory, with the meaning Hugging Face's accelerate
// gives them, except that the plan counts KV cache and workspace too.
//
// Modules in definition order: model.embed_tokens, model.layers.N, model.norm, lm_head. A decoder layer is never split;
// model.norm and lm_head stay together, and with the embedding where that is tied to the head.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/device.h"
#include "loader/llama_config.h"
#include "models/llama_weights.h"
#include "models/memory_plan.h"

namespace stoch::cli {

struct DeviceRoom {
  Device device;
  int64_t bytes = 0;  // that may be used
};

// What:   "0=60GiB,1=500MB" to bytes per device index; units B, kB, MB, GB, TB, KiB, MiB, GiB, TiB.
// Errors: InvalidInput.
std::map<int, int64_t> ParseMaxMemory(std::string_view text);

// What:   places the modules in order. balanced (= auto): as evenly as they go; balanced_low_0: as little as possible
//         on the first device; sequential: each device is filled before the next.
// Errors: InvalidInput for another policy, or if it does not fit, saying by how much.
LlamaPlacement PlacePolicy(const LlamaConfig& config, const MemoryPlan& plan, std::span<const DeviceRoom> rooms,
                           std::string_view policy);

// What:   the placement of a JSON object {module: device}: a module name covers all below it ("model.layers" every
//         layer, "" everything), the longest name wins; a device is its index or its name ("cuda:1").
// Errors: InvalidInput: not such an object, an unknown module or device, a module nobody covers, a tied embedding or
//         model.norm elsewhere than lm_head, or a device that does not have the room.
LlamaPlacement PlaceByFile(const LlamaConfig& config, const MemoryPlan& plan, std::span<const DeviceRoom> rooms,
                           std::string_view json, const std::string& where);

// What:   every matrix divided over all devices by rows.
// Errors: InvalidInput where one of them lacks the room, saying by how much. plans[i]: PlanShard of rooms[i].
LlamaPlacement PlaceRows(const LlamaConfig& config, std::span<const MemoryPlan> plans,
                         std::span<const DeviceRoom> rooms);

// What: what each device would hold of a model placed by layers, in the order of `devices`.
std::vector<MemoryBytes> BytesOfDevices(const LlamaPlacement& placement, const MemoryPlan& plan,
                                        std::span<const Device> devices);

// Module names and their devices, in definition order.
std::vector<std::pair<std::string, Device>> ModuleMap(const LlamaConfig& config, const LlamaPlacement& placement);

}  // namespace stoch::cli
