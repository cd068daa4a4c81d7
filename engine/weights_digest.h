// SPDX-License-Identifier: Apache-2.0
// What the weights of a model are, as one digest.
#pragma once

#include <functional>
#include <string>

#include "loader/checkpoint/weight_store.h"

namespace stoch {

// sha256 over the sorted lines "name dtype shape sha256-of-its-bytes" of all tensors: the same for one file or many, in
// any order. For random weights over what makes them: the shape's name and the seed. Reads every weight once, `threads`
// tensors at a time.
// Returns: 64 hex digits, or "" where `stop`, asked between pieces of some MB, says so.
// Errors:  InvalidInput where a file has been changed since it was opened.
std::string DigestWeights(const ModelFiles& files, int threads, const std::function<bool()>& stop);

}  // namespace stoch
