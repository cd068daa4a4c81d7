// SPDX-License-Identifier: Apache-2.0
// Views: every op reads and writes strided, sliced, reversed, broadcast and far tensors as if they were dense.

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "app/verify/verify.h"
#include "kernels/base/error.h"
#include "kernels/math/random.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::cli {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr int64_t kFloat = static_cast<int64_t>(sizeof(float));
constexpr int64_t kRows = 5;
constexpr int64_t kCols = 64;
constexpr int64_t kOutCols = 48;

// How a [rows, cols] matrix lies in its memory, in elements.
struct Layout {
  const char* name;
  int64_t row_step;
  int64_t col_step;
  int64_t first;  // of element (0, 0)
};

std::vector<Layout> Layouts(int64_t rows, int64_t cols) {
  return {{"dense", cols, 1, 0},
          {"padded rows", cols + 8, 1, 0},
          {"head slice", 3 * cols, 1, cols},
          {"token slice", cols, 1, 2 * cols},
          {"odd offset", cols + 3, 1, 5},
          {"transposed", 1, rows, 0},
          {"every second", 4 * cols, 2, 1},
          {"rows reversed", -cols, 1, (rows - 1) * cols},
          {"rows alike", 0, 1, 0},
          {"beyond 2^31 elements", cols, 1, (int64_t{1} << 31) + 64}};
}

// Ops promise dense rows at least; only ScMatmul takes every stride.
bool HasDenseRows(const Layout& layout, int64_t cols) { return layout.col_step == 1 && layout.row_step >= cols; }

// A matrix in one layout, with its memory.
class Laid {
 public:
  Laid(Backend& backend, Device device, const Layout& layout, int64_t rows, int64_t cols)
      : backend_(backend), layout_(layout) {
    const int64_t row_reach = (rows - 1) * layout.row_step;
    const int64_t col_reach = (cols - 1) * layout.col_step;
    low_ = layout.first + std::min<int64_t>(0, row_reach) + std::min<int64_t>(0, col_reach);
    high_ = layout.first + std::max<int64_t>(0, row_reach) + std::max<int64_t>(0, col_reach) + 1;
    buffer_ = backend.Allocate(device, high_ * kFloat);
    view_.data = static_cast<float*>(buffer_.data()) + layout.first;
    view_.dtype = kF32;
    view_.device = device;
    view_.rank = 2;
    view_.shape = {rows, cols};
    view_.stride = {layout.row_step, layout.col_step};
  }
  const TensorView& view() const { return view_; }

  // Where rows share memory the last one stays: Read tells what is there.
  void Write(const std::vector<float>& values) {
    std::vector<float> memory = Memory();
    for (int64_t i = 0; i < view_.numel(); ++i) memory[At(i)] = values[static_cast<size_t>(i)];
    backend_.CopyFromHost(Touched(), memory.data());
  }
  std::vector<float> Read() const {
    const std::vector<float> memory = Memory();
    std::vector<float> values(static_cast<size_t>(view_.numel()));
    for (int64_t i = 0; i < view_.numel(); ++i) values[static_cast<size_t>(i)] = memory[At(i)];
    return values;
  }

 private:
  size_t At(int64_t i) const {
    const int64_t cols = view_.dim(1);
    return static_cast<size_t>(layout_.first - low_ + i / cols * layout_.row_step + i % cols * layout_.col_step);
  }
  TensorView Touched() const {
    return MakeView(static_cast<float*>(buffer_.data()) + low_, kF32, view_.device, high_ - low_);
  }
  std::vector<float> Memory() const {
    std::vector<float> memory(static_cast<size_t>(high_ - low_));
    backend_.CopyToHost(memory.data(), Touched());
    return memory;
  }

  Backend& backend_;
  Layout layout_;
  int64_t low_ = 0;
  int64_t high_ = 0;
  Buffer buffer_;
  TensorView view_;
};

// An op with one input [kRows, in_cols] and one output [kRows, out_cols] (0: it answers on the host).
struct ViewOp {
  std::string name;
  int64_t in_cols = kCols;
  int64_t out_cols = kOutCols;
  bool any_strides = false;
  // Errors: InvalidInput for a view that it does not take.
  std::function<std::vector<float>(const TensorView& in, const TensorView& out)> run;
};

// Handles the ops work with, on one device.
class Bench {
 public:
  Bench(Backend& backend, Device device) : backend_(backend), device_(device) {
    ScConfig config;
    config.chunk_d = 32;
    config.halve = true;
    op_ = MakeScOperator(config);
    WeightSource source;
    source.name = "weight of the view checks";
    source.rows = kOutCols;
    source.cols = kCols;
    source.seed = 3;
    source.stddev = 0.1F;
    sc_ = backend.MakeLinear(device, {&source, 1}, {Precision::kSc, op_});
    exact_ = backend.MakeLinear(device, {&source, 1}, {Precision::kFp32, nullptr});
    table_ = backend.MakeEmbedding(device, source, nullptr);
    pass_ = backend.MakePass(device, {kRows, 1, 1});
    for (int32_t i = 0; i < kRows; ++i) {
      layout_.ids.push_back((i * 7 + 3) % static_cast<int32_t>(kOutCols));
      layout_.output_rows.push_back(i);
    }
    layout_.sequences.push_back({0, kRows, 0, pages_});
    backend.UploadPass(*pass_, layout_);
    right_ = std::make_unique<Laid>(backend, device, Layouts(kOutCols, kCols)[0], kOutCols, kCols);
    std::vector<float> right(static_cast<size_t>(kOutCols * kCols));
    for (size_t i = 0; i < right.size(); ++i) right[i] = RandomWeight(3, 9, i, 1.0F);
    right_->Write(right);
  }

