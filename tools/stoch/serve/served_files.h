// SPDX-License-Identifier: Apache-2.0
// What `stoch serve` knows of the files it serves: digests of them, and whether they are still the same.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine/serve/identity.h"
#include "loader/checkpoint/weight_store.h"
#include "loader/file.h"

namespace stoch::cli {

// Digests of config.json and of the tokenizer's files. tokenizer: its folder, "" = the model's.
serve::IdentityParts DigestSmallFiles(const ModelFiles& files, const std::string& tokenizer);

// Reads all weights once, in threads of low priority, and hands over their digest.
class DigestThread {
 public:
  // model: as for OpenModelFiles. stamps: of the files that are served; others get no digest. on_done hears the digest,
  // or why there is none.
  DigestThread(std::string model, std::vector<FileStamp> stamps,
               std::function<void(const std::string& digest, const std::string& error)> on_done);
  ~DigestThread() = default;  // stops it

 private:
  std::jthread thread_;
};

}  // namespace stoch::cli
