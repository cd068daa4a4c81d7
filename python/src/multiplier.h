// SPDX-License-Identifier: Apache-2.0
// Multiplier tables of this process: read once, found again by the digits of their sha256 that descriptions have.
// Threads: safe.
#pragma once

#include <string>

#include "kernels/sc/sc_config.h"

namespace stoch::python {

// A table from a file, or from the bytes of an .npy file. code, order: as table_code and table_order, "" = as the file
// says. Errors: as ParseMultiplierFile.
MultiplierTablePtr OpenMultiplier(const std::string& path, const std::string& code, const std::string& order);
MultiplierTablePtr ParseMultiplier(const std::string& npy, const std::string& code, const std::string& order);

// Keeps the counts of an .npy file for this process; returns the digits of their sha256. Errors: as ParseCountFile.
std::string KeepCounts(const std::string& npy);

// Gives a configuration with gate=table or gate=counts its table: one that this process knows by these digits, or the
// file. Errors: as ParseMultiplierFile, ParseCountFile.
void ResolveTables(ScConfig* config);

}  // namespace stoch::python
