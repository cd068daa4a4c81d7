// SPDX-License-Identifier: Apache-2.0
// Linears of a mixture of experts (ExpertLinearCall, CombineExpertsCall in kernels/calls.h). Kernels look up each slot's
// matrix by the expert id that the router wrote to device memory; only on the route kExpertSorted does the host read the
// router's choice. A slot is one (row, choice) pair.
#pragma once

#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/weights/weights.h"
#include "kernels/plan/linear/plan.h"

namespace stoch::cuda {

// The matrices of one linear for all experts.
class CudaExperts final : public ExpertWeights {
 public:
  // Uploads the experts' views. Requires: CheckExperts.
  CudaExperts(DeviceContext& ctx, std::vector<std::unique_ptr<LinearWeight>> experts);
  ~CudaExperts() override;
  Device device() const override { return experts_.front()->device(); }
  int64_t count() const override { return static_cast<int64_t>(experts_.size()); }
  int64_t rows() const override { return experts_.front()->rows(); }
  int64_t cols() const override { return experts_.front()->cols(); }
  int64_t bytes() const override;
  int64_t stream_bytes() const override { return experts_.front()->stream_bytes(); }
  const CudaLinear& at(size_t expert) const { return static_cast<const CudaLinear&>(*experts_[expert]); }
  const CudaLinear& first() const { return at(0); }
  // Device memory [experts], the layout view of every expert's matrix: ScWeightView, ExactWeightView or HalfWeightView,
  // as the experts' spec says.
  const void* views() const { return views_.data(); }
  // The experts as plans of experts see them; of kMixed they read is_alone, which holds if all experts have it.
  const LinearOperand& operand() const { return operand_; }
  // kSc, kMixed: the parts of an expert's weight, for LaunchSortedExperts. Requires, of kSc: rows share scales.
  const MixedWeight& parts(size_t expert) const;

 private:
  std::vector<std::unique_ptr<LinearWeight>> experts_;
  Buffer views_;
  LinearOperand operand_;
  std::vector<std::unique_ptr<MixedWeight>> parts_;  // kSc, if rows share scales: each refers to an expert's memory
};

}  // namespace stoch::cuda
