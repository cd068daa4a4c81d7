// SPDX-License-Identifier: Apache-2.0
#include "research/calibrate/exact_windows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/engine.h"
#include "engine/perplexity.h"
#include "kernels/base/error.h"
#include "kernels/base/parallel_for.h"
#include "kernels/math/half.h"
#include "kernels/math/random.h"
#include "kernels/wrappers/observing_backend.h"

namespace stoch {
namespace {

// Ends the observation on every path.
class Observation {
 public:
  Observation(std::shared_ptr<Backend> backend, OpObserver* observer, int threads) : backend_(std::move(backend)) {
    if (backend_->Observe(observer)) return;
    backend_ = std::make_shared<ObservingBackend>(std::move(backend_), threads);
    backend_->Observe(observer);
  }
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;
  ~Observation() { backend_->Observe(nullptr); }

  const std::shared_ptr<Backend>& backend() const { return backend_; }

 private:
  std::shared_ptr<Backend> backend_;
};

// Elements [first, first + count) of a tensor.
void Read(const WeightSource& source, int64_t first, int64_t count, float* to) {
  if (source.decoder != nullptr) return source.decoder->Decode(source.first + first, count, to);
  for (int64_t i = first; i < first + count; ++i, ++to) {
    if (source.host == nullptr) {
      *to = source.stddev == 0.0f
                ? source.constant
                : RandomWeight(source.seed, source.stream, static_cast<uint64_t>(source.first + i), source.stddev);
      continue;
    }
    const char* at = static_cast<const char*>(source.host) + static_cast<size_t>(i) * DTypeSize(source.dtype);
    if (source.dtype == DType::kF32) {
      std::memcpy(to, at, sizeof(*to));
      continue;
    }
    uint16_t half = 0;
    std::memcpy(&half, at, sizeof(half));
    *to = source.dtype == DType::kF16 ? F16ToFloat(half) : Bf16ToFloat(half);
  }
}

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
  const Observation observation(backend, observer, windows.threads);
  EngineOptions options;
  options.precision = Precision::kFp32;
  options.context = windows.ctx;
  options.max_pass_rows = std::max(options.max_pass_rows, windows.ctx);
  const auto engine = Engine::Open(observation.backend(), OpenModelFiles(model), options);
  PerplexityOptions evaluation;
  evaluation.ctx = windows.ctx;
  evaluation.max_windows = windows.count;
  EvaluatePerplexity(*engine, ids, evaluation);
}

HostMatrix ReadWeight(const WeightSource& source, int threads) {
  HostMatrix w{source.rows, source.cols, {}};
  w.values.resize(static_cast<size_t>(source.rows * source.cols));
  constexpr int64_t kRows = 64;  // at a time
  ParallelFor((source.rows + kRows - 1) / kRows, threads, [&](int64_t part) {
    const int64_t rows = std::min(kRows, source.rows - part * kRows);
    Read(source, part * kRows * source.cols, rows * source.cols, w.row(part * kRows));
  });
  return w;
}

WeightSource SourceOf(const HostMatrix& w) {
  WeightSource source;
  source.name = "calibration";
  source.rows = w.rows;
  source.cols = w.cols;
  source.host = w.values.data();
  return source;
}

}  // namespace stoch
