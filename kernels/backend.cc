// SPDX-License-Identifier: Apache-2.0
// What a backend answers to the ops that it does not have: only some model families need them.
#include "kernels/backend.h"

#include <string>

#include "kernels/base/error.h"

namespace stoch {
namespace {

[[noreturn]] void Refuse(const Backend& backend, std::string_view op, std::string_view needed) {
  throw InvalidInput(std::string(op) + ": needs " + std::string(needed) + ", which the " + std::string(backend.name()) +
                     " backend does not have");
}

}  // namespace

std::unique_ptr<ExpertWeights> Backend::MakeExperts(std::vector<std::unique_ptr<LinearWeight>>) {
  Refuse(*this, "experts", "a mixture of experts");
}
void Backend::AddBias(const AddBiasCall& call) { Refuse(*this, call.site.op, "biases"); }
void Backend::NormHeads(const NormHeadsCall& call) { Refuse(*this, call.site.op, "norms of heads"); }
void Backend::Route(const RouteCall& call) { Refuse(*this, call.site.op, "a mixture of experts"); }
void Backend::ExpertLinear(const ExpertLinearCall& call) { Refuse(*this, call.site.op, "a mixture of experts"); }
void Backend::CombineExperts(const CombineExpertsCall& call) { Refuse(*this, call.site.op, "a mixture of experts"); }

}  // namespace stoch
