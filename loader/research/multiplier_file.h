// SPDX-License-Identifier: Apache-2.0
// Multiplier tables in the formats that people exchange: AdaPT (.h), TFApprox (.bin), ApproxTorch (.txt) and .npy.
#pragma once

#include <string>

#include "kernels/sc/multiplier_table.h"

namespace stoch {

// The table of `bytes`, a file of that name. Signed tables are read in `order`, kFile: as the form says; `code` kFile:
// signed but for .bin and uint16 .npy. sha256 is left empty.
// Errors: InvalidInput, one sentence naming the file: a form that is not known, another number of entries, entries
//         beyond 2^17, or, where code and order are not both given, a reading with at most a quarter of the error.
MultiplierTable ParseMultiplierFile(const std::string& bytes, const std::string& name, ScTableCode code,
                                    ScTableOrder order);

}  // namespace stoch
