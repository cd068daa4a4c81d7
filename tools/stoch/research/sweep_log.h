// SPDX-License-Identifier: Apache-2.0
// The rows of a sweep in a file that survives a kill at any moment.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace stoch::cli {

// Rows are JSON lines with a "key"; the file has them in the order of `keys`.
class SweepLog {
 public:
  // Opens `path` for the rows of `keys`. Without `resume` the file must not exist; with it, what it holds is read and a
  // torn last line is dropped. Locks the file while it lives.
  // Errors: InvalidInput where it exists, is in use, cannot be written, or has a row that is not of these keys.
  SweepLog(std::string path, std::vector<std::string> keys, bool resume);
  SweepLog(const SweepLog&) = delete;
  SweepLog& operator=(const SweepLog&) = delete;
  ~SweepLog();

  // Whether row i is there without an error.
  bool Done(size_t i) const { return lines_.contains(i) && !failed_.contains(i); }
  bool AnyFailed() const { return !failed_.empty(); }
  const std::set<size_t>& failed() const { return failed_; }
  // Adds or replaces row i: one write and fsync at the end of the file, or, where rows after it are there already, a
  // new file in order that takes its place at once.
  void Put(size_t i, const std::string& row, bool failed);
  // The rows that are there, in order.
  std::vector<std::string> Rows() const;

 private:
  void Open(int flags);
  void Read();
  void Rewrite();

  std::string path_;
  std::vector<std::string> keys_;
  int file_ = -1;
  std::map<size_t, std::string> lines_;  // without line breaks
  std::set<size_t> failed_;
};

// Rows of complete shards 0, 1, ..., n - 1 of a sweep, in order, as one run writes them.
// Errors: InvalidInput where sizes or keys cannot be those of n shards in this order.
std::string MergeShards(const std::vector<std::string>& names, const std::vector<std::string>& texts);

}  // namespace stoch::cli
