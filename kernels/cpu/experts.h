// SPDX-License-Identifier: Apache-2.0
// A mixture of experts (RouteCall, ExpertLinearCall and CombineExpertsCall in kernels/calls.h): slots are grouped by
// expert, and each expert that a row takes is one linear over its slots.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/context.h"

namespace stoch::cpu {

// Requires: CheckExperts.
std::unique_ptr<ExpertWeights> MakeExperts(std::vector<std::unique_ptr<LinearWeight>> experts);

}  // namespace stoch::cpu
