// SPDX-License-Identifier: Apache-2.0
#include "kernels/wrappers/verifying_backend.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>

#include "kernels/all_gather_check.h"
#include "kernels/base/error.h"
#include "kernels/call_check.h"
#include "kernels/math/elementary.h"

namespace stoch {
namespace {

// Compares what `from` sent with columns [begin, begin + cols) of what `to` has, both [rows, ...].
void Compare(const OpSite& site, const std::vector<uint32_t>& sent, const Device& from,
             const std::vector<uint32_t>& arrived, const Device& to, int64_t rows, int64_t begin) {
  if (rows == 0) return;
  const auto cols = static_cast<int64_t>(sent.size()) / rows;
  const auto whole = static_cast<int64_t>(arrived.size()) / rows;
  for (int64_t row = 0; row < rows; ++row) {
    const auto first = sent.begin() + row * cols;
    const auto [wrong, other] = std::mismatch(first, first + cols, arrived.begin() + row * whole + begin);
    if (wrong == first + cols) continue;
    throw DeviceError(SiteName(site) + ": " + DeviceName(to) + " has other values than " + DeviceName(from) +
                      " sent, the first one at row " + std::to_string(row) + ", column " +
                      std::to_string(begin + (wrong - first)));
  }
}

void ApplySiluMul(std::vector<uint32_t>* x, const std::vector<uint32_t>& x2) {
  for (size_t i = 0; i < x->size(); ++i) {
    const float value = Silu(std::bit_cast<float>((*x)[i])) * std::bit_cast<float>(x2[i]);
    (*x)[i] = std::bit_cast<uint32_t>(value);
  }
}

}  // namespace

std::vector<uint32_t> VerifyingBackend::Read(const TensorView& matrix) {
  const int64_t rows = matrix.dim(0), cols = matrix.dim(1);
  if (matrix.numel() == 0) return {};
  // The last row ends its piece of memory: gaps in front of it are read and left out.
  const int64_t step = rows > 1 ? matrix.step(0) : cols;
  std::vector<uint32_t> all(static_cast<size_t>((rows - 1) * step + cols));
  inner().CopyToHost(all.data(), MakeView(matrix.data, matrix.dtype, matrix.device, static_cast<int64_t>(all.size())));
  if (step == cols) return all;
  std::vector<uint32_t> values;
  values.reserve(static_cast<size_t>(rows * cols));
  for (int64_t row = 0; row < rows; ++row) {
    const auto first = all.begin() + row * step;
    values.insert(values.end(), first, first + cols);
  }
  return values;
}

void VerifyingBackend::Copy(const TensorView& to, const TensorView& from) {
  inner().Copy(to, from);
  if (to.device == from.device || from.numel() == 0) return;
  const auto bytes = static_cast<size_t>(from.bytes());
  std::vector<uint32_t> sent((bytes + 3) / 4), arrived(sent.size());
  inner().CopyToHost(sent.data(), from);
  inner().CopyToHost(arrived.data(), to);
  Compare({-1, "copy"}, sent, from.device, arrived, to.device, 1, 0);
}

void VerifyingBackend::AllGather(const AllGatherCall& call) {
  inner().AllGather(call);
  const GatherPlan plan = CheckAllGather(call);
  std::vector<std::vector<uint32_t>> arrived;
  for (const TensorView& to : call.to) arrived.push_back(Read(to));
  for (size_t i = 0; i < call.from.size(); ++i) {
    if (plan.cols_of(i) == 0) continue;
    std::vector<uint32_t> sent = Read(call.from[i]);
    if (HasSecondOperand(call)) ApplySiluMul(&sent, Read(call.from2[i]));
    for (size_t j = 0; j < call.to.size(); ++j) {
      Compare(call.site, sent, call.from[i].device, arrived[j], call.to[j].device, plan.rows, plan.begin[i]);
    }
  }
}

void VerifyingBackend::RunGraph(std::span<const Device> /*devices*/, std::string_view /*key*/,
                                const std::function<void()>& body) {
  body();
}

}  // namespace stoch
