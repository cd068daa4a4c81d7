// SPDX-License-Identifier: Apache-2.0
#include "kernels/registry.h"

#include <charconv>

#include "kernels/base/error.h"
#include "kernels/cpu/cpu_backend.h"
#if defined(STOCH_HAVE_CUDA)
#include "kernels/cuda/open.h"
#endif

namespace stoch {
namespace {

constexpr int kMaxCpuDevices = 1024;
constexpr std::string_view kExpected = "expected auto, cpu, cpu:N, cuda or cuda:0,1";

// The whole of `text` as a number from 0 on; -1 if it is not one.
int ParseIndex(std::string_view text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty() ? value : -1;
}

[[noreturn]] void RejectDevice(std::string_view device, std::string_view why) {
  throw InvalidInput("device '" + std::string(device) + "': " + std::string(why));
}

std::unique_ptr<Backend> OpenCpu(std::string_view device, const BackendOptions& options) {
  const int count = device == "cpu" ? 1 : ParseIndex(device.substr(4));
  if (count < 1 || count > kMaxCpuDevices) RejectDevice(device, "expected cpu:N with N = 1..1024 logical devices");
  return cpu::OpenBackend(count, options.threads, options.cpu_variant);
}

#if defined(STOCH_HAVE_CUDA)

std::string Present(const cuda::Probe& probe) {
  return probe.devices == 0 ? "no usable GPU is here (" + probe.problem + ")"
                            : "this machine has cuda:0.." + std::to_string(probe.devices - 1);
}

std::unique_ptr<Backend> OpenCuda(std::string_view device) {
  const cuda::Probe probe = cuda::ProbeDevices();
  if (probe.devices == 0) RejectDevice(device, Present(probe) + "; devices: cpu");
  std::vector<int> ordinals;
  if (device == "cuda") ordinals = {0};
  for (std::string_view rest = device == "cuda" ? std::string_view() : device.substr(5);
       ordinals.empty() || !rest.empty();) {
    const size_t comma = rest.find(',');
    const int ordinal = ParseIndex(rest.substr(0, comma));
    if (ordinal < 0) RejectDevice(device, kExpected);
    if (ordinal >= probe.devices) RejectDevice(device, Present(probe));
    for (const int other : ordinals) {
      if (other == ordinal) RejectDevice(device, "names one GPU twice");
    }
    ordinals.push_back(ordinal);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    if (comma != std::string_view::npos && rest.empty()) RejectDevice(device, kExpected);
  }
  return cuda::OpenBackend(ordinals);
}

std::unique_ptr<Backend> OpenAuto(const BackendOptions& options, std::string* notice) {
  const cuda::Probe probe = cuda::ProbeDevices();
  if (probe.devices == 0) {
    if (notice != nullptr && probe.hardware_seen) *notice = "running on the CPU: " + probe.problem;
    return OpenCpu("cpu", options);
  }
  std::vector<int> ordinals;
  for (int i = 0; i < probe.devices; ++i) ordinals.push_back(i);
  return cuda::OpenBackend(ordinals);
}

#else

std::unique_ptr<Backend> OpenCuda(std::string_view device) {
  RejectDevice(device, "this build has no CUDA backend; devices: cpu");
}

std::unique_ptr<Backend> OpenAuto(const BackendOptions& options, std::string*) { return OpenCpu("cpu", options); }

#endif

}  // namespace

std::unique_ptr<Backend> OpenBackend(std::string_view device, const BackendOptions& options, std::string* notice) {
  if (notice != nullptr) notice->clear();
  if (device == "auto") return OpenAuto(options, notice);
  if (device == "cpu" || device.starts_with("cpu:")) return OpenCpu(device, options);
  if (device == "cuda" || device.starts_with("cuda:")) return OpenCuda(device);
  RejectDevice(device, kExpected);
}

std::vector<std::string_view> BuiltBackends() {
#if defined(STOCH_HAVE_CUDA)
  return {"cpu", "cuda"};
#else
  return {"cpu"};
#endif
}

std::vector<std::string_view> UsableCpuVariants() { return cpu::SupportedVariants(); }

}  // namespace stoch
