// SPDX-License-Identifier: Apache-2.0
// Recorded cases of tables of functions.
#include <algorithm>
#include <vector>

#include "kernels/math/reduce.h"
#include "research/golden/golden2_case.h"

namespace stoch::golden2 {
namespace {

std::optional<int> BitsOf(const Json& fields, const char* name) {
  return fields.contains(name) && !fields.at(name).is_null() ? std::optional(fields.at(name).get<int>()) : std::nullopt;
}

// Matrices on a backend's first device.
class Matrices {
 public:
  explicit Matrices(Backend& backend) : backend_(backend), device_(backend.devices().front()) {}

  TensorView Upload(const std::vector<float>& values, int64_t rows) {
    Buffer& buffer = buffers_.emplace_back(backend_.Allocate(device_, static_cast<int64_t>(values.size()) * 4));
    const auto cols = static_cast<int64_t>(values.size()) / rows;
    const TensorView view = MakeView(buffer.data(), DType::kF32, device_, rows, cols);
    backend_.CopyFromHost(view, values.data());
    return view;
  }
  std::vector<float> Download(const TensorView& view) {
    std::vector<float> values(static_cast<size_t>(view.numel()));
    backend_.CopyToHost(values.data(), view);
    return values;
  }

 private:
  Backend& backend_;
  Device device_;
  std::vector<Buffer> buffers_;
};

}  // namespace

NonlinearTable Case::Pieces(NonlinearFunction function) const {
  NonlinearTable table;
  table.function = function;
  table.cuts = file_.CopyF32(Tensor("cuts"));
  table.values = file_.CopyF32(Tensor("values"));
  table.slopes = file_.CopyF32(Tensor("slopes"));
  table.in_bits = BitsOf(fields_, "in_bits");
  table.out_bits = BitsOf(fields_, "out_bits");
  if (table.cuts.empty() || table.values.size() != table.cuts.size() || table.slopes.size() != table.cuts.size()) {
    throw InvalidInput("cuts, values and slopes: expected as many of each, at least one");
  }
  return table;
}

void Case::SiluTable() {
  const NonlinearTable table = Pieces(NonlinearFunction::kSilu);
  const std::vector<float> x = file_.CopyF32(Tensor("x"));
  const std::vector<float> expected = file_.CopyF32(Tensor("y"));
  std::vector<float> y;
  for (const float one : x) y.push_back(table.At(one));
  SameBits("y of the table", y, expected);
  Matrices matrices(backend_);
  AllGatherCall gather;
  gather.site = {-1, "golden"};
  gather.prologue = Prologue::kSiluMul;
  gather.table = &table;
  gather.from = {matrices.Upload(x, 1)};
  gather.from2 = {matrices.Upload(std::vector<float>(x.size(), 1.0f), 1)};
  gather.to = {matrices.Upload(x, 1)};
  backend_.AllGather(gather);
  SameBits("y", matrices.Download(gather.to[0]), expected);
}

void Case::SoftmaxTable() {
  const bool is_exact = !fields_.at("tensors").contains("cuts");
  const NonlinearTable table = is_exact ? NonlinearTable() : Pieces(NonlinearFunction::kExp);
  HostMatrix x = Matrix("x");
  const auto visible = fields_.at("visible").get<std::vector<int64_t>>();
  if (static_cast<int64_t>(visible.size()) != x.rows) throw InvalidInput("visible: expected a number for each row");
  for (int64_t row = 0; row < x.rows; ++row) {
    const int64_t seen = visible[static_cast<size_t>(row)];
    if (seen < 1 || seen > x.cols) throw InvalidInput("visible: expected 1.." + std::to_string(x.cols));
    SoftmaxReference(x.row(row), seen, is_exact ? nullptr : &table);
    std::fill(x.row(row) + seen, x.row(row) + x.cols, 0.0f);
  }
  SameBits("y", x.values, Matrix("y").values);
  note_ = ", of the reference alone: a softmax is no op";
}

void Case::RmsNormTable() {
  const NonlinearTable table = Pieces(NonlinearFunction::kRsqrt);
  const HostMatrix x = Matrix("x");
  const std::vector<float> weight = file_.CopyF32(Tensor("weight"));
  if (static_cast<int64_t>(weight.size()) != x.cols) throw InvalidInput("weight: expected one for each column");
  const auto eps = fields_.at("eps").get<float>();
  HostMatrix y = x;
  for (int64_t row = 0; row < x.rows; ++row) {
    float lanes[kRowLanes] = {};
    for (int64_t i = 0; i < x.cols; ++i) lanes[i % kRowLanes] = Fma(x.row(row)[i], x.row(row)[i], lanes[i % kRowLanes]);
    const float r = table.RsqrtAt(FoldLanes<kRowLanes>(lanes) / static_cast<float>(x.cols) + eps);
    for (int64_t i = 0; i < x.cols; ++i) y.row(row)[i] = (x.row(row)[i] * r) * weight[static_cast<size_t>(i)];
  }
  SameBits("y of the reference", y.values, Matrix("y").values);
  Matrices matrices(backend_);
  NormHeadsCall norm;
  norm.site = {-1, "golden"};
  norm.head_dim = x.cols;
  norm.eps = eps;
  norm.table = &table;
  norm.q = matrices.Upload(x.values, x.rows);
  norm.k = matrices.Upload(x.values, x.rows);
  const auto flat = [&](const TensorView& view) { return MakeView(view.data, DType::kF32, view.device, x.cols); };
  norm.q_weight = flat(matrices.Upload(weight, 1));
  norm.k_weight = flat(matrices.Upload(weight, 1));
  backend_.NormHeads(norm);
  SameBits("y", matrices.Download(norm.q), Matrix("y").values);
}

}  // namespace stoch::golden2
