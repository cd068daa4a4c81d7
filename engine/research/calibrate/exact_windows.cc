// SPDX-License-Identifier: Apache-2.0
#include "engine/research/calibrate/exact_windows.h"

#include <algorithm>
#include <cstring>

#include "engine/engine.h"
#include "engine/perplexity.h"
#include "kernels/base/error.h"
#include "kernels/math/half.h"
#include "kernels/math/random.h"

namespace stoch {
namespace {

// Ends the observation on every path.
class Observation {
 public:
  Observation(Backend& backend, OpObserver* observer) : backend_(backend) {
    if (!backend.Observe(observer)) throw InvalidInput("calibration runs on the CPU only: give --device cpu");
  }
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;
  ~Observation() { backend_.Observe(nullptr); }

 private:
  Backend& backend_;
};

}  // namespace

void CheckWindows(const CalibrationWindows& windows, size_t tokens) {
  if (windows.ctx < 2 || windows.count < 1) {
    throw InvalidInput("--ctx and --max-windows: allowed are at least 2 and 1");
  }
  const int64_t there = static_cast<int64_t>(tokens) / windows.ctx;
  if (there < windows.count) {
    throw InvalidInput("--max-windows " + std::to_string(windows.count) + ": the text has " + std::to_string(there) +
                       " windows of " + std::to_string(windows.ctx) + " tokens");
  }
}

void ObserveExactWindows(const CalibrationWindows& windows, const std::shared_ptr<Backend>& backend,
                         const std::string& model, std::span<const int32_t> ids, OpObserver* observer) {
  CheckWindows(windows, ids.size());
  const Observation observation(*backend, observer);
  EngineOptions options;
  options.precision = Precision::kFp32;
  options.context = windows.ctx;
  options.max_pass_rows = std::max(options.max_pass_rows, windows.ctx);
  const auto engine = Engine::Open(backend, OpenModelFiles(model), options);
  PerplexityOptions evaluation;
  evaluation.ctx = windows.ctx;
  evaluation.max_windows = windows.count;
  EvaluatePerplexity(*engine, ids, evaluation);
}

HostMatrix ReadWeight(const WeightSource& source) {
  HostMatrix w{source.rows, source.cols, {}};
  w.values.resize(static_cast<size_t>(source.rows * source.cols));
  if (source.decoder != nullptr) {
    source.decoder->Decode(source.first, source.rows * source.cols, w.values.data());
    return w;
  }
  for (size_t i = 0; i < w.values.size(); ++i) {
    float& value = w.values[i];
    if (source.host == nullptr) {
      value = source.stddev == 0.0f
                  ? source.constant
                  : RandomWeight(source.seed, source.stream, static_cast<uint64_t>(source.first) + i, source.stddev);
      continue;
    }
    const char* at = static_cast<const char*>(source.host) + i * DTypeSize(source.dtype);
    if (source.dtype == DType::kF32) {
      std::memcpy(&value, at, sizeof(value));
      continue;
    }
    uint16_t half = 0;
    std::memcpy(&half, at, sizeof(half));
    value = source.dtype == DType::kF16 ? F16ToFloat(half) : Bf16ToFloat(half);
  }
  return w;
}

}  // namespace stoch
