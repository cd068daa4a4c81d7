// SPDX-License-Identifier: Apache-2.0
// Opens backends by name. The only place that knows which backends exist.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"

namespace stoch {

struct BackendOptions {
  int threads = 0;          // CPU threads; 0 = every core this process may use
  std::string cpu_variant;  // "", "scalar", "avx2", "avx512bw", "avx512vbmi": "" = the fastest this machine has
};

// Opens "cpu", "cpu:4" (four logical devices, of 1024 at most), "cuda:0", "cuda:0,1", or "auto" (every usable GPU, else cpu).
// Errors: InvalidInput for an unknown name or variant, a device that is not there, or a backend that was not built;
//         the sentence says which devices there are. Never falls back silently; `notice` (may be null) receives one
//         line when "auto" could not use a GPU that seems to be there.
std::unique_ptr<Backend> OpenBackend(std::string_view device, const BackendOptions& options, std::string* notice);

// Backends compiled in: {"cpu"} or {"cpu", "cuda"}.
std::vector<std::string_view> BuiltBackends();

// The CPU variants that this machine can run, scalar first.
std::vector<std::string_view> UsableCpuVariants();

}  // namespace stoch
