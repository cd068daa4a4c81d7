// SPDX-License-Identifier: Apache-2.0
#include "research/calibrate/nonlinear_table.h"

#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/error.h"

namespace stoch {
namespace {

NonlinearFunction FunctionOf(const std::string& name) {
  if (name == "silu") return NonlinearFunction::kSilu;
  if (name == "exp") return NonlinearFunction::kExp;
  if (name == "rsqrt") return NonlinearFunction::kRsqrt;
  throw InvalidInput("--function '" + name + "': allowed is silu, exp, rsqrt");
}

float Exact(NonlinearFunction function, float x) {
  switch (function) {
    case NonlinearFunction::kSilu: return Silu(x);
    case NonlinearFunction::kExp: return Exp(x);
    case NonlinearFunction::kRsqrt: return 1.0f / Sqrt(x);
  }
  STOCH_CHECK(false);
}

void CheckBits(const char* name, const std::optional<int>& bits) {
  constexpr int kLeast = -8, kMost = 20;
  if (!bits || (*bits >= kLeast && *bits <= kMost)) return;
  throw InvalidInput(std::string(name) + " " + std::to_string(*bits) + ": allowed is -8..20");
}

void Check(const NonlinearPieces& pieces, NonlinearFunction function) {
  constexpr int kMostSegments = 4095;
  if (pieces.segments < 1 || pieces.segments > kMostSegments) {
    throw InvalidInput("--segments " + std::to_string(pieces.segments) + ": allowed is 1..4095");
  }
  const std::string range = "--range " + std::to_string(pieces.lo) + "," + std::to_string(pieces.hi);
  if (!std::isfinite(pieces.lo) || !std::isfinite(pieces.hi) || pieces.lo >= pieces.hi) {
    throw InvalidInput(range + ": allowed are two numbers that rise");
  }
  if (function == NonlinearFunction::kRsqrt && pieces.lo <= 0) {
    throw InvalidInput(range + ": allowed for rsqrt are numbers above 0, which it is looked up for in 1,4");
  }
  CheckBits("--in-bits", pieces.in_bits);
  CheckBits("--out-bits", pieces.out_bits);
}

}  // namespace

NonlinearTable MakeNonlinearTable(const NonlinearPieces& pieces) {
  NonlinearTable table;
  table.function = FunctionOf(pieces.function);
  Check(pieces, table.function);
  table.in_bits = pieces.in_bits;
  table.out_bits = pieces.out_bits;
  for (int i = 0; i <= pieces.segments; ++i) {
    const auto cut = static_cast<float>(pieces.lo + (pieces.hi - pieces.lo) * i / pieces.segments);
    const float value = Exact(table.function, cut);
    if (!std::isfinite(value) || (i > 0 && !(cut > table.cuts.back()))) {
      throw InvalidInput("--range, --segments: " + pieces.function + " at " + std::to_string(cut) +
                         " is no float32 of its own");
    }
    if (i > 0) table.slopes.push_back((value - table.values.back()) / (cut - table.cuts.back()));
    table.cuts.push_back(cut);
    table.values.push_back(value);
  }
  table.slopes.push_back(table.function == NonlinearFunction::kSilu ? 1.0f : 0.0f);
  return table;
}

}  // namespace stoch
