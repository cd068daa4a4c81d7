#include "kernels/cuda/runtime/graph.h"

#include <algorithm>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"

namespace stoch::cuda {
namespace {

// Serving sees a graph per batch size and layer range; beyond this many the least recently used one goes.
constexpr size_t kMaxGraphs = 256;

void Destroy(std::vector<cudaGraphExec_t>& graphs) {
  for (cudaGraphExec_t graph : graphs) (void)cudaGraphExecDestroy(graph);
  graphs.clear();
}

}  // namespace

GraphCache::~GraphCache() {
  for (auto& [key, entry] : entries_) Destroy(entry.graphs);
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
    entries_.emplace(std::string(key), Entry{{}, ++uses_});
    return;
  }
  Entry& entry = found->second;
  entry.last_use = ++uses_;
  if (entry.graphs.empty()) Record(entry, body);
  for (size_t i = 0; i < contexts_.size(); ++i) {
    DeviceGuard guard(contexts_[i]->device);
    STOCH_CUDA(cudaGraphLaunch(entry.graphs[i], contexts_[i]->stream));
  }
}

void GraphCache::Record(Entry& entry, const std::function<void()>& body) {
  size_t started = 0;
  inside_ = true;
  try {
    for (; started < contexts_.size(); ++started) {
      DeviceGuard guard(contexts_[started]->device);
      STOCH_CUDA(cudaStreamBeginCapture(contexts_[started]->stream, cudaStreamCaptureModeThreadLocal));
    }
    body();
  } catch (...) {
    inside_ = false;
    cudaError_t ignored = cudaSuccess;
    for (cudaGraph_t graph : EndRecording(started, &ignored)) {
      if (graph != nullptr) (void)cudaGraphDestroy(graph);
    }
    (void)cudaGetLastError();
    throw;
  }
  inside_ = false;
  cudaError_t code = cudaSuccess;
  const std::vector<cudaGraph_t> graphs = EndRecording(started, &code);
  for (size_t i = 0; i < graphs.size(); ++i) {
    if (graphs[i] == nullptr) continue;
    DeviceGuard guard(contexts_[i]->device);
    cudaGraphExec_t exec = nullptr;
    if (code == cudaSuccess) code = cudaGraphInstantiate(&exec, graphs[i], 0);
    if (exec != nullptr) entry.graphs.push_back(exec);
    // What a first launch would do is done before any device waits for another.
    if (code == cudaSuccess && contexts_.size() > 1) code = cudaGraphUpload(exec, contexts_[i]->stream);
    (void)cudaGraphDestroy(graphs[i]);
  }
  if (code != cudaSuccess) Destroy(entry.graphs);
  STOCH_CUDA(code);
}

std::vector<cudaGraph_t> GraphCache::EndRecording(size_t started, cudaError_t* code) {
  std::vector<cudaGraph_t> graphs(started, nullptr);
  for (size_t i = 0; i < started; ++i) {
    DeviceGuard guard(contexts_[i]->device);
    const cudaError_t ended = cudaStreamEndCapture(contexts_[i]->stream, &graphs[i]);
    if (*code == cudaSuccess) *code = ended;
  }
  return graphs;
}

void GraphCache::DropOldest() {
  const auto oldest = std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
    return a.second.last_use < b.second.last_use;
  });
  // A graph that still runs may be destroyed: CUDA keeps it until it has finished.
  Destroy(oldest->second.graphs);
  entries_.erase(oldest);
}

}  // namespace stoch::cuda
