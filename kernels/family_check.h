// SPDX-License-Identifier: Apache-2.0
// What every backend refuses, in the same words, of the ops that only some model families use.
//
// Errors: InvalidInput naming layer, operator and operand, what was expected and what was given.
#pragma once

#include "kernels/backend.h"

namespace stoch {

void CheckAddBias(const AddBiasCall& call);
void CheckNormHeads(const NormHeadsCall& call);
void CheckGeluMul(const GeluMulCall& call);
void CheckSoftCap(const SoftCapCall& call);
void CheckRoute(const RouteCall& call);
void CheckExpertLinear(const ExpertLinearCall& call);
void CheckCombineExperts(const CombineExpertsCall& call);

// All of one device, shape and spec, at least one. `experts` are not null.
void CheckExperts(std::span<const std::unique_ptr<LinearWeight>> experts);

}  // namespace stoch
