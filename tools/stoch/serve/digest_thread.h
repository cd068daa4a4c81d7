// SPDX-License-Identifier: Apache-2.0
// The digest of a served model's weights, made while it is served.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "loader/file.h"

namespace stoch::cli {

// Reads all weights once, in threads of low priority, and hands over their digest.
class DigestThread {
 public:
  // model: as for OpenModelFiles. stamps: of the files that are served; others get no digest. on_done hears the digest,
  // or why there is none; where it finds no memory for that, once more.
  DigestThread(std::string model, std::vector<FileStamp> stamps,
               std::function<void(const std::string& digest, const std::string& error)> on_done);
  ~DigestThread() = default;  // stops it

 private:
  std::jthread thread_;
};

}  // namespace stoch::cli