  std::vector<ViewOp> Ops() {
    const auto linear = [this](const LinearWeight* weight) {
      return [this, weight](const TensorView& in, const TensorView& out) {
        LinearCall call;
        call.site = {-1, "view"};
        call.x = in;
        call.weights = {weight};
        call.outs = {out};
        backend_.Linear(call);
        return std::vector<float>();
      };
    };
    std::vector<ViewOp> ops;
    ops.push_back({"sc_matmul", kCols, kOutCols, true, [this](const TensorView& in, const TensorView& out) {
                     backend_.ScMatmul(in, right_->view(), *op_, out);
                     return std::vector<float>();
                   }});
    ops.push_back({"linear_sc", kCols, kOutCols, false, linear(sc_.get())});
    ops.push_back({"linear_fp32", kCols, kOutCols, false, linear(exact_.get())});
    ops.push_back({"gather_output_rows", kCols, kCols, false, [this](const TensorView& in, const TensorView& out) {
                     backend_.SelectRows(*pass_, in, out);
                     return std::vector<float>();
                   }});
    ops.push_back({"gather", kCols, kCols, false, [this](const TensorView& in, const TensorView& out) {
                     AllGatherCall call;
                     call.site = {-1, "view"};
                     call.from = {in};
                     call.to = {out};
                     backend_.AllGather(call);
                     return std::vector<float>();
                   }});
    ops.push_back({"embed", 0, kCols, false, [this](const TensorView&, const TensorView& out) {
                     backend_.Embed(*table_, *pass_, out);
                     return std::vector<float>();
                   }});
    ops.push_back({"argmax", kCols, 0, false, [this](const TensorView& in, const TensorView&) {
                     const Buffer ids = backend_.AllocateShared(device_, kRows * int64_t{sizeof(int32_t)});
                     backend_.Argmax(in, MakeView(ids.data(), DType::kI32, device_, kRows));
                     backend_.Synchronize(device_);
                     const auto* read = static_cast<const int32_t*>(ids.data());
                     return std::vector<float>(read, read + kRows);
                   }});
    ops.push_back({"compare_logits", kCols, 0, false, [this](const TensorView& in, const TensorView&) {
                     const Buffer targets = backend_.AllocateShared(device_, kRows * int64_t{sizeof(int32_t)});
                     const Buffer out = backend_.AllocateShared(device_, kRows * int64_t{sizeof(LogitComparison)});
                     // Against its own rows in the opposite order.
                     TensorView base = in;
                     base.data = in.ptr<float>() + (kRows - 1) * in.step(0);
                     base.stride[0] = -in.step(0);
                     CompareLogitsCall call;
                     call.site = {-1, "view"};
                     call.logits = in;
                     call.base = base;
                     call.targets = MakeView(targets.data(), DType::kI32, device_, kRows);
                     call.out = MakeView(out.data(), DType::kU8, device_, kRows, int64_t{sizeof(LogitComparison)});
                     backend_.CompareLogits(call);
                     backend_.Synchronize(device_);
                     std::vector<float> seen;
                     for (int64_t i = 0; i < kRows; ++i) {
                       const LogitComparison& row = static_cast<const LogitComparison*>(out.data())[i];
                       for (const double value : {row.kld, row.logprob, row.base_logprob}) {
                         seen.push_back(static_cast<float>(value));
                       }
                       seen.push_back(static_cast<float>(row.top));
                     }
                     return seen;
                   }});
    ops.push_back({"logprobs", kCols, 0, false, [this](const TensorView& in, const TensorView&) {
                     LogitQueries queries;
                     for (int32_t row = 0; row < kRows; ++row) {
                       TokenPick pick;
                       pick.row = row;
                       pick.temperature = 1;
                       pick.random = uint64_t{1} << 63;
                       queries.picks.push_back(pick);
                       LogProbQuery query;
                       query.row = row;
                       query.pick = row;
                       queries.logprobs.push_back(query);
                     }
                     const auto buffer = backend_.MakeLogitQueries(device_, {kCols, kRows, kRows, 0});
                     backend_.UploadLogitQueries(*buffer, queries);
                     backend_.PickTokens({in, 0}, *buffer, {0, kRows});
                     backend_.LogProbs({in, 0}, *buffer, {0, kRows});
                     backend_.Synchronize(device_);
                     std::vector<float> seen;
                     for (const LogProbAnswer& answer : buffer->logprobs()) {
                       seen.push_back(static_cast<float>(answer.id));
                       seen.push_back(static_cast<float>(answer.logprob));
                     }
                     return seen;
                   }});
    return ops;
  }

