// SPDX-License-Identifier: Apache-2.0
// stoch._stoch: the engine as Python sees it. The package around it (python/stoch) has the public names.
#include <nanobind/stl/string.h>

#include "app/version.h"
#include "python/src/base/bind.h"

NB_MODULE(_stoch, m) {
  m.doc() = "The engine of stoch; the package stoch has the public names.";
  // Objects that live as long as the process are no mistake.
  nanobind::set_leak_warnings(false);
  stoch::python::BindErrors(m);
  stoch::python::BindConfig(m);
  stoch::python::BindProducts(m);
  stoch::python::BindPlan(m);
  stoch::python::BindModel(m);
  stoch::python::BindSequences(m);
  stoch::python::BindChecks(m);
  stoch::python::BindCommands(m);
  m.def("version_text", &stoch::cli::VersionText, "What `stoch --version` prints.");
}
