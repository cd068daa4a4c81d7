// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/fabric/ring/query_exchange.h"

#include <chrono>
#include <thread>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/fabric/ring/event_wait.h"
#include "kernels/ring_hop.h"

namespace stoch::cuda {

QueryExchange::QueryExchange(std::vector<DeviceContext*> contexts, bool direct) : direct_(direct) {
  ranks_.resize(contexts.size());
  for (size_t i = 0; i < contexts.size(); ++i) {
    ranks_[i].ctx = contexts[i];
    DeviceGuard guard(contexts[i]->device);
    for (auto& events : ranks_[i].done) {
      for (cudaEvent_t& event : events) STOCH_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
  }
}

QueryExchange::~QueryExchange() {
  // Other devices may still read the memory that is freed next.
  for (Rank& rank : ranks_) {
    try {
      DeviceGuard guard(rank.ctx->device);
      (void)cudaStreamSynchronize(rank.ctx->stream);
    } catch (const DeviceError&) {
    }
  }
  for (Rank& rank : ranks_) {
    try {
      DeviceGuard guard(rank.ctx->device);
      for (auto& events : rank.done) {
        for (cudaEvent_t event : events) (void)(event == nullptr ? cudaSuccess : cudaEventDestroy(event));
      }
    } catch (const DeviceError&) {
    }
  }
}

RingHop QueryExchange::HopOf(const OpSite& site, int exchange, size_t from, size_t to) const {
  RingHop hop;
  hop.site = site;
  hop.origin = static_cast<int>(from);
  hop.hop = exchange + 1;
  hop.hops = kExchanges;
  hop.from = ranks_[from].ctx->device;
  hop.to = ranks_[to].ctx->device;
  return hop;
}

// Returns the staging memory of an area, one half of the whole. The halves do not depend on the area size of an op,
// because models with areas of different sizes share the memory.
uint8_t* QueryExchange::StagingOf(const Rank& rank, int area) {
  return static_cast<uint8_t*>(rank.staging.data()) + area * (rank.staging.bytes() / kAreas);
}

uint8_t* QueryExchange::ReadPlace(int rank, uint8_t* area) const {
  return direct_ ? area : StagingOf(ranks_[static_cast<size_t>(rank)], area_);
}

void QueryExchange::WaitForOthers(size_t rank, int step) {
  for (size_t other = 0; other < ranks_.size(); ++other) {
    if (other == rank) continue;
    STOCH_CUDA(cudaStreamWaitEvent(ranks_[rank].ctx->stream,
                                   ranks_[other].done[static_cast<size_t>(slot_)][static_cast<size_t>(step)]));
  }
}

// Makes all devices wait for each other after an op that was aborted, because some devices may still read its areas.
void QueryExchange::Join() {
  for (Rank& rank : ranks_) {
    DeviceGuard guard(rank.ctx->device);
    STOCH_CUDA(cudaEventRecord(rank.done[static_cast<size_t>(slot_)][0], rank.ctx->stream));
  }
  for (size_t i = 0; i < ranks_.size(); ++i) {
    DeviceGuard guard(ranks_[i].ctx->device);
    WaitForOthers(i, 0);
  }
}

void QueryExchange::Begin(const OpSite& site, int64_t area_bytes, RingProbe* probe) {
  probe_ = probe;
  site_ = site;
  step_ = 0;
  area_ = (area_ + 1) % kAreas;
  slot_ = (slot_ + 1) % kAhead;
  while (!issued_.empty() && issued_.front().slot == slot_) {
    const Op op = issued_.front();
    issued_.pop_front();
    Poll(op);
  }
  if (!is_whole_) Join();
  is_whole_ = false;
  for (Rank& rank : ranks_) {
    if (direct_ || static_cast<int64_t>(rank.staging.bytes()) >= kAreas * area_bytes) continue;
    Settle();
    for (const Rank& reader : ranks_) {
      DeviceGuard guard(reader.ctx->device);
      STOCH_CUDA(cudaStreamSynchronize(reader.ctx->stream));
    }
    DeviceGuard guard(rank.ctx->device);
    rank.staging = AllocatePinned(static_cast<size_t>(kAreas * area_bytes), rank.ctx->device);
  }
}

void QueryExchange::Step(const std::function<SharedBytes(int rank)>& run) {
  const int64_t limit_ms = probe_ == nullptr ? RingProbe::kRingLimitMs : probe_->limit_ms();
  const bool is_last = step_ == kSteps - 1;
  for (size_t i = 0; i < ranks_.size() && probe_ != nullptr && step_ > 0; ++i) {
    for (size_t from = 0; from < ranks_.size(); ++from) {
      if (from == i) continue;
      const RingHop hop = HopOf(site_, step_ - 1, from, i);
      if (probe_->OnSend(hop)) continue;
      Settle();
      std::this_thread::sleep_for(std::chrono::milliseconds(limit_ms));
      throw MakeLostHop(hop, "did not arrive", limit_ms);
    }
  }
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    cudaStream_t const stream = rank.ctx->stream;
    DeviceGuard guard(rank.ctx->device);
    if (step_ > 0) WaitForOthers(i, step_ - 1);
    const SharedBytes shared = run(static_cast<int>(i));
    if (!direct_ && shared.bytes > 0) {
      STOCH_CUDA(cudaMemcpyAsync(StagingOf(rank, area_) + shared.at, shared.from, static_cast<size_t>(shared.bytes),
                                 cudaMemcpyDeviceToHost, stream));
    }
    STOCH_CUDA(cudaEventRecord(rank.done[static_cast<size_t>(slot_)][static_cast<size_t>(step_)], stream));
  }
  ++step_;
  if (!is_last) return;
  issued_.push_back({site_, slot_, limit_ms});
  is_whole_ = true;
}

void QueryExchange::Settle() {
  while (!issued_.empty()) {
    const Op op = issued_.front();
    issued_.pop_front();
    Poll(op);
  }
}

void QueryExchange::Poll(const Op& op) {
  const auto done = [&](size_t rank, int step) {
    return ranks_[rank].done[static_cast<size_t>(op.slot)][static_cast<size_t>(step)];
  };
  bool all = true;
  for (size_t i = 0; all && i < ranks_.size(); ++i) all = HasPassed(done(i, kSteps - 1));
  if (all) return;
  for (size_t i = 0; i < ranks_.size(); ++i) (void)WaitForEvent(done(i, 0), -1);
  for (int exchange = 0; exchange < kExchanges; ++exchange) {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (WaitForEvent(done(i, exchange + 1), op.limit_ms)) continue;
      is_whole_ = false;
      issued_.clear();
      throw MakeLostHop(HopOf(op.site, exchange, (i + ranks_.size() - 1) % ranks_.size(), i), "did not arrive",
                        op.limit_ms);
    }
  }
}

}  // namespace stoch::cuda
