#include "kernels/cuda/graph.h"

#include <algorithm>

#include "kernels/cuda/cuda_check.h"

namespace stoch::cuda {
namespace {

// Serving sees a graph per batch size and layer range; beyond this many the least recently used one goes.
constexpr size_t kMaxGraphs = 256;

}  // namespace

GraphCache::~GraphCache() {
  for (auto& [key, entry] : entries_) {
    if (entry.exec != nullptr) (void)cudaGraphExecDestroy(entry.exec);
  }
}

void GraphCache::Run(std::string_view key, const std::function<void()>& body) {
  if (key.empty() || inside_) {
    body();
    return;
  }
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    body();
    if (entries_.size() >= kMaxGraphs) DropOldest();
    entries_.emplace(std::string(key), Entry{nullptr, ++uses_});
    return;
  }
  Entry& entry = found->second;
  entry.last_use = ++uses_;
  if (entry.exec == nullptr) Record(entry, body);
  STOCH_CUDA(cudaGraphLaunch(entry.exec, ctx_.stream));
}

void GraphCache::Record(Entry& entry, const std::function<void()>& body) {
  STOCH_CUDA(cudaStreamBeginCapture(ctx_.stream, cudaStreamCaptureModeThreadLocal));
  inside_ = true;
  cudaGraph_t graph = nullptr;
  try {
    body();
  } catch (...) {
    inside_ = false;
    (void)cudaStreamEndCapture(ctx_.stream, &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    throw;
  }
  inside_ = false;
  STOCH_CUDA(cudaStreamEndCapture(ctx_.stream, &graph));
  const cudaError_t code = cudaGraphInstantiate(&entry.exec, graph, 0);
  (void)cudaGraphDestroy(graph);
  STOCH_CUDA(code);
}

void GraphCache::DropOldest() {
  const auto oldest = std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
    return a.second.last_use < b.second.last_use;
  });
  // A graph that still runs may be destroyed: CUDA keeps it until it has finished.
  if (oldest->second.exec != nullptr) (void)cudaGraphExecDestroy(oldest->second.exec);
  entries_.erase(oldest);
}

}  // namespace stoch::cuda
