// SPDX-License-Identifier: Apache-2.0
// A mixture of experts without host reads (RouteCall, ExpertLinearCall and CombineExpertsCall in kernels/calls.h):
// kernels find a slot's matrix by the expert that the router wrote.
#pragma once

#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/weights/weights.h"

namespace stoch::cuda {

class CudaExperts final : public ExpertWeights {
 public:
  // `views`: device memory, the view of every expert's matrix, of the type that their spec means.
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
  // Whether slots are grouped by expert on the host (mixed/experts.h): matrices of experts that are no one shape, or
  // operands that are their own.
  bool is_grouped() const;

 private:
  std::vector<std::unique_ptr<LinearWeight>> experts_;
  Buffer views_;
};

// Requires: CheckExperts. Errors: InvalidInput naming what is not implemented: activations whose scopes hold several
//           rows.
std::unique_ptr<CudaExperts> MakeExperts(DeviceContext& ctx, std::vector<std::unique_ptr<LinearWeight>> experts);

}  // namespace stoch::cuda
