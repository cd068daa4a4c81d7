// SPDX-License-Identifier: Apache-2.0
// Ops with and without features of research, on random operands, and the clock that they are measured by.
#pragma once

#include <chrono>
#include <ctime>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/math/random.h"
#include "kernels/sc/sc_lengths.h"
#include "kernels/sc/sc_parameters.h"

namespace stoch {

inline constexpr int64_t kInFeatures = 512, kOutFeatures = 256;

// Time of the process on a CPU, whatever else runs there; of a GPU until it is done.
class Clock {
 public:
  explicit Clock(Backend& backend) : backend_(backend) {}
  double Ms(const std::function<void()>& step) const {
    const Device device = backend_.devices().front();
    const auto begin = std::chrono::steady_clock::now();
    const std::clock_t begin_cpu = std::clock();
    step();
    backend_.Synchronize(device);
    if (device.kind == DeviceKind::kCpu) return 1e3 * static_cast<double>(std::clock() - begin_cpu) / CLOCKS_PER_SEC;
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  Backend& backend_;
};

// F32 [rows, cols] of random numbers on a device.
class Operand {
 public:
  Operand(Backend& backend, int64_t rows, int64_t cols, uint64_t seed) {
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (size_t i = 0; i < values.size(); ++i) values[i] = RandomWeight(seed, 0, i, 1.0f);
    buffer_ = backend.Allocate(backend.devices().front(), rows * cols * 4);
    view_ = MakeView(buffer_.data(), DType::kF32, backend.devices().front(), rows, cols);
    backend.CopyFromHost(view_, values.data());
  }
  const TensorView& view() const { return view_; }

 private:
  Buffer buffer_;
  TensorView view_;
};

// Extras of an operator that has some of its own accord: faults, registers and adders.
inline std::shared_ptr<ScExtras> ExtrasOf(const ScConfig& config) {
  if (!HasFaults(config) && HasPlainSums(config)) return nullptr;
  auto extras = std::make_shared<ScExtras>();
  extras->op = "bench";
  return extras;
}

// Every row at the length of the operator, by a rule: `normalise` decides which kernels it leaves in use.
inline std::shared_ptr<ScExtras> AtOneLength(const ScConfig& config, ScNormalise normalise) {
  auto extras = std::make_shared<ScExtras>();
  extras->op = "bench";
  auto rule = std::make_shared<ScLengthRule>();
  rule->normalise = normalise;
  rule->levels = {Resolve(config).stoc_len};
  extras->lengths = rule;
  extras->by_length = MakeScOperators(config, rule->Lengths());
  return extras;
}

// A linear on a device, and its operands.
class Product {
 public:
  // `plain`: without a fast kernel on a GPU, as lengths by call have none.
  Product(Backend& backend, const ScConfig& config, int64_t rows, bool plain)
      : backend_(backend), x_(backend, rows, kInFeatures, 2), y_(backend, rows, kOutFeatures, 3) {
    const bool by_call =
        plain && config.arith == ScArith::kSc && HasSource(config.gate) && HasPlainSums(config) && !HasFaults(config);
    weight_ =
        Load(backend, MakeScOperator(config), by_call ? AtOneLength(config, ScNormalise::kCall) : ExtrasOf(config));
    call_.site = {0, "bench"};
    call_.x = x_.view();
    call_.outs = {y_.view()};
    call_.weights = {weight_.get()};
    for (int64_t row = 0; row < rows; ++row) fault_rows_.push_back(static_cast<uint64_t>(row));
    if (DrawsFaultsByRow(config)) call_.fault_rows = fault_rows_;
  }
  void Run() { backend_.Linear(call_); }

  static std::unique_ptr<LinearWeight> Load(Backend& backend, const ScOperatorPtr& op, ScExtrasPtr extras,
                                            uint64_t seed = 1) {
    std::vector<float> w(static_cast<size_t>(kOutFeatures * kInFeatures));
    for (size_t i = 0; i < w.size(); ++i) w[i] = RandomWeight(seed, 0, i, 0.02f);
    WeightSource source;
    source.name = "w";
    source.rows = kOutFeatures;
    source.cols = kInFeatures;
    source.host = w.data();
    return backend.MakeLinear(backend.devices().front(), {&source, 1}, {Precision::kSc, op, std::move(extras)});
  }

 private:
  Backend& backend_;
  Operand x_, y_;
  std::unique_ptr<LinearWeight> weight_;
  LinearCall call_;
  std::vector<uint64_t> fault_rows_;
};

// Eight experts, of which every row takes two.
class ExpertStep {
 public:
  ExpertStep(Backend& backend, const ScOperatorPtr& op, int64_t rows, bool has_lengths)
      : backend_(backend), x_(backend, rows, kInFeatures, 2), y_(backend, rows * kTopK, kOutFeatures, 3) {
    std::vector<std::unique_ptr<LinearWeight>> weights;
    const ScExtrasPtr extras = has_lengths ? AtOneLength(op->config, ScNormalise::kFixed) : nullptr;
    for (uint64_t e = 0; e < kExperts; ++e) weights.push_back(Product::Load(backend, op, extras, e));
    experts_ = backend.MakeExperts(std::move(weights));
    std::vector<int32_t> chosen;
    for (int64_t slot = 0; slot < rows * kTopK; ++slot) {
      chosen.push_back(static_cast<int32_t>((slot / kTopK * 3 + slot % kTopK) % kExperts));
    }
    const Device device = backend.devices().front();
    ids_ = backend.Allocate(device, rows * kTopK * 4);
    call_.site = {0, "bench"};
    call_.x = x_.view();
    call_.chosen = MakeView(ids_.data(), DType::kI32, device, rows, kTopK);
    call_.weights = {experts_.get()};
    call_.outs = {y_.view()};
    backend.CopyFromHost(call_.chosen, chosen.data());
  }
  void Run() { backend_.ExpertLinear(call_); }

