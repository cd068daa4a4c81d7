// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/comm/peer_access.h"

#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"

namespace stoch::cuda {
namespace {

bool Reaches(const Device& from, const Device& to) {
  int reaches = 0;
  STOCH_CUDA(cudaDeviceCanAccessPeer(&reaches, from.index, to.index));
  return reaches != 0;
}

int PeerAttribute(cudaDeviceP2PAttr attribute, const Device& from, const Device& to) {
  int value = 0;
  STOCH_CUDA(cudaDeviceGetP2PAttribute(&value, attribute, from.index, to.index));
  return value;
}

// Calls f(from, to) for every ordered pair.
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
  // Peer access belongs to the process, as CUDA's contexts do; to ask for it twice is an error.
  static std::mutex mutex;
  static std::set<std::pair<int, int>> enabled;
  const std::lock_guard lock(mutex);
  ForEachPair(devices, [](const Device& from, const Device& to) {
    if (!Reaches(from, to) || enabled.contains({from.index, to.index})) return;
    DeviceGuard guard(from);
    const cudaError_t code = cudaDeviceEnablePeerAccess(to.index, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();  // by another library of this process
    } else {
      STOCH_CUDA(code);
    }
    enabled.insert({from.index, to.index});
  });
}

bool AllReach(std::span<const Device> devices) {
  bool all = true;
  ForEachPair(devices, [&all](const Device& from, const Device& to) { all = all && Reaches(from, to); });
  return all;
}

std::vector<DeviceLink> ReadLinks(std::span<const Device> devices) {
  std::vector<DeviceLink> links;
  ForEachPair(devices, [&links](const Device& from, const Device& to) {
    DeviceLink link{from, to, Reaches(from, to), "no peer access: copies are staged through the host"};
    if (link.direct) {
      // Only NVLink carries atomics between two GPUs.
      const bool nvlink = PeerAttribute(cudaDevP2PAttrNativeAtomicSupported, from, to) != 0;
      link.detail = std::string(nvlink ? "NVLink" : "PCIe") + ", performance rank " +
                    std::to_string(PeerAttribute(cudaDevP2PAttrPerformanceRank, from, to));
    }
    links.push_back(std::move(link));
  });
  return links;
}

}  // namespace stoch::cuda
