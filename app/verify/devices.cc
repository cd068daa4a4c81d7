// SPDX-License-Identifier: Apache-2.0
// Several devices: launches stay on the device of their operands, data arrives, and a divided model has one's bits.

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "app/verify/logits.h"
#include "app/verify/verify.h"
#include "kernels/base/error.h"
#include "kernels/math/random.h"
#include "kernels/registry.h"
#include "models/decoder/weights.h"

namespace stoch::cli {
namespace {

constexpr DType kF32 = DType::kF32;

// The devices of --device, or logical ones where that is a single CPU: the rules are the same.
std::shared_ptr<Backend> SeveralDevices(const VerifyContext& context) {
  if (context.backend->devices().size() > 1 || context.backend->name() != "cpu") return context.backend;
  return OpenBackend("cpu:3", {.threads = 0, .cpu_variant = ""}, nullptr);
}

std::vector<float> RandomValues(uint64_t stream, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = RandomWeight(7, stream, i, 1.0F);
  return values;
}

// A dense tensor with its memory.
struct Tensor {
  Buffer buffer;
  TensorView view;

  Tensor(Backend& backend, Device device, int64_t batch, int64_t rows, int64_t cols)
      : buffer(backend.Allocate(device, batch * rows * cols * static_cast<int64_t>(sizeof(float)))),
        view(batch > 1 ? MakeView(buffer.data(), kF32, device, batch, rows, cols)
                       : MakeView(buffer.data(), kF32, device, rows, cols)) {}
};

std::vector<float> Read(Backend& backend, const TensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.numel()));
  backend.CopyToHost(values.data(), view);
  return values;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool AnyNonzero(const std::vector<float>& values) {
  for (const float value : values) {
    if (value != 0) return true;
  }
  return false;
}

// ----------------------------------------------------------------------------------------------- device_guard ----

struct GuardCase {
  const char* name;
  std::vector<std::pair<const char*, const char*>> settings;
  int64_t batch;
};
const std::vector<GuardCase>& GuardCases() {
  static const std::vector<GuardCase> cases = {
      {"per_tensor", {{"granularity", "per_tensor"}}, 1},  {"per_row", {{"granularity", "per_row"}}, 1},
      {"groups", {{"group_a", "2"}, {"group_b", "4"}}, 1}, {"per_head", {{"granularity", "per_head"}}, 4},
      {"chunks", {{"chunk_d", "128"}, {"halve", "1"}}, 1},
  };
  return cases;
}

std::vector<float> MultiplyOn(Backend& backend, Device device, const GuardCase& guard, int64_t n) {
  constexpr int64_t kD = 896;
  constexpr int64_t kM = 160;
  ScConfig config;
  for (const auto& [name, value] : guard.settings) SetScParameter(config, name, value);
  const Tensor a(backend, device, guard.batch, n, kD);
  const Tensor b(backend, device, guard.batch, kM, kD);
  const Tensor out(backend, device, guard.batch, n, kM);
  backend.CopyFromHost(a.view, RandomValues(1, a.view.numel()).data());
  backend.CopyFromHost(b.view, RandomValues(2, b.view.numel()).data());
  backend.ScMatmul(a.view, b.view, *MakeScOperator(config), out.view);
  return Read(backend, out.view);
}

// The 70B down_proj as a linear; on a CPU a piece of its rows, which are independent.
std::vector<float> DownProjOn(Backend& backend, Device device, int64_t n) {
  constexpr int64_t kD = 28672;
  const int64_t rows = backend.name() == "cpu" ? 128 : 8192;
  ScConfig config;
  config.chunk_d = 128;
  config.halve = true;
  WeightSource source;
  source.name = "down_proj of 70B";
  source.rows = rows;
  source.cols = kD;
  source.seed = 5;
  source.stddev = 0.02F;
  const auto weight = backend.MakeLinear(device, {&source, 1}, {Precision::kSc, MakeScOperator(config)});
  const Tensor x(backend, device, 1, n, kD);
  const Tensor out(backend, device, 1, n, rows);
  backend.CopyFromHost(x.view, RandomValues(3, x.view.numel()).data());
  LinearCall call;
  call.site = {-1, "device_guard"};
  call.x = x.view;
  call.weights = {weight.get()};
  call.outs = {out.view};
  backend.Linear(call);
  backend.CheckFinite(device);
  return Read(backend, out.view);
}

// Operands on two devices must be refused before anything runs, in a sentence that names both.
bool RefusesMixture(Backend& backend, std::string* problem) {
  const Device first = backend.devices()[0];
  const Device last = backend.devices().back();
  const Tensor a(backend, first, 1, 1, 64);
  const Tensor b(backend, last, 1, 8, 64);
  const Tensor out(backend, first, 1, 1, 8);
  try {
    backend.ScMatmul(a.view, b.view, *MakeScOperator({}), out.view);
  } catch (const InvalidInput& error) {
    const std::string text = error.what();
    if (text.find(DeviceName(first)) != std::string::npos && text.find(DeviceName(last)) != std::string::npos) {
      return true;
    }
    *problem = "the error for operands on two devices does not name both: " + text;
    return false;
  }
  *problem = "operands on " + DeviceName(first) + " and " + DeviceName(last) + " were not refused";
  return false;
}

CheckResult DeviceGuardCheck(const VerifyContext& context) {
  const std::shared_ptr<Backend> backend = SeveralDevices(context);
  const Device first = backend->devices()[0];
  int64_t compared = 0;
  std::string problem;
  const auto compare = [&](const std::string& what, const auto& run) {
    const std::vector<float> expected = run(first);
    if (!AnyNonzero(expected)) problem = what + " is all zero";
    for (const Device& device : backend->devices()) {
      if (!SameBits(run(device), expected)) problem = what + " has other bits on " + DeviceName(device);
      ++compared;
    }
  };
  for (const int64_t n : {1, 4}) {
    for (const GuardCase& guard : GuardCases()) {
      compare(fmt::format("{} of {} rows", guard.name, n),
              [&](Device device) { return MultiplyOn(*backend, device, guard, n); });
    }
    compare(fmt::format("70B down_proj of {} rows", n), [&](Device device) { return DownProjOn(*backend, device, n); });
  }
  if (backend->devices().size() > 1 && problem.empty()) RefusesMixture(*backend, &problem);
  if (!problem.empty()) return {false, problem};
  return {true, fmt::format("{} products on {} devices have the bits of {}; operands of two devices are refused",
                            compared, backend->devices().size(), DeviceName(first))};
}

// -------------------------------------------------------------------------------------- peer_access, gathers ----

CheckResult PeerAccessCheck(const VerifyContext& context) {
  constexpr int64_t kValues = int64_t{4} << 20;
  constexpr int kRepetitions = 8;
  const std::shared_ptr<Backend> backend = SeveralDevices(context);
  const std::vector<DeviceLink> links = backend->links();
  if (links.empty()) return {true, "one device: there is no peer"};
  const std::vector<float> values = RandomValues(4, kValues);
  std::vector<std::string> seen;
  bool passed = true;
  for (const DeviceLink& link : links) {
    const Tensor from(*backend, link.from, 1, 1, kValues);
    const Tensor to(*backend, link.to, 1, 1, kValues);
    backend->CopyFromHost(from.view, values.data());
    backend->Copy(to.view, from.view);
    backend->Synchronize(link.to);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kRepetitions; ++i) backend->Copy(to.view, from.view);
    backend->Synchronize(link.to);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    const bool same = SameBits(Read(*backend, to.view), values);
    passed = passed && same;
    seen.push_back(fmt::format("{} to {} {}{}, {:.0f} GB/s ({})", DeviceName(link.from), DeviceName(link.to),
                               link.direct ? "direct" : "staged", same ? "" : ", OTHER BITS",
                               kRepetitions * kValues * 4 / elapsed.count() / 1e9, link.detail));
  }
  return {passed, fmt::format("{}", fmt::join(seen, "; "))};
}

