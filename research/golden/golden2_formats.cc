// SPDX-License-Identifier: Apache-2.0
// Recorded cases of number formats.
#include <cmath>
#include <vector>

#include "kernels/math/number_formats.h"
#include "research/golden/backend_product.h"
#include "research/golden/golden2_case.h"
#include "research/golden/golden_check.h"

namespace stoch::golden2 {
namespace {

std::vector<int32_t> ExponentsOf(const std::vector<float>& scales) {
  std::vector<int32_t> exponents;
  for (const float scale : scales) exponents.push_back(std::ilogb(scale) + 6);
  return exponents;
}

}  // namespace

void Case::Fp8() {
  const HostMatrix a = Matrix("a");
  const HostMatrix b = Matrix("b");
  CheckGoldenOperands(a, b, {});
  ScConfig config;
  config.arith = ScArith::kFp8E4m3;
  config.chunk_d = fields_.at("chunk").get<int64_t>();
  const ReferenceProduct product = MultiplyReference(a, b, config, {});
  Same("codes_a", product.codes_a, Ints("codes_a"));
  Same("codes_b", product.codes_b, Ints("codes_b"));
  const Json& first = fields_.at("acc_first");
  if (first.size() > product.wide_acc.size()) throw InvalidInput("acc_first: more sums than the product has");
  for (size_t i = 0; i < first.size(); ++i) {
    ++compared_;
    if (std::to_string(product.wide_acc[i]) != first[i].get<std::string>()) Fail("acc_first differs");
  }
  SameBits("y of the reference", product.y.values, Matrix("y").values);
  SameBits("y", ProductOnBackend(backend_, a, b, config, nullptr, {}), Matrix("y").values);
}

void Case::Mx() {
  const HostMatrix a = Matrix("a");
  const HostMatrix b = Matrix("b");
  CheckGoldenOperands(a, b, {});
  ScConfig config;
  config.arith = ScArith::kMxInt8;
  const ReferenceProduct product = MultiplyReference(a, b, config, {});
  Same("exponent_a", ExponentsOf(product.scale_a), Ints("exponent_a"));
  Same("exponent_b", ExponentsOf(product.scale_b), Ints("exponent_b"));
  Same("acc", product.acc, Ints("acc"));
  SameBits("y of the reference", product.y.values, Matrix("y").values);
  SameBits("y", ProductOnBackend(backend_, a, b, config, nullptr, {}), Matrix("y").values);
}

}  // namespace stoch::golden2
