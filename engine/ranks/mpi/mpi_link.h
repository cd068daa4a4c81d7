// SPDX-License-Identifier: Apache-2.0
// A RankLink over MPI: the processes that mpirun or srun started.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/decoder/rank_link.h"

struct StochMpiModule;

namespace stoch {

// Waits by asking again and again with naps in between, as MPI itself would take a whole core. Threads: one at a time.
class MpiLink final : public RankLink {
 public:
  // `limit`, `opening`: how long ranks are waited for. Loads libstoch_mpi.so from `folders`, the first that has it, and begins MPI,
  // which a process can do once.
  // Errors: InvalidInput where there is no such module, or it is of another version. DeviceError in the words of MPI.
  MpiLink(std::span<const std::filesystem::path> folders, std::chrono::milliseconds limit,
          std::chrono::milliseconds opening);
  // Ends MPI, unless a rank was lost.
  ~MpiLink() override;

  int rank() const override { return rank_; }
  int count() const override { return count_; }
  const std::string& host() const { return host_; }
  std::chrono::milliseconds limit(Wait wait) const override { return wait == Wait::kOpening ? opening_ : limit_; }
  void Send(int to, std::span<const std::byte> message) override;
  bool WaitFor(int from, std::chrono::milliseconds most) override;
  std::vector<std::byte> Take(int from, size_t max_bytes) override;
  // Ends all ranks. May return where one cannot be reached.
  void Abort(int exit_code);

 private:
  void Check(int code, int rank, const char* what);

  const StochMpiModule* mpi_ = nullptr;
  std::chrono::milliseconds limit_, opening_;
  int rank_ = 0;
  int count_ = 1;
  bool is_lost_ = false;
  std::chrono::steady_clock::time_point last_message_ = std::chrono::steady_clock::now();
  std::string host_;
};

}  // namespace stoch
