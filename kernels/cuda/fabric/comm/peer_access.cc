// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/fabric/comm/peer_access.h"

#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/base/ordinal.h"

namespace stoch::cuda {
namespace {

bool AreOneGpu(const Device& from, const Device& to) { return OrdinalOf(from.index) == OrdinalOf(to.index); }

bool Reaches(const Device& from, const Device& to) {
  if (AreOneGpu(from, to)) return true;
  int reaches = 0;
  STOCH_CUDA(cudaDeviceCanAccessPeer(&reaches, OrdinalOf(from.index), OrdinalOf(to.index)));
  return reaches != 0;
}

int PeerAttribute(cudaDeviceP2PAttr attribute, const Device& from, const Device& to) {
  int value = 0;
  STOCH_CUDA(cudaDeviceGetP2PAttribute(&value, attribute, OrdinalOf(from.index), OrdinalOf(to.index)));
  return value;
}

// Calls f(from, to) for every ordered pair of different devices.
template <typename F>
void ForEachPair(std::span<const Device> devices, const F& f) {
  for (const Device& from : devices) {
    for (const Device& to : devices) {
      if (from != to) f(from, to);
    }
  }
}

}  // namespace

void EnablePeerAccess(std::span<const Device> devices) {
  // Peer access belongs to the process, as CUDA contexts do, and enabling it twice is an error.
  static std::mutex mutex;
  static std::set<std::pair<int, int>> enabled;
  const std::lock_guard lock(mutex);
  ForEachPair(devices, [](const Device& from, const Device& to) {
    if (AreOneGpu(from, to) || !Reaches(from, to) || enabled.contains({from.index, to.index})) return;
    DeviceGuard guard(from);
    const cudaError_t code = cudaDeviceEnablePeerAccess(OrdinalOf(to.index), 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();  // another library of this process enabled it
    } else {
      STOCH_CUDA(code);
    }
    enabled.insert({from.index, to.index});
  });
}

bool AreDirect(std::span<const Device> devices) {
  const char* off = std::getenv("NCCL_P2P_DISABLE");
  bool all = off == nullptr || std::string_view(off) != "1";
  ForEachPair(devices, [&all](const Device& from, const Device& to) { all = all && Reaches(from, to); });
  return all;
}

void CopyBetween(void* to, const Device& to_device, const void* from, const Device& from_device, size_t bytes,
                 cudaStream_t stream) {
  if (AreOneGpu(from_device, to_device)) {
    STOCH_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
  } else {
    STOCH_CUDA(cudaMemcpyPeerAsync(to, OrdinalOf(to_device.index), from, OrdinalOf(from_device.index), bytes, stream));
  }
}

std::vector<DeviceLink> ReadLinks(std::span<const Device> devices) {
  std::vector<DeviceLink> links;
  ForEachPair(devices, [&links](const Device& from, const Device& to) {
    DeviceLink link{from, to, Reaches(from, to), "no peer access: copies are staged through the host"};
    if (AreOneGpu(from, to)) {
      link.detail = "the same GPU";
    } else if (link.direct) {
      // Atomics between two GPUs are native only over NVLink.
      const bool nvlink = PeerAttribute(cudaDevP2PAttrNativeAtomicSupported, from, to) != 0;
      link.detail = std::string(nvlink ? "NVLink" : "PCIe") + ", performance rank " +
                    std::to_string(PeerAttribute(cudaDevP2PAttrPerformanceRank, from, to));
    }
    links.push_back(std::move(link));
  });
  return links;
}

}  // namespace stoch::cuda
