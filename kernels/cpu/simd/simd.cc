// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/simd/simd.h"

#if defined(STOCH_CPU_X86)
#include <cpuid.h>
#endif

#include <string>

#include "kernels/base/error.h"

namespace stoch::cpu {
namespace {

struct Variant {
  std::string_view name;
  const Simd& (*simd)();
  bool (*supported)();
};

#if defined(STOCH_CPU_X86)
// Clang 14's __builtin_cpu_supports does not know this one.
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
bool HasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c(); }
bool HasAvx512Bw() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
// Every processor with VBMI has VNNI but the first, Cannon Lake, which takes the variant before this.
bool HasAvx512Vbmi() {
  return HasAvx512Bw() && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
}
#endif

// Slowest first.
constexpr Variant kVariants[] = {
    {"scalar", ScalarSimd, [] { return true; }},
#if defined(STOCH_CPU_X86)
    {"avx2", Avx2Simd, HasAvx2},
    {"avx512bw", Avx512BwSimd, HasAvx512Bw},
    {"avx512vbmi", Avx512VbmiSimd, HasAvx512Vbmi},
#endif
#if defined(STOCH_CPU_NEON)
    {"neon", NeonSimd, [] { return true; }},
#endif
};

std::string Listed(const std::vector<std::string_view>& names) {
  std::string text;
  for (const std::string_view name : names) {
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

}  // namespace

std::vector<std::string_view> SupportedSimd() {
  std::vector<std::string_view> names;
  for (const Variant& variant : kVariants) {
    if (variant.supported()) names.push_back(variant.name);
  }
  return names;
}

const Simd& SelectSimd(std::string_view name) {
  const Variant* best = nullptr;
  for (const Variant& variant : kVariants) {
    if (name.empty() ? variant.supported() : variant.name == name) best = &variant;
  }
  if (best == nullptr) {
    std::vector<std::string_view> known;
    for (const Variant& variant : kVariants) known.push_back(variant.name);
    throw InvalidInput("CPU variant '" + std::string(name) + "' is unknown: this build has " + Listed(known));
  }
  if (!best->supported()) {
    throw InvalidInput("CPU variant '" + std::string(name) + "' does not run on this machine, which has " +
                       Listed(SupportedSimd()));
  }
  return best->simd();
}

}  // namespace stoch::cpu
