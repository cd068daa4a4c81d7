// SPDX-License-Identifier: Apache-2.0
// A mixture of experts (RouteCall, ExpertLinearCall and CombineExpertsCall in kernels/backend.h): slots are grouped by
// expert, and each expert that a row takes is one linear over its slots.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/context.h"

namespace stoch::cpu {

// Requires: CheckExperts.
std::unique_ptr<ExpertWeights> MakeExperts(std::vector<std::unique_ptr<LinearWeight>> experts);

// Errors: InvalidInput for operands that break the call's requirements, before any work. NaN or infinity in f(x) or a
//         result of an expert is reported to context.finite.
void Route(Context& context, const RouteCall& call);
void ExpertLinear(Context& context, const ExpertLinearCall& call);
void CombineExperts(Context& context, const CombineExpertsCall& call);

}  // namespace stoch::cpu
