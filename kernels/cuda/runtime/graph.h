// SPDX-License-Identifier: Apache-2.0
// A cache of CUDA graphs by key: the first call of a key runs eagerly, the second is recorded, later ones replay the
// graph.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// The first call of a key runs eagerly so that everything that is not allowed while recording (allocations, kernel
// attributes, cuBLAS setup) has happened by the second call, which records.
//
// With several devices, a key has one graph per device, launched one after another. CUDA does not order these graphs;
// ops that join devices (device_group.h) wait for each other through memory, without the host. A body that cannot be
// recorded runs eagerly from then on, and so does one whose graph does not find enough memory (with several devices a
// failure at the first launch is thrown instead).
class GraphCache {
 public:
  explicit GraphCache(std::vector<DeviceContext*> contexts);
  ~GraphCache();
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  // Runs `body` as Backend::RunGraph says. With an empty key, or inside the body of another Run, `body` runs eagerly.
  void Run(std::string_view key, const std::function<void()>& body);

 private:
  // The state of one key.
  struct Entry {
    std::vector<cudaGraphExec_t> graphs;  // one per device; empty: not recorded yet, or is_eager
    uint64_t last_use = 0;                // value of uses_ at the last Run of the key
    bool is_eager = false;                // the body cannot be a graph: it always runs eagerly
  };
  // Records `body` and instantiates the graphs. Sets entry.is_eager if that failed harmlessly, for example for lack of
  // memory.
  void Record(Entry& entry, const std::function<void()>& body);
  // Launches the entry's graph on every device.
  cudaError_t Launch(const Entry& entry) const;
  // Ends the recordings of the first `started` devices. Returns their graphs, null for a recording that failed; sets
  // *code to the first failure.
  std::vector<cudaGraph_t> EndRecording(size_t started, cudaError_t* code);
  // Destroys the least recently used entry.
  void DropOldest();

  std::vector<DeviceContext*> contexts_;
  std::map<std::string, Entry, std::less<>> entries_;
  // Number of Run calls with a key so far.
  uint64_t uses_ = 0;
  // Whether a body is being recorded.
  bool inside_ = false;
  const bool fails_for_tests_;  // STOCH_TEST_FAIL_GRAPHS is set: instantiation of every graph fails
};

}  // namespace stoch::cuda
