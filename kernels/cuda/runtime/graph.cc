// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/graph.h"

#include <algorithm>
#include <cstdlib>
#include <exception>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"

namespace stoch::cuda {
namespace {

// Most keys in the cache. Serving uses one key per batch size and layer range; beyond this number the least recently
// used key is dropped.
constexpr size_t kMaxGraphs = 256;

void Destroy(std::vector<cudaGraphExec_t>& graphs) {
  for (cudaGraphExec_t graph : graphs) (void)cudaGraphExecDestroy(graph);
  graphs.clear();
}

// Whether the device is still usable after the error and the failed call had no effect. For other errors the CUDA
// headers say that the process must end, or say nothing.
bool IsHarmless(cudaError_t code) {
  return code == cudaErrorInvalidValue || code == cudaErrorMemoryAllocation || code == cudaErrorNotSupported;
}

// Destroys the recorded graphs if `code` is a failure. Returns `code`.
cudaError_t FreeOnFailure(const std::vector<cudaGraph_t>& graphs, cudaError_t code) {
  for (cudaGraph_t graph : graphs) {
    if (code != cudaSuccess && graph != nullptr) (void)cudaGraphDestroy(graph);
  }
  return code;
}

}  // namespace

GraphCache::GraphCache(std::vector<DeviceContext*> contexts)
    : contexts_(std::move(contexts)), fails_for_tests_(std::getenv("STOCH_TEST_FAIL_GRAPHS") != nullptr) {}

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
    for (DeviceContext* context : contexts_) (void)context->TakeEager();
    body();
    bool is_eager = false;
    for (DeviceContext* context : contexts_) is_eager = context->TakeEager() || is_eager;
    if (entries_.size() >= kMaxGraphs) DropOldest();
    entries_.emplace(std::string(key), Entry{{}, ++uses_, is_eager});
    return;
  }
  Entry& entry = found->second;
  entry.last_use = ++uses_;
  const bool is_new = entry.graphs.empty() && !entry.is_eager;
  if (is_new) Record(entry, body);
  if (entry.is_eager) {
    body();
    return;
  }
  const cudaError_t code = Launch(entry);
  // The first launch of a graph allocates memory, which can fail. With one device, nothing has run then, so the body
  // can run eagerly instead; with several, some devices may already be waiting for the others, so the error is thrown.
  if (is_new && contexts_.size() == 1 && IsHarmless(code)) {
    (void)cudaGetLastError();
    Destroy(entry.graphs);
    entry.is_eager = true;
    body();
    return;
  }
  STOCH_CUDA(code);
}

cudaError_t GraphCache::Launch(const Entry& entry) const {
  for (size_t i = 0; i < contexts_.size(); ++i) {
    DeviceGuard guard(contexts_[i]->device);
    contexts_[i]->row_channel().Close();
    const cudaError_t code = cudaGraphLaunch(entry.graphs[i], contexts_[i]->stream);
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

void GraphCache::Record(Entry& entry, const std::function<void()>& body) {
  size_t started = 0;
  inside_ = true;
  try {
    for (; started < contexts_.size(); ++started) {
      DeviceGuard guard(contexts_[started]->device);
      contexts_[started]->row_channel().Close();
      STOCH_CUDA(cudaStreamBeginCapture(contexts_[started]->stream, cudaStreamCaptureModeThreadLocal));
    }
    body();
    for (DeviceContext* context : contexts_) {
      DeviceGuard guard(context->device);
      context->row_channel().Close();
    }
  } catch (...) {
    inside_ = false;
    cudaError_t ignored = cudaSuccess;
    for (cudaGraph_t graph : EndRecording(started, &ignored)) {
      if (graph != nullptr) (void)cudaGraphDestroy(graph);
    }
    (void)cudaGetLastError();
    // The recorded kernels have not run, so the channel's first row is still zero, as the next sequence needs
    // (RowChannel). If the device is lost, Close throws; the exception rethrown below tells the cause.
    for (DeviceContext* context : contexts_) {
      try {
        DeviceGuard guard(context->device);
        context->shared_slot.offered.reset();
        context->row_channel().Close();
      } catch (const std::exception&) {
      }
    }
    throw;
  }
  inside_ = false;
  cudaError_t code = cudaSuccess;
  const std::vector<cudaGraph_t> graphs = EndRecording(started, &code);
  STOCH_CUDA(FreeOnFailure(graphs, code));
  if (fails_for_tests_) code = cudaErrorMemoryAllocation;
  for (size_t i = 0; i < graphs.size(); ++i) {
    DeviceGuard guard(contexts_[i]->device);
    cudaGraphExec_t exec = nullptr;
    if (code == cudaSuccess) code = cudaGraphInstantiate(&exec, graphs[i], 0);
    if (exec != nullptr) entry.graphs.push_back(exec);
    // Upload now, so that no device still uploads its graph while another one waits for that device.
    if (code == cudaSuccess && contexts_.size() > 1) code = cudaGraphUpload(exec, contexts_[i]->stream);
    (void)cudaGraphDestroy(graphs[i]);
  }
  if (code == cudaSuccess) return;
  Destroy(entry.graphs);
  if (!IsHarmless(code)) STOCH_CUDA(code);
  (void)cudaGetLastError();
  entry.is_eager = true;
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
  // A running graph may be destroyed: CUDA keeps it until it has finished.
  Destroy(oldest->second.graphs);
  entries_.erase(oldest);
}

}  // namespace stoch::cuda
