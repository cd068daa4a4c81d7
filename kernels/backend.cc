// SPDX-License-Identifier: Apache-2.0
// What a backend answers to the ops that it does not have: only some model families need them.
#include "kernels/backend.h"

#include <string>

#include "kernels/call_check.h"

namespace stoch {

#define OP(Op) \
  void Backend::Op(const Op##Call& call) { Reject(call.site, "the " + std::string(name()) + " backend has no " #Op); }
STOCH_FOR_EACH_OP(OP)
#undef OP

void Backend::RingAttention(const RingAttentionCall& call) {
  Reject(call.site, "the " + std::string(name()) + " backend has no RingAttention");
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): backends that have experts keep them
std::unique_ptr<ExpertWeights> Backend::MakeExperts(std::vector<std::unique_ptr<LinearWeight>> /*experts*/) {
  Reject({-1, "experts"}, "the " + std::string(name()) + " backend has no mixture of experts");
}

void Backend::ScMixedMatmul(const TensorView& /*a*/, const TensorView& /*b*/, const ScOperatorPtr& /*op*/,
                            const ScExtras& /*extras*/, std::span<const int> /*lengths*/, const TensorView& /*out*/) {
  Reject({-1, "sc_mixed_matmul"}, "the " + std::string(name()) + " backend has no ScMixedMatmul");
}

}  // namespace stoch
