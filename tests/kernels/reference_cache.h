// SPDX-License-Identifier: Apache-2.0
// What the CPU computed, kept in a folder for other programs of the same run: bench/test_gpu compares four settings of a GPU
// with the same references, which take most of its time.
#pragma once

#include <functional>
#include <string>

#include "tests/kernels/attention_scenario.h"

namespace stoch::test {

// What `compute` gives, or gave a program before for the same description, where STOCH_TEST_REFERENCES names a folder.
// Requires: the description says all that the rows depend on; nobody else writes the folder; one build uses it.
AttentionRows Reference(const std::string& description, const std::function<AttentionRows()>& compute);

}  // namespace stoch::test