// What every device gives comes back to every device.
bool GatherReturns(Backend& backend, AllGatherRoute route, int64_t rows, int64_t cols) {
  const std::span<const Device> devices = backend.devices();
  std::vector<Tensor> from, to;
  AllGatherCall call;
  call.site = {-1, "nccl_loopback"};
  call.route = route;
  std::vector<std::vector<float>> given;
  for (size_t i = 0; i < devices.size(); ++i) {
    from.emplace_back(backend, devices[i], 1, rows, cols + static_cast<int64_t>(i));
    given.push_back(RandomValues(10 + i, from.back().view.numel()));
    backend.CopyFromHost(from.back().view, given.back().data());
    call.from.push_back(from.back().view);
  }
  const auto count = static_cast<int64_t>(devices.size());
  const int64_t total = count * cols + count * (count - 1) / 2;
  for (const Device& device : devices) {
    to.emplace_back(backend, device, 1, rows, total);
    call.to.push_back(to.back().view);
  }
  backend.AllGather(call);
  for (const Tensor& receiver : to) {
    const std::vector<float> all = Read(backend, receiver.view);
    for (int64_t row = 0; row < rows; ++row) {
      auto at = all.begin() + row * total;
      for (size_t i = 0; i < given.size(); ++i) {
        const int64_t width = call.from[i].dim(1);
        if (std::memcmp(&*at, given[i].data() + row * width, static_cast<size_t>(width) * sizeof(float)) != 0) {
          return false;
        }
        at += width;
      }
    }
  }
  for (const Device& device : devices) backend.CheckFinite(device);
  return true;
}

CheckResult NcclLoopbackCheck(const VerifyContext& context) {
  const std::shared_ptr<Backend> backend = SeveralDevices(context);
  std::vector<std::pair<std::string, AllGatherRoute>> routes = {{"the backend's choice", AllGatherRoute::kAuto}};
  if (backend->name() != "cpu") routes.emplace_back("NCCL", AllGatherRoute::kNccl);
  std::vector<std::string> seen;
  bool passed = true;
  for (const auto& [name, route] : routes) {
    bool same = true;
    for (const auto& [rows, cols] : {std::pair{1, 4096}, {5, 72}, {64, 8192}}) {
      same = same && GatherReturns(*backend, route, rows, cols);
    }
    passed = passed && same;
    seen.push_back(fmt::format("{}: {}", name, same ? "every value came back" : "VALUES DIFFER"));
  }
  return {passed,
          fmt::format("{} devices, {}; {}", backend->devices().size(), backend->collectives(), fmt::join(seen, "; "))};
}

