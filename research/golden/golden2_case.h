// SPDX-License-Identifier: Apache-2.0
// One recorded case of the second part of the research suite: its fields, its tensors by role, and the verdicts about it.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/base/error.h"
#include "kernels/math/nonlinear_table.h"
#include "loader/checkpoint/safetensors.h"
#include "research/golden/golden.h"
#include "research/products/correlation.h"
#include "research/reference.h"

namespace stoch::golden2 {

using Json = nlohmann::json;

// 64-bit numbers are decimal text.
inline uint64_t Number64(const Json& value) {
  const auto text = value.get<std::string>();
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) throw InvalidInput("\"" + text + "\" is no number");
  return number;
}

// Whether this version computes cases of the kind.
bool IsKind(const Json& fields);

// The configuration of a case: what differs from the defaults of one product. fault_acc_bit is the BIT of fault_acc.
ScConfig ConfigOf(const Json& settings);

class Case {
 public:
  Case(Backend& backend, const SafetensorsFile& file, const Json& fields)
      : backend_(backend), file_(file), fields_(fields) {}

  GoldenResult Run();

  void RandomNumbers();
  void RowKeys();
  void Binomials();
  void Products();
  void SmoothQuantQk();
  void Attention();
  void Report();
  void Counts();
  void Source();
  void Usystolic();
  void Hardware();
  void Fp8();
  void Mx();
  void SiluTable();
  void SoftmaxTable();
  void RmsNormTable();
  void Statistics();
  void Paired();

 private:
  const SafetensorsTensor& Tensor(const char* role) const {
    return file_.Require(fields_.at("tensors").at(role).get<std::string>());
  }
  HostMatrix Matrix(const char* role) const {
    const SafetensorsTensor& tensor = Tensor(role);
    if (tensor.shape.size() != 2) throw InvalidInput(tensor.name + ": expected a matrix");
    return {tensor.shape[0], tensor.shape[1], file_.CopyF32(tensor)};
  }
  std::vector<HostMatrix> Heads(const char* role) const;  // [heads, rows, head_dim]
  std::vector<int32_t> Ints(const char* role) const { return file_.CopyI32(Tensor(role)); }

  void Fail(const std::string& why) { problem_ += (problem_.empty() ? "" : "; ") + why; }
  void Same(const std::string& what, const std::vector<int32_t>& got, const std::vector<int32_t>& expected) {
    compared_ += static_cast<int64_t>(expected.size());
    if (got != expected) Fail(what + " differs");
  }
  void SameBits(const std::string& what, const std::vector<float>& got, const std::vector<float>& expected) {
    compared_ += static_cast<int64_t>(expected.size());
    const bool same =
        got.size() == expected.size() && std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0;
    if (!same) Fail(what + " differs in bits");
  }
  // A number, or null for none.
  void Near(const std::string& what, std::optional<double> got, const Json& expected) {
    ++compared_;
    if (expected.is_null() != !got) return Fail(what + (got ? " is a number, expected null" : " is missing"));
    if (!got) return;
    const auto wanted = expected.get<double>();
    if (std::abs(*got - wanted) <= tolerance() * std::abs(wanted)) return;
    Fail(what + " is " + std::to_string(*got) + ", expected " + std::to_string(wanted));
  }
  double tolerance() const { return fields_.value("relative_tolerance", 0.0); }
  void Correlation(const std::string& name, const StreamCorrelation& got);
  std::shared_ptr<CountTable> Table() const;
  NonlinearTable Pieces(NonlinearFunction function) const;

  Backend& backend_;
  const SafetensorsFile& file_;
  const Json& fields_;
  std::string problem_, note_;
  int64_t compared_ = 0;
};

}  // namespace stoch::golden2
