// SPDX-License-Identifier: Apache-2.0
// The checks of `stoch verify`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/common_options.h"
#include "kernels/backend.h"

namespace stoch::cli {

struct CheckResult {
  bool passed = true;
  std::string detail;  // what was compared, and how far apart it was
};

struct Check {
  std::string name;
  std::string description;
  // Errors: InvalidInput and DeviceError count as a failure of the check.
  std::function<CheckResult()> run;
};

// What the checks look at.
struct VerifyContext {
  std::shared_ptr<Backend> backend;  // of --device; not opened for --list
  ModelOptions model;
  DeviceOptions device;  // how the model is divided, where it runs on `backend`
};

// The folder of --model, or of the bundled one.
std::string ModelOf(const VerifyContext& context);

// The chosen device against the scalar CPU reference: SC products of every kind of configuration, bit for bit.
std::vector<Check> ProductChecks(const VerifyContext& context);
// The logits of a model: bits across devices, CPU kernels, threads, cuts of the prompt, and neighbours in a pass.
std::vector<Check> ModelChecks(const VerifyContext& context);

// Attention at 300 to 20000 positions, against its definition and in every way that must not change it.
std::vector<Check> DepthChecks(const VerifyContext& context);
// Several devices: guards, copies, gathers, models divided over them. Where --device is one CPU, on logical devices.
std::vector<Check> DeviceChecks(const VerifyContext& context);
// Attention over positions that are dealt over devices: hops, and bits.
std::vector<Check> RingChecks(const VerifyContext& context);
// Every op on strided, sliced, reversed, broadcast and far views: the bits of a dense one, or a typed refusal.
std::vector<Check> ViewChecks(const VerifyContext& context);

// One check per case of a golden file: y of sc_matmul within 1e-6 of max |y|. Metadata key `cases`: a JSON list of
// {"case": NAME, PARAMETER: VALUE, ...} in the names of ScConfig; tensors NAME.a, NAME.b, NAME.y. Tensors sobol.precP.a
// and .b, where present, are compared with the number source.
// Errors: InvalidInput for a file of another form.
std::vector<Check> GoldenChecks(const VerifyContext& context, const std::string& path);

// One check per entry of a hash file: {"prompt_ids": [...], "new_tokens": N, "sha256": {CONFIG: HEX, ...}}, where
// CONFIG is fp32 or SC settings and HEX is LogitsSha256 of the model on the device.
// Errors: InvalidInput for a file of another form.
std::vector<Check> HashChecks(const VerifyContext& context, const std::string& path);
// Writes such a file, of every configuration that ModelChecks runs.
// Errors: InvalidInput if it cannot be written.
void RecordHashes(const VerifyContext& context, const std::string& path);

}  // namespace stoch::cli
