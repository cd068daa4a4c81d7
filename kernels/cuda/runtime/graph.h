// SPDX-License-Identifier: Apache-2.0
// CUDA graphs by key: first call eager, second recorded, later ones replayed.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// The first call of a key runs eagerly so that everything that must not happen while recording (allocations, kernel
// attributes, cuBLAS set-up) has happened when the second one records.
//
// Over several devices a key has a graph on each, launched one after the other. Nothing in CUDA ties them together: ops
// that join devices (device_group.h) wait for each other in memory, without the host.
// A body that cannot become a graph, or whose graph finds no memory when it is first launched, runs eagerly from then
// on.
class GraphCache {
 public:
  explicit GraphCache(std::vector<DeviceContext*> contexts);
  ~GraphCache();
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  // Runs `body` under the contract of Backend::RunGraph. An empty key, or a call inside another body, is eager.
  void Run(std::string_view key, const std::function<void()>& body);

 private:
  struct Entry {
    std::vector<cudaGraphExec_t> graphs;  // one a device; empty: seen once
    uint64_t last_use = 0;
    bool is_eager = false;  // no graph could be made of it
  };
  // Records and instantiates; the entry is eager where that failed for want of memory or the like.
  void Record(Entry& entry, const std::function<void()>& body);
  cudaError_t Launch(const Entry& entry) const;
  // Ends every recording. Returns the graphs, null where a recording failed; `code` is the first failure.
  std::vector<cudaGraph_t> EndRecording(size_t started, cudaError_t* code);
  void DropOldest();

  std::vector<DeviceContext*> contexts_;
  std::map<std::string, Entry, std::less<>> entries_;
  uint64_t uses_ = 0;
  bool inside_ = false;
  const bool fails_for_tests_;  // STOCH_TEST_FAIL_GRAPHS=1: no graph can be made
};

}  // namespace stoch::cuda
