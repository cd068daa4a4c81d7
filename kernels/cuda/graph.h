// CUDA graphs by key: first call eager, second recorded, later ones replayed.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "kernels/cuda/context.h"

namespace stoch::cuda {

// The first call of a key runs eagerly so that everything that must not happen while recording (allocations, kernel
// attributes, cuBLAS set-up) has happened when the second one records.
class GraphCache {
 public:
  explicit GraphCache(DeviceContext& ctx) : ctx_(ctx) {}
  ~GraphCache();
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  // What: runs `body` under the contract of Backend::RunGraph. An empty key, or a call inside another body, is eager.
  void Run(std::string_view key, const std::function<void()>& body);

 private:
  struct Entry {
    cudaGraphExec_t exec = nullptr;  // null: seen once
    uint64_t last_use = 0;
  };
  void Record(Entry& entry, const std::function<void()>& body);
  void DropOldest();

  DeviceContext& ctx_;
  std::map<std::string, Entry, std::less<>> entries_;
  uint64_t uses_ = 0;
  bool inside_ = false;
};

}  // namespace stoch::cuda