 private:
  static constexpr int64_t kExperts = 8, kTopK = 2;
  Backend& backend_;
  Operand x_, y_;
  Buffer ids_;
  std::unique_ptr<ExpertWeights> experts_;
  ExpertLinearCall call_;
};

// Attention of one sequence at its 256th position, or of a prompt.
class AttentionStep {
 public:
  struct Feature {
    bool has_factors = false;
    const NonlinearTable* exp_table = nullptr;
  };
  AttentionStep(Backend& backend, const ScOperatorPtr& op, int64_t rows, const Feature& feature)
      : backend_(backend),
        q_(backend, kPositions, kHeads * kHeadDim, 1),
        k_(backend, kPositions, kKvHeads * kHeadDim, 2),
        v_(backend, kPositions, kKvHeads * kHeadDim, 3),
        rope_(backend, kPositions, kHeadDim, 4),
        factors_(backend, kKvHeads, kHeadDim, 5),
        out_(backend, kPositions, kHeads * kHeadDim, 6) {
    const Device device = backend.devices().front();
    KvCacheSpec spec;
    spec.num_layers = 1;
    spec.num_kv_heads = kKvHeads;
    spec.head_dim = kHeadDim;
    spec.page_tokens = kPositions;
    spec.num_pages = 1;
    spec.mode = AttentionMode::kPerToken;
    spec.qk = spec.av = op;
    spec.smooths_qk = feature.has_factors;
    cache_ = backend.MakeKvCache(device, spec);
    pass_ = backend.MakePass(device, {kPositions, 1, 1});
    std::vector<float> turns(static_cast<size_t>(kPositions * kHeadDim));
    for (size_t i = 0; i < turns.size(); ++i) turns[i] = i % kHeadDim < kHeadDim / 2 ? 1.0f : 0.0f;
    backend.CopyFromHost(rope_.view(), turns.data());
    if (feature.has_factors) {
      std::vector<float> factors(static_cast<size_t>(kKvHeads * kHeadDim), 1.0f);
      backend.CopyFromHost(factors_.view(), factors.data());
      call_.qk_smooth = factors_.view();
    }
    call_.exp_table = feature.exp_table;
    call_.site = {0, "attention"};
    call_.rope = rope_.view();
    call_.cache = cache_.get();
    call_.pass = pass_.get();
    call_.num_heads = kHeads;
    Step(kPositions - rows, 0);  // the positions before
    Step(rows, kPositions - rows);
  }
  // q and k are overwritten, by a rotation of 0 and factors of 1: every run has the same ones.
  void Run() { backend_.Attention(call_); }

 private:
  static constexpr int64_t kPositions = 256, kHeads = 8, kKvHeads = 2, kHeadDim = 64;

  void Step(int64_t rows, int64_t start) {
    if (rows == 0) return;
    PassLayout layout;
    layout.sequences.push_back({0, static_cast<int32_t>(rows), static_cast<int32_t>(start), pages_});
    layout.ids.resize(static_cast<size_t>(rows));
    backend_.UploadPass(*pass_, layout);
    call_.q = Slice(q_.view(), 0, start, rows);
    call_.k = Slice(k_.view(), 0, start, rows);
    call_.v = Slice(v_.view(), 0, start, rows);
    call_.out = Slice(out_.view(), 0, start, rows);
    backend_.Attention(call_);
  }

  Backend& backend_;
  Operand q_, k_, v_, rope_, factors_, out_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Pass> pass_;
  std::vector<int32_t> pages_ = {0};
  AttentionCall call_;
};

// A linear of exact numbers with one output, behind a function of its input.
class FunctionStep {
 public:
  FunctionStep(Backend& backend, Prologue prologue, const NonlinearTable* table, int64_t rows)
      : backend_(backend),
        x_(backend, rows, kInFeatures, 1),
        x2_(backend, rows, kInFeatures, 2),
        norm_(backend, 1, kInFeatures, 3),
        y_(backend, rows, 1, 4) {
    const std::vector<float> w(static_cast<size_t>(kInFeatures), 0.5f);
    WeightSource source;
    source.name = "w";
    source.rows = 1;
    source.cols = kInFeatures;
    source.host = w.data();
    weight_ = backend.MakeLinear(backend.devices().front(), {&source, 1}, {Precision::kFp32, nullptr});
    call_.site = {0, "bench"};
    call_.prologue = prologue;
    call_.table = table;
    call_.x = x_.view();
    call_.x2 = x2_.view();
    call_.norm_weight = MakeView(norm_.view().data, DType::kF32, norm_.view().device, kInFeatures);
    call_.norm_eps = 1e-5f;
    call_.weights = {weight_.get()};
    call_.outs = {y_.view()};
  }
  void Run() { backend_.Linear(call_); }

 private:
  Backend& backend_;
  Operand x_, x2_, norm_, y_;
  std::unique_ptr<LinearWeight> weight_;
  LinearCall call_;
};

}  // namespace stoch
