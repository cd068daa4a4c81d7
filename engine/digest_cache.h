// SPDX-License-Identifier: Apache-2.0
// The digest of weights next to the weights, so that tasks that share them read them once.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "loader/checkpoint/weight_store.h"

namespace stoch {

// Where the digest of a model is kept: MODEL.sha256 next to the folder or GGUF file, or in the folder that STOCH_CACHE
// names, under a name made of the model's path. "" for random weights, whose digest takes no time.
std::filesystem::path DigestCachePath(const ModelFiles& files);

// Writes what DigestWeights gave, with device, inode, size and time of change of every file that has weights.
// Errors: InvalidInput naming the file where it cannot be written.
void KeepDigest(const ModelFiles& files, const std::string& digest);

// The kept digest, if all files are as they were; "" if none is kept, it is damaged, or a file is another one.
std::string KeptDigest(const ModelFiles& files);

// KeptDigest, or DigestWeights where there is none. verify: reads the weights in any case.
// Returns: as DigestWeights. Errors: as DigestWeights; InvalidInput where `verify` finds that the kept one is wrong.
std::string FindDigest(const ModelFiles& files, int threads, bool verify, const std::function<bool()>& stop);

}  // namespace stoch
