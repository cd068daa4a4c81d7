// SPDX-License-Identifier: Apache-2.0
// The rows of a sweep in a file that survives a kill at any moment.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace stoch::cli {

// What lines that sum rows up have as schema: they are dropped when a file is read, and made again.
inline constexpr const char* kSweepSummarySchema = "stoch-sweep-summary-v1";

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
  // Replaces the whole file at once, when every row is there: rows in order, then other lines.
  void Replace(const std::vector<std::string>& lines);
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

struct SweepLine {
  std::string text, key;  // without line break
  bool failed = false;    // it says an error
};
// The whole lines of such a file; what follows the last line break was torn off.
// Errors: InvalidInput for a line that is no row.
std::vector<SweepLine> ParseSweepLines(const std::string& text, const std::string& name, size_t* whole_bytes);
// A key in messages.
std::string ShortKey(const std::string& key);

}  // namespace stoch::cli
