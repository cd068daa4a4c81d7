// SPDX-License-Identifier: Apache-2.0
// Linears of a mixture of experts (ExpertLinearCall, CombineExpertsCall in kernels/calls.h). The host never reads the
// router's choice: kernels look up each slot's matrix by the expert id that the router wrote to device memory. A slot
// is one (row, choice) pair.
#pragma once

#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/weights/weights.h"

namespace stoch::cuda {

// The matrices of one linear for all experts.
class CudaExperts final : public ExpertWeights {
 public:
  // views: device memory, [experts], the layout view of every expert's matrix; the view type follows from the experts'
  // spec: ScWeightView, ExactWeightView or HalfWeightView.
  CudaExperts(std::vector<std::unique_ptr<LinearWeight>> experts, Buffer views)
      : experts_(std::move(experts)), views_(std::move(views)) {}
  Device device() const override { return experts_.front()->device(); }
  int64_t count() const override { return static_cast<int64_t>(experts_.size()); }
  int64_t rows() const override { return experts_.front()->rows(); }
  int64_t cols() const override { return experts_.front()->cols(); }
  int64_t bytes() const override;
  int64_t stream_bytes() const override { return experts_.front()->stream_bytes(); }
  const CudaLinear& at(size_t expert) const { return static_cast<const CudaLinear&>(*experts_[expert]); }
  const CudaLinear& first() const { return static_cast<const CudaLinear&>(*experts_.front()); }
  const void* views() const { return views_.data(); }
  // Whether slots must be grouped by expert on the host (mixed/experts.h): an expert has protected channels or
  // smoothing factors, or a length rule that depends on other rows than the one it is for.
  bool is_grouped() const;

 private:
  std::vector<std::unique_ptr<LinearWeight>> experts_;
  Buffer views_;
};

// Collects the experts' matrices and uploads their views. Requires: CheckExperts.
// Errors: InvalidInput for settings that no kernel implements: activation scales that several rows share, exact weights
//         of several types.
std::unique_ptr<CudaExperts> MakeExperts(DeviceContext& ctx, std::vector<std::unique_ptr<LinearWeight>> experts);

}  // namespace stoch::cuda
