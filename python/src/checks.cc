// SPDX-License-Identifier: Apache-2.0
// The checks of `stoch verify`, in process.

#include <nanobind/stl/function.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include "app/demo_model.h"
#include "app/verify/verify.h"
#include "kernels/base/error.h"
#include "python/src/base/bind.h"
#include "python/src/base/devices.h"
#include "python/src/model.h"

namespace nb = nanobind;

namespace stoch::python {
namespace {

using Row = std::tuple<std::string, bool, std::string>;  // name, passed, detail

void Append(std::vector<cli::Check> more, std::vector<cli::Check>* checks) {
  std::move(more.begin(), more.end(), std::back_inserter(*checks));
}

std::vector<cli::Check> Collect(const cli::VerifyContext& context, const std::string& goldens,
                                const std::string& hashes) {
  std::vector<cli::Check> checks;
  if (!goldens.empty()) Append(GoldenChecks(context, goldens), &checks);
  if (!hashes.empty()) Append(HashChecks(context, hashes), &checks);
  if (!checks.empty()) return checks;
  Append(ProductChecks(context), &checks);
  Append(ModelChecks(context), &checks);
  Append(DeviceChecks(context), &checks);
  Append(RingChecks(context), &checks);
  Append(ViewChecks(context), &checks);
  return checks;
}

Row RunOne(const cli::Check& check) {
  try {
    const cli::CheckResult result = check.run();
    return {check.name, result.passed, result.detail};
  } catch (const InvalidInput& error) {
    return {check.name, false, error.what()};
  } catch (const OutOfMemory& error) {
    return {check.name, false, error.what()};
  } catch (const DeviceError& error) {
    return {check.name, false, error.what()};
  }
}

std::vector<Row> Verify(const std::string& model, const std::string& device, const std::vector<std::string>& only,
                        const std::string& goldens, const std::string& hashes, const Progress& progress) {
  RequireNotForked();
  cli::VerifyContext context;
  cli::DeviceOptions devices;
  devices.device = device;
  context.model.model = cli::ModelPath(model);
  context.backend = Open(devices);
  WatchForFork();
  std::vector<cli::Check> checks = Collect(context, goldens, hashes);
  if (!only.empty()) {
    std::vector<cli::Check> chosen;
    for (const std::string& name : only) {
      const auto found =
          std::find_if(checks.begin(), checks.end(), [&](const cli::Check& check) { return check.name == name; });
      if (found == checks.end()) throw InvalidInput("only: there is no check '" + name + "'");
      chosen.push_back(*found);
    }
    checks = std::move(chosen);
  }
  std::vector<Row> rows;
  for (const cli::Check& check : checks) {
    CheckSignals();
    rows.push_back(RunOne(check));
    if (progress) {
      const nb::gil_scoped_acquire gil;
      progress(static_cast<int64_t>(rows.size()), static_cast<int64_t>(checks.size()), check.name);
    }
  }
  return rows;
}

}  // namespace

void BindChecks(nb::module_& m) {
  m.def(
      "verify",
      [](const std::string& model, const std::string& device, const std::vector<std::string>& only,
         const std::string& goldens, const std::string& hashes,
         const Progress& progress) { return Verify(model, device, only, goldens, hashes, progress); },
      nb::arg("model"), nb::arg("device"), nb::arg("only"), nb::arg("goldens"), nb::arg("hashes"),
      nb::arg("progress").none(), nb::call_guard<nb::gil_scoped_release>(), "(name, passed, detail) of every check.");
}

}  // namespace stoch::python
