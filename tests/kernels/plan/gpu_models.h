// SPDX-License-Identifier: Apache-2.0
// GPUs that plans are tested for, without having them.
#pragma once

#include <string>
#include <vector>

#include "kernels/plan/gpu_traits.h"

namespace stoch::test {

struct GpuModel {
  std::string name;
  GpuTraits traits;
};

// SMs of one product of each compute capability, and the shared memory that a block may opt in to: 163 KB (8.0), 99 KB
// (8.6, 8.9, 12.0), 227 KB (9.0, 10.0); CUDA Programming Guide, "Technical Specifications per Compute Capability".
inline GpuTraits TraitsOf(int capability, int sms, int64_t shared_kb, int code) {
  GpuTraits traits;
  traits.compute_capability = capability;
  traits.code_architecture = code;
  traits.sm_count = sms;
  traits.max_shared_bytes = shared_kb << 10;
  traits.has_hopper_code = code >= 90;
  traits.has_clusters = code >= 90;
  traits.has_binary_mma = capability < 100;
  traits.has_wgmma = code == 90;  // native code for 9.0 is that of 9.0a
  return traits;
}

inline GpuTraits H200() { return TraitsOf(90, 132, 227, 90); }

inline std::vector<GpuModel> GpuModels() {
  std::vector<GpuModel> models = {{"A100", TraitsOf(80, 108, 163, 80)},
                                  {"RTX 3090", TraitsOf(86, 82, 99, 80)},
                                  {"RTX 3090 native", TraitsOf(86, 82, 99, 86)},
                                  {"RTX 4090", TraitsOf(89, 128, 99, 80)},
                                  {"L4", TraitsOf(89, 58, 99, 89)},
                                  {"H200", H200()},
                                  {"H200 from PTX", TraitsOf(90, 132, 227, 80)},
                                  {"B200", TraitsOf(100, 148, 227, 100)},
                                  {"B200 from PTX", TraitsOf(100, 148, 227, 80)},
                                  {"RTX 5090", TraitsOf(120, 170, 99, 120)},
                                  {"RTX 5090 from PTX", TraitsOf(120, 170, 99, 80)}};
  GpuModel limited{"H200 with 99 KB", H200()};
  limited.traits.max_shared_bytes = 99 << 10;
  models.push_back(limited);
  GpuModel plain{"H200 without wgmma", H200()};
  plain.traits.has_wgmma = false;
  models.push_back(plain);
  GpuModel bytes{"H200 without binary MMA", H200()};
  bytes.traits.has_wgmma = bytes.traits.has_binary_mma = false;
  models.push_back(bytes);
  return models;
}

}  // namespace stoch::test
