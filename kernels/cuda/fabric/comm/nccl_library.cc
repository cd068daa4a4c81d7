// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/fabric/comm/nccl_library.h"

#include <algorithm>

#if defined(STOCH_HAVE_NCCL)
#include <dlfcn.h>
#include <nccl.h>

#include <cstdlib>
#endif

namespace stoch::cuda {

std::string NcclVersionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

#if defined(STOCH_HAVE_NCCL)

namespace {

// The functions of NCCL that this file calls; null if the library was not loaded.
struct NcclLibrary {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  decltype(&ncclCommInitAll) comm_init_all = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  NcclProbe probe;
};

template <typename F>
bool Find(void* handle, const char* name, F* function) {
  *function = reinterpret_cast<F>(dlsym(handle, name));
  return *function != nullptr;
}

NcclLibrary Load() {
  NcclLibrary nccl;
  // NVLink multicast can take a host's GPUs out of service if a program that uses it dies.
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  void* handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    nccl.probe.problem = "libnccl.so.2 was not found (install NCCL 2, or name its folder in LD_LIBRARY_PATH)";
    return nccl;
  }
  const bool complete =
      Find(handle, "ncclGetVersion", &nccl.get_version) && Find(handle, "ncclGetErrorString", &nccl.error_string) &&
      Find(handle, "ncclGetLastError", &nccl.last_error) && Find(handle, "ncclCommInitAll", &nccl.comm_init_all) &&
      Find(handle, "ncclCommDestroy", &nccl.comm_destroy) && Find(handle, "ncclCommAbort", &nccl.comm_abort) &&
      Find(handle, "ncclCommGetAsyncError", &nccl.async_error) && Find(handle, "ncclGroupStart", &nccl.group_start) &&
      Find(handle, "ncclGroupEnd", &nccl.group_end) && Find(handle, "ncclAllGather", &nccl.all_gather);
  int version = 0;
  if (!complete || nccl.get_version(&version) != ncclSuccess) {
    nccl.probe.problem = "libnccl.so.2 is too old for this build, which expects " + NcclVersionText(NCCL_VERSION_CODE);
    return nccl;
  }
  nccl.probe.version = version;
  return nccl;
}

const NcclLibrary& Nccl() {
  static const NcclLibrary library = Load();
  return library;
}

void ThrowIfFailed(ncclResult_t code, const char* call, ncclComm_t comm) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  std::string message = std::string("NCCL error in ") + call + ": " + Nccl().error_string(code);
  if (const char* detail = Nccl().last_error(comm); detail != nullptr && *detail != '\0') {
    message += std::string(" (") + detail + ")";
  }
  throw NcclError(message +
                  "; NCCL_DEBUG=WARN says more, NCCL_P2P_DISABLE=1 does without direct links, --device cuda:0 without "
                  "other GPUs");
}

}  // namespace

const NcclProbe& ProbeNccl() { return Nccl().probe; }

struct NcclGroup::Comms {
  std::vector<ncclComm_t> comms;
};

NcclGroup::NcclGroup(std::span<const int> ordinals) : comms_(std::make_unique<Comms>()) {
  if (ProbeNccl().version == 0) throw NcclError("GPUs cannot exchange data through NCCL: " + ProbeNccl().problem);
  comms_->comms.resize(ordinals.size());
  ThrowIfFailed(Nccl().comm_init_all(comms_->comms.data(), static_cast<int>(ordinals.size()), ordinals.data()),
                "ncclCommInitAll", nullptr);
}

NcclGroup::~NcclGroup() {
  for (ncclComm_t comm : comms_->comms) {
    ncclResult_t state = ncclSuccess;
    const bool healthy = Nccl().async_error(comm, &state) == ncclSuccess && state == ncclSuccess;
    (void)(healthy ? Nccl().comm_destroy(comm) : Nccl().comm_abort(comm));
  }
}

void NcclGroup::AllGather(std::span<const float* const> send, std::span<float* const> receive, size_t count,
                          std::span<const cudaStream_t> streams) {
  ThrowIfFailed(Nccl().group_start(), "ncclGroupStart", nullptr);
  ncclResult_t failed = ncclSuccess;
  for (size_t i = 0; i < comms_->comms.size() && failed == ncclSuccess; ++i) {
    failed = Nccl().all_gather(send[i], receive[i], count, ncclFloat32, comms_->comms[i], streams[i]);
  }
  const ncclResult_t ended = Nccl().group_end();
  ThrowIfFailed(failed, "ncclAllGather", comms_->comms[0]);
  ThrowIfFailed(ended, "ncclGroupEnd", comms_->comms[0]);
}

void NcclGroup::Check() const {
  for (ncclComm_t comm : comms_->comms) {
    ncclResult_t state = ncclSuccess;
    ThrowIfFailed(Nccl().async_error(comm, &state), "ncclCommGetAsyncError", comm);
    ThrowIfFailed(state, "an operation in flight", comm);
  }
}

#else

const NcclProbe& ProbeNccl() {
  static const NcclProbe probe{0, "this build has none (nccl.h was not found when it was made)"};
  return probe;
}

struct NcclGroup::Comms {};

NcclGroup::NcclGroup(std::span<const int>) {
  throw NcclError("GPUs cannot exchange data through NCCL: " + ProbeNccl().problem);
}
NcclGroup::~NcclGroup() = default;
void NcclGroup::AllGather(std::span<const float* const>, std::span<float* const>, size_t,
                          std::span<const cudaStream_t>) {}
void NcclGroup::Check() const {}

#endif

}  // namespace stoch::cuda
