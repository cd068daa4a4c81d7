// SPDX-License-Identifier: Apache-2.0
// A RankLink over MPI: the processes that mpirun or srun started.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "models/decoder/rank_link.h"

struct StochMpiModule;

namespace stoch {

// Waits by asking again and again with naps in between, as MPI itself would take a whole core, and may never return where a
// network was cut. MPI is called by one thread at a time: that of the caller, and while messages are on their way one of its
// own, as MPI sends the parts of a large one only while it is called, and the caller computes.
class MpiLink final : public RankLink {
 public:
  // How long ranks are waited for.
  struct Limits {
    std::chrono::milliseconds rows, opening, idle;  // Wait::kLimit, kOpening, kIdle
  };

  // Loads libstoch_mpi.so from `folders`, the first that has it, and begins MPI, which a process can do once.
  // Errors: InvalidInput where there is no such module, or it is of another version. DeviceError in the words of MPI.
  MpiLink(std::span<const std::filesystem::path> folders, const Limits& limits);
  // Ends MPI, unless a rank was lost.
  ~MpiLink() override;

  int rank() const override { return rank_; }
  int count() const override { return count_; }
  const std::string& host() const { return host_; }
  std::chrono::milliseconds limit(Wait wait) const override;
  void LimitRows(std::chrono::milliseconds limit) override { limits_.rows = limit; }
  void Send(int to, std::span<const std::byte> message) override;
  bool WaitFor(int from, size_t max_bytes, std::chrono::milliseconds most) override;
  std::vector<std::byte> Take(int from) override;
  // Ends all ranks. May return where one cannot be reached.
  void Abort(int exit_code);
  // Grows as a call of MPI begins and as it ends: odd within one. No call waits for a rank, but Open MPI that has lost one has
  // its launcher end the job, and waits for that within the call, however long. Threads: any.
  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

 private:
  // A call of MPI, by whoever has the mutex.
  class Call {
   public:
    explicit Call(std::atomic<uint64_t>& calls) : calls_(calls) { Count(); }
    ~Call() { Count(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    void Count() { calls_.store(calls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
    std::atomic<uint64_t>& calls_;
  };

  void Check(int code, int rank, const char* what);
  // Begins to take a message that is there. Returns: whether all of it has arrived.
  bool HasArrived(int from, size_t max_bytes);
  // Calls MPI until all that was sent is on its way, again and again.
  void SendOn(const std::stop_token& stop);

  const StochMpiModule* mpi_ = nullptr;
  Limits limits_;
  int rank_ = 0;
  int count_ = 1;
  std::mutex mutex_;  // of calls to MPI, and of the next two
  std::condition_variable_any has_unsent_;
  int32_t unsent_ = 0;      // messages that MPI still reads
  int32_t send_error_ = 0;  // of the thread: the next call says it
  std::atomic<uint64_t> calls_ = 0;
  std::atomic<bool> is_lost_ = false;
  int arriving_from_ = -1;                         // -1: no message has begun to arrive
  std::vector<std::byte> arriving_;                // MPI writes to it, also where nobody waits any more
  std::map<int, std::vector<std::byte>> arrived_;  // by rank: whole, and not taken yet
  // With anything in it.
  std::chrono::steady_clock::time_point last_message_ = std::chrono::steady_clock::now();
  std::string host_;
  std::jthread sender_;
};

}  // namespace stoch
