// SPDX-License-Identifier: Apache-2.0
// One page of memory that a worker writes and its gateway reads, also after the worker's death: what it was doing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stoch::ipc {

// What the page says, as it was at one moment of a running worker, or for good of a dead one.
struct CrashReport {
  uint64_t pass = 0;
  bool in_pass = false;
  int layer = -1;
  std::string op;
  bool is_exact = false;  // the operator is the one that ran, not one that was issued after it
  // Of devices that run behind their host: the operator that they began last, empty where that is not known.
  int running_layer = -1;
  std::string running_op;
  std::vector<uint64_t> jobs;  // of the passes in flight
  // What ended it, if that was a signal that it could catch, and the process that sent it: 0 = its own fault.
  int signal = 0;
  int64_t sender = 0;
  // Both change as long as the worker is well: `alive` always, `progress` with every operator while it is in a pass.
  uint64_t alive = 0;
  uint64_t progress = 0;
};

// Shared memory of 4 KiB. Threads: one writes passes and operators, another one what runs, a third one Beat; any reads.
class CrashPage {
 public:
  // A new one; its descriptor is inherited by no child unless it is handed to it.
  // Errors: DeviceError where the system gives none.
  CrashPage();
  // That of another process; owns the descriptor.
  explicit CrashPage(int fd);
  ~CrashPage();
  CrashPage(const CrashPage&) = delete;
  CrashPage& operator=(const CrashPage&) = delete;

  int fd() const { return fd_; }
  // A pass begins, and these jobs are in flight; those beyond the first kMaxJobs are left out.
  void SetJobs(std::span<const uint64_t> jobs);
  void Mark(int layer, std::string_view op);         // an operator begins
  void SetExact(bool is_exact);                      // as in CrashReport, from now on
  void MarkRunning(int layer, std::string_view op);  // CrashReport::running_op
  void Beat();                                       // the process runs
  // A signal ends the process; `sender` as in CrashReport. May be called in a handler.
  void MarkSignal(int number, int64_t sender);
  CrashReport Read() const;

  static constexpr size_t kMaxJobs = 440;
  static constexpr size_t kBytes = 4096;  // of the memory, or the file

 private:
  struct Layout;
  void Map();

  int fd_;
  Layout* page_ = nullptr;
};

}  // namespace stoch::ipc
