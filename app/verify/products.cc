// SPDX-License-Identifier: Apache-2.0
// SC products on the chosen device against the scalar CPU reference.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "app/verify/verify.h"
#include "kernels/math/random.h"
#include "kernels/registry.h"
#include "kernels/sc/sc_config.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::cli {
namespace {

// One operand pair and the settings it is multiplied under.
struct Product {
  std::string name;
  std::vector<std::pair<const char*, const char*>> settings;
  int64_t batch = 0;  // 0 = plain matrices
  int64_t n, m, d;
};

const std::vector<Product>& Products() {
  static const std::vector<Product> products = {
      {"published", {{"chunk_d", "128"}, {"scramble_masks", "256"}}, 0, 3, 37, 300},
      {"halved", {{"chunk_d", "128"}, {"halve", "1"}}, 0, 3, 70, 300},
      {"halved_96", {{"chunk_d", "128"}, {"halve", "1"}, {"stoc_len", "96"}}, 0, 5, 33, 257},
      {"halved_64", {{"chunk_d", "128"}, {"halve", "1"}, {"stoc_len", "64"}}, 0, 5, 33, 257},
      {"halved_48", {{"chunk_d", "72"}, {"halve", "1"}, {"stoc_len", "48"}}, 0, 5, 33, 257},
      {"halved_32", {{"chunk_d", "128"}, {"halve", "1"}, {"stoc_len", "32"}}, 0, 33, 65, 257},
      {"unscrambled", {{"halve", "1"}, {"scramble", "off"}}, 0, 4, 32, 130},
      {"unipolar", {{"mode", "unipolar"}, {"granularity", "per_row"}}, 0, 4, 21, 140},
      {"groups", {{"group_a", "4"}, {"group_b", "3"}}, 0, 9, 22, 140},
      {"per_tensor", {{"granularity", "per_tensor"}, {"halve", "1"}}, 0, 9, 22, 140},
      {"per_head", {{"granularity", "per_head"}}, 3, 7, 18, 64},
      {"prec4", {{"sc_prec", "4"}, {"halve", "1"}}, 0, 4, 32, 130},
      {"lfsr", {{"source", "lfsr"}, {"halve", "1"}}, 0, 4, 32, 130},
      {"xnor", {{"gate", "xnor"}}, 0, 4, 32, 130},
  };
  return products;
}

std::vector<float> RandomValues(uint64_t stream, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = RandomWeight(1, stream, i, 1.0F);
  return values;
}

TensorView View(Buffer& buffer, int64_t batch, int64_t rows, int64_t cols) {
  return batch > 0 ? MakeView(buffer.data(), DType::kF32, buffer.device(), batch, rows, cols)
                   : MakeView(buffer.data(), DType::kF32, buffer.device(), rows, cols);
}

std::vector<float> Multiply(Backend& backend, const Product& product, const ScOperator& op) {
  const Device device = backend.devices()[0];
  const int64_t slices = std::max<int64_t>(product.batch, 1);
  const std::vector<float> a = RandomValues(1, slices * product.n * product.d);
  const std::vector<float> b = RandomValues(2, slices * product.m * product.d);
  std::vector<float> out(static_cast<size_t>(slices * product.n * product.m));
  Buffer a_buffer = backend.Allocate(device, static_cast<int64_t>(a.size() * sizeof(float)));
  Buffer b_buffer = backend.Allocate(device, static_cast<int64_t>(b.size() * sizeof(float)));
  Buffer out_buffer = backend.Allocate(device, static_cast<int64_t>(out.size() * sizeof(float)));
  const TensorView a_view = View(a_buffer, product.batch, product.n, product.d);
  const TensorView b_view = View(b_buffer, product.batch, product.m, product.d);
  const TensorView out_view = View(out_buffer, product.batch, product.n, product.m);
  backend.CopyFromHost(a_view, a.data());
  backend.CopyFromHost(b_view, b.data());
  backend.ScMatmul(a_view, b_view, op, out_view);
  backend.CopyToHost(out.data(), out_view);
  return out;
}

CheckResult Compare(const VerifyContext& context, const Product& product) {
  ScConfig config;
  for (const auto& [name, value] : product.settings) SetScParameter(config, name, value);
  const ScOperatorPtr op = MakeScOperator(config);
  const std::unique_ptr<Backend> reference = OpenBackend("cpu", {.threads = 1, .cpu_variant = "scalar"}, nullptr);
  const std::vector<float> expected = Multiply(*reference, product, *op);
  const std::vector<float> actual = Multiply(*context.backend, product, *op);
  size_t different = 0;
  size_t nonzero = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::bit_cast<uint32_t>(expected[i]) != std::bit_cast<uint32_t>(actual[i])) ++different;
    if (expected[i] != 0) ++nonzero;
  }
  // A product that is all zero compares nothing.
  const bool passed = different == 0 && nonzero > expected.size() / 2;
  return {passed, fmt::format("{} of {} outputs of [{}, {}] x [{}, {}] differ in bits, {} against scalar CPU ({})",
                              different, expected.size(), product.n, product.d, product.m, product.d,
                              DeviceName(context.backend->devices()[0]), Describe(op->config))};
}

}  // namespace

std::vector<Check> ProductChecks(const VerifyContext& context) {
  std::vector<Check> checks;
  for (const Product& product : Products()) {
    checks.push_back({"product." + product.name, "SC matmul on the device and on the scalar CPU, bit for bit",
                      [context, &product] { return Compare(context, product); }});
  }
  return checks;
}

}  // namespace stoch::cli
