// SPDX-License-Identifier: Apache-2.0
// What each file of the extension module adds to it.
#pragma once

#include <nanobind/nanobind.h>

namespace stoch::python {

void BindErrors(nanobind::module_& m);
void BindConfig(nanobind::module_& m);
void BindProducts(nanobind::module_& m);
void BindPlan(nanobind::module_& m);
void BindModel(nanobind::module_& m);
void BindSequences(nanobind::module_& m);
void BindChecks(nanobind::module_& m);
void BindCommands(nanobind::module_& m);

}  // namespace stoch::python