// ------------------------------------------------------------------------------------------- divided models ----

std::string HashPlaced(const std::shared_ptr<Backend>& backend, const std::string& model, const std::string& config,
                       const DecoderPlacement& placement) {
  LogitsRun run;
  ModelFiles files = OpenModelFiles(model);
  run.prompt = VerifyPrompt(files.config.vocab_size, 16);
  run.new_tokens = 16;
  EngineOptions options;
  const bool exact = config == "fp32";
  Apply({.precision = exact ? "fp32" : "sc", .sc = exact ? std::vector<std::string>() : std::vector{config}}, &options);
  options.context = static_cast<int64_t>(run.prompt.size()) + run.new_tokens;
  options.placement = placement;
  return LogitsSha256(*Engine::Open(backend, std::move(files), options), run);
}

// Layers in turn over the devices, beginning with the last, and the head on the first: every hop there is.
DecoderPlacement Scattered(const DecoderConfig& config, std::span<const Device> devices) {
  DecoderPlacement placement = SingleDevice(config, devices.front());
  placement.embedding = config.tie_word_embeddings ? devices.front() : devices.back();
  for (size_t i = 0; i < placement.layers.size(); ++i) placement.layers[i] = devices[(i + 1) % devices.size()];
  return placement;
}

CheckResult SplitEqualsSingleCheck(const VerifyContext& context) {
  const std::shared_ptr<Backend> backend = SeveralDevices(context);
  const std::span<const Device> devices = backend->devices();
  if (devices.size() < 2) return {true, "one device: there is nothing to split"};
  const std::string model = ModelOf(context);
  const DecoderConfig config = OpenModelFiles(model).config;
  const std::map<std::string, DecoderPlacement> placements = {{"layers", Scattered(config, devices)},
                                                              {"rows", RowSplit(config, devices)}};
  // The exact weights of the largest models are too much for one device.
  std::vector<const char*> configs = {"preset=halved", "preset=published"};
  if (LinearParameters(config) < 20'000'000'000) {
    configs.insert(configs.end(), {"fp32", "attention=per_row", "chunk_d=0,granularity=per_tensor", "lm_head=1"});
  }
  int64_t compared = 0;
  for (const char* settings : configs) {
    const std::string expected = HashPlaced(backend, model, settings, SingleDevice(config, devices.front()));
    for (const auto& [name, placement] : placements) {
      const std::string hash = HashPlaced(backend, model, settings, placement);
      ++compared;
      if (hash != expected) {
        return {false, fmt::format("{}: sha256 {:.12} split by {} over {} devices, {:.12} on one", settings, hash, name,
                                   devices.size(), expected)};
      }
    }
  }
  return {true, fmt::format("{} sha256 of logits split by layers and rows over {} devices are those of {}", compared,
                            devices.size(), DeviceName(devices.front()))};
}

CheckResult GoldenHashCheck(const VerifyContext& context) {
  const std::shared_ptr<Backend> backend = SeveralDevices(context);
  const std::string model = ModelOf(context);
  const DecoderConfig config = OpenModelFiles(model).config;
  const std::shared_ptr<Backend> reference = OpenBackend("cpu", {.threads = 1, .cpu_variant = "scalar"}, nullptr);
  std::string last;
  for (const char* settings : {"fp32", "preset=halved"}) {
    last = HashPlaced(reference, model, settings, SingleDevice(config, reference->devices().front()));
    for (const Device& device : backend->devices()) {
      const std::string hash = HashPlaced(backend, model, settings, SingleDevice(config, device));
      if (hash == last) continue;
      return {false, fmt::format("{}: sha256 {:.12} on {}, {:.12} on the scalar CPU", settings, hash,
                                 DeviceName(device), last)};
    }
  }
  return {true, fmt::format("sha256 {:.12} on each of {} devices and the scalar CPU", last, backend->devices().size())};
}

}  // namespace

std::vector<Check> DeviceChecks(const VerifyContext& context) {
  const auto check = [&context](const char* name, const char* description, const auto& run) {
    return Check{name, description, [context, run] { return run(context); }};
  };
  return {
      check("device_guard", "operands on any device: the same bits, and never two devices at once", DeviceGuardCheck),
      check("peer_access", "copies between every two devices arrive", PeerAccessCheck),
      check("nccl_loopback", "what all devices give comes back to all", NcclLoopbackCheck),
      check("split_equals_single", "logits of a divided model are those of one device", SplitEqualsSingleCheck),
      check("golden_hash", "logits on each device are those of the scalar CPU", GoldenHashCheck)};
}

}  // namespace stoch::cli
