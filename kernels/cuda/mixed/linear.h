// SPDX-License-Identifier: Apache-2.0
// Linears with mixed stream lengths, protected channels, smoothing, integers and multiplier tables.
//
// Bits: docs/research.md, as on the CPU, whichever way a call runs.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/backend.h"
#include "kernels/cuda/mixed/product.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Rows from which a prompt under the row rule is sorted by length: rows of one length then run the kernels of the
// uniform operator. The host waits for the lengths, so that it is not done while a graph is recorded.
inline constexpr int64_t kSortedRows = 32;

// out = or += f @ w^T by the generic kernel, or by rows of equal length. `extras`: the weight's, or null.
void LaunchMixedLinear(DeviceContext& ctx, const OpSite& site, const MixedRows& input, const MixedWeight& weight,
                       const ScExtras* extras, const SiteReporter& reporter, const LinearOutput& out);

// Backend::ScMixedMatmul.
void LaunchScMixedMatmul(DeviceContext& ctx, const TensorView& a, const TensorView& b, const ScOperatorPtr& op,
                         const ScExtras& extras, std::span<const int> lengths, const TensorView& out);

// The scratch of one weight [out_features, in_features], at most, but for what the uniform kernels of rows of one length
// take.
int64_t MixedLinearScratchBytes(const LinearSpec& spec, int64_t out_features, int64_t in_features, int64_t tokens);

// Which kernels so many tokens run, for people.
std::string MixedKernel(const GpuTraits& gpu, const LinearSpec& spec, int64_t in_features, int64_t tokens,
                        const std::string& uniform);

}  // namespace stoch::cuda
