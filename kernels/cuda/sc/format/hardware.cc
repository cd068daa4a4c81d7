// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sc/format/hardware.h"

#include <algorithm>
#include <mutex>
#include <type_traits>
#include <vector>

#include "kernels/cuda/base/memory.h"

namespace stoch::cuda {
namespace {

template <typename T>
std::vector<T> Copied(const T* from, size_t count) {
  return from == nullptr ? std::vector<T>() : std::vector<T>(from, from + count);
}

}  // namespace

HardwareTables::HardwareTables(const Device& device, const ScOperator& op, int64_t most_dims) : device_(device) {
  const ScAccumulator accumulator(op, most_dims);
  view_.finishes = !HasPlainSums(op.config);
  view_.seed = op.config.fault_seed;
  view_.accumulator = accumulator.view();
  view_.accumulator.register_flips = Keep(accumulator.register_flips());
  if (accumulator.product_flips() != nullptr) KeepProductFlips(*accumulator.product_flips());
  if (accumulator.gate_steps() != nullptr) KeepGates(accumulator.gate_steps()->tables());
  const ScWordFaults activation(op, op.config.fault_activation), weight(op, op.config.fault_weight);
  view_.activation = activation.view();
  view_.activation.flips = Keep(activation.flips());
  view_.weight = weight.view();
  view_.weight.flips = Keep(weight.flips());
}

BinomialLineView HardwareTables::Keep(const BinomialLine& line) {
  BinomialLineView view = line.view();
  memory_.push_back(DeviceCopy(device_, line.entries));
  view.entries = static_cast<const uint64_t*>(memory_.back().data());
  return view;
}

void HardwareTables::KeepProductFlips(const BinomialTable& table) {
  std::vector<uint64_t> entries;
  std::vector<size_t> begins;
  for (const BinomialLine& line : table.lines()) {
    begins.push_back(entries.size());
    entries.insert(entries.end(), line.entries.begin(), line.entries.end());
  }
  const auto* base = static_cast<const uint64_t*>(memory_.emplace_back(DeviceCopy(device_, entries)).data());
  std::vector<BinomialLineView> lines;
  for (size_t i = 0; i < begins.size(); ++i) {
    BinomialLineView view = table.lines()[i].view();
    view.entries = base + begins[i];
    lines.push_back(view);
  }
  memory_.push_back(DeviceCopy(device_, lines));
  view_.accumulator.product_flips.lines = static_cast<const BinomialLineView*>(memory_.back().data());
}

void HardwareTables::KeepGates(const ScGateTables& tables) {
  const auto keep = [this](const auto& values) {
    using T = typename std::decay_t<decltype(values)>::value_type;
    return static_cast<const T*>(memory_.emplace_back(DeviceCopy(device_, values)).data());
  };
  const auto count = static_cast<size_t>(tables.masks) * static_cast<size_t>(tables.levels);
  const bool is_mux = tables.adder == ScAdder::kMux;
  view_.gates = tables;
  view_.gates.steps = keep(Copied(tables.steps, tables.first_step[count]));
  view_.gates.first_step = keep(Copied(tables.first_step, count + 1));
  view_.gates.num_on = keep(Copied(tables.num_on, count));
  view_.gates.inputs = keep(Copied(tables.inputs, is_mux ? static_cast<size_t>(tables.stoc_len) : 0));
  view_.gates.cycles = keep(Copied(tables.cycles, is_mux ? static_cast<size_t>(tables.group) : 0));
}

HardwareTablesPtr MakeHardwareTables(const Device& device, const ScOperator& op, int64_t most_dims) {
  if (!HasHardware(op.config)) return nullptr;
  struct Entry {
    Device device;
    ScConfig config;
    int64_t most_dims;
    std::weak_ptr<const HardwareTables> tables;
  };
  static std::mutex mutex;
  static std::vector<Entry> live;
  const std::lock_guard lock(mutex);
  std::erase_if(live, [](const Entry& entry) { return entry.tables.expired(); });
  for (const Entry& entry : live) {
    if (entry.device != device || entry.most_dims != most_dims || entry.config != op.config) continue;
    if (HardwareTablesPtr tables = entry.tables.lock()) return tables;
  }
  auto tables = std::make_shared<const HardwareTables>(device, op, most_dims);
  live.push_back({device, op.config, most_dims, tables});
  return tables;
}

}  // namespace stoch::cuda