  // The op with its input and output in these layouts, or nothing where it refused them.
  std::optional<std::vector<float>> Run(const ViewOp& op, const Layout& in, const Layout& out,
                                        const std::vector<float>& values) {
    Laid input(backend_, device_, in, kRows, std::max<int64_t>(op.in_cols, 1));
    Laid output(backend_, device_, out, kRows, std::max<int64_t>(op.out_cols, 1));
    if (op.in_cols > 0) input.Write(values);
    try {
      const std::vector<float> seen = op.run(input.view(), output.view());
      backend_.CheckFinite(device_);
      return op.out_cols > 0 ? output.Read() : seen;
    } catch (const InvalidInput&) {
      return std::nullopt;
    }
  }

 private:
  Backend& backend_;
  Device device_;
  ScOperatorPtr op_;
  std::unique_ptr<LinearWeight> sc_, exact_;
  std::unique_ptr<EmbeddingTable> table_;
  std::unique_ptr<Pass> pass_;
  PassLayout layout_;
  std::vector<int32_t> pages_ = {0};
  std::unique_ptr<Laid> right_;
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// One op in every layout of its input and of its output.
class ViewCheck {
 public:
  ViewCheck(Bench& bench, const ViewOp& op) : bench_(bench), op_(op) {}

  CheckResult Run() {
    if (op_.in_cols > 0) {
      for (const Layout& layout : Layouts(kRows, op_.in_cols)) Input(layout);
    }
    if (op_.out_cols > 0) {
      for (const Layout& layout : Layouts(kRows, op_.out_cols)) Output(layout);
    }
    if (!problem_.empty()) return {false, problem_};
    return {true, fmt::format("{} layouts give the bits of dense ones, {} that it does not promise are refused", same_,
                              refused_)};
  }

 private:
  static std::vector<float> Values(const Layout& layout, int64_t cols) {
    std::vector<float> values(static_cast<size_t>(kRows * cols));
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t at = layout.row_step == 0 ? i % static_cast<size_t>(cols) : i;
      values[i] = RandomWeight(3, 1, at, 1.0F);
    }
    return values;
  }

  void Input(const Layout& layout) {
    const std::vector<float> values = Values(layout, op_.in_cols);
    const Layout out = Layouts(kRows, std::max<int64_t>(op_.out_cols, 1))[0];
    const auto expected = bench_.Run(op_, Layouts(kRows, op_.in_cols)[0], out, values);
    // One row's memory read as many is a legal input; only ops with any strides promise it.
    Note(layout, "input", bench_.Run(op_, layout, out, values), *expected,
         op_.any_strides || HasDenseRows(layout, op_.in_cols), true);
  }

  void Output(const Layout& layout) {
    const int64_t in_cols = std::max<int64_t>(op_.in_cols, 1);
    const Layout in = Layouts(kRows, in_cols)[0];
    const std::vector<float> values = Values(in, in_cols);
    const auto expected = bench_.Run(op_, in, Layouts(kRows, op_.out_cols)[0], values);
    const bool alike = layout.row_step == 0;
    Note(layout, "output", bench_.Run(op_, in, layout, values), *expected,
         !alike && (op_.any_strides || HasDenseRows(layout, op_.out_cols)), !alike);
  }

  void Note(const Layout& layout, const char* operand, const std::optional<std::vector<float>>& seen,
            const std::vector<float>& expected, bool promised, bool allowed) {
    const std::string where = fmt::format("{} as {}", operand, layout.name);
    if (!seen) {
      if (promised) problem_ = where + " is refused";
      ++refused_;
    } else if (!allowed) {
      problem_ = where + " overlaps itself and is not refused";
    } else if (!SameBits(*seen, expected)) {
      problem_ = where + " gives other bits than a dense one";
    } else {
      ++same_;
    }
  }

  Bench& bench_;
  const ViewOp& op_;
  int same_ = 0;
  int refused_ = 0;
  std::string problem_;
};

CheckResult CheckOp(const VerifyContext& context, const std::string& name) {
  Bench bench(*context.backend, context.backend->devices().back());
  for (const ViewOp& op : bench.Ops()) {
    if (op.name == name) return ViewCheck(bench, op).Run();
  }
  throw InvalidInput("there is no op " + name);
}

}  // namespace

std::vector<Check> ViewChecks(const VerifyContext& context) {
  std::vector<Check> checks;
  for (const char* name : {"sc_matmul", "linear_sc", "linear_fp32", "gather_output_rows", "gather", "embed", "argmax",
                           "compare_logits", "logprobs"}) {
    checks.push_back({std::string("views.") + name, "ten layouts of its input and output against dense ones",
                      [context, name] { return CheckOp(context, name); }});
  }
  return checks;
}

}  // namespace stoch::cli
