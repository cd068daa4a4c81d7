// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stop_token>
#include <string>
#include <utility>

#include "kernels/call_check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/runtime/test_fault.h"

// The function that a failed device assert calls. CUDA's headers declare it in debug builds only.
extern "C" __device__ void __assertfail(const char* message, const char* file, unsigned line, const char* function,
                                        size_t char_size);

namespace stoch::cuda {
namespace {

constexpr const char* kVariable = "STOCH_TEST_DEVICE_FAULT";

// Counts one op; at the last one writes `site` to `failing` and then fails as `kind` says. One thread. left: ops until
// the failure, in device memory. nowhere: an address that is not mapped on the device.
__global__ void TestFaultKernel(TestFault::Kind kind, int site, unsigned* left, volatile int* failing,
                                const volatile unsigned* nowhere) {
  if (*left == 0 || --*left != 0) return;
  *failing = site;
  __threadfence_system();
  switch (kind) {
    case TestFault::Kind::kIllegalAddress: *left = *nowhere; break;
    case TestFault::Kind::kAssert: __assertfail("on purpose", __FILE__, __LINE__, __func__, sizeof(char)); break;
    case TestFault::Kind::kHang:
      for (const volatile unsigned* never = left; *never == 0;) {
      }
      break;
  }
}

// Waits until the kernel announces a failure in `failing`, then prints the test_fault line. `failing` is host memory,
// so it can be read even when the device is lost.
void Watch(const std::stop_token& end, int* failing, const SiteTable& sites) {
  constexpr std::chrono::milliseconds kLook{1};
  int site = 0;
  while ((site = std::atomic_ref<int>(*failing).load()) == 0) {
    if (end.stop_requested()) return;
    std::this_thread::sleep_for(kLook);
  }
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%.3f", now.count());
  const std::string line = "test_fault " + std::string(seconds) + ' ' + SiteName(sites.Site(site)) + '\n';
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

// Removes the first line of a file and returns it; "" if the file has none.
std::string TakeLine(const char* path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) return "";
  const std::string rest((std::istreambuf_iterator<char>(in)), {});
  in.close();
  std::ofstream(path) << rest;
  return line;
}

}  // namespace

std::unique_ptr<TestFault> TestFault::FromEnvironment(Device device, std::shared_ptr<SiteTable> sites) {
  const char* path = std::getenv(kVariable);
  if (path == nullptr) return nullptr;
  const std::string line = TakeLine(path);
  if (line.empty() || line == "none") return nullptr;
  std::istringstream words(line);
  std::string kind;
  unsigned ops = 0;
  if (words >> kind >> ops && ops > 0) {
    const auto make = [&](Kind known) { return std::unique_ptr<TestFault>(new TestFault(device, sites, known, ops)); };
    if (kind == "illegal") return make(Kind::kIllegalAddress);
    if (kind == "assert") return make(Kind::kAssert);
    if (kind == "hang") return make(Kind::kHang);
  }
  throw DeviceError(std::string(kVariable) + ": '" + line +
                    "' is no fault; expected illegal N, assert N, hang N, none");
}

TestFault::TestFault(Device device, std::shared_ptr<SiteTable> sites, Kind kind, unsigned ops)
    : sites_(std::move(sites)), kind_(kind) {
  DeviceGuard guard(device);
  left_ = DeviceCopy(device, std::vector<unsigned>{ops});
  failing_ = AllocatePinned(sizeof(int), device);
  auto* failing = static_cast<int*>(failing_.data());
  *failing = 0;
  watch_ = std::jthread([this, failing](const std::stop_token& end) { Watch(end, failing, *sites_); });
}

void TestFault::Launch(cudaStream_t stream, const OpSite& site) {
  const auto* nowhere = reinterpret_cast<const volatile unsigned*>(uintptr_t{4096});
  TestFaultKernel<<<1, 1, 0, stream>>>(kind_, sites_->Id(site), static_cast<unsigned*>(left_.data()),
                                       static_cast<volatile int*>(failing_.data()), nowhere);
  STOCH_CUDA_LAUNCH("TestFaultKernel");
}

}  // namespace stoch::cuda
