// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/research/sweep_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/host/descriptors.h"
#include "app/output.h"
#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/quote.h"

namespace stoch::cli {
namespace {

using Json = nlohmann::json;

constexpr mode_t kMode = 0644;

[[noreturn]] void Fail(const std::string& path, const char* what) {
  throw InvalidInput(path + ": " + what + ": " + std::strerror(errno));
}

void WriteDurably(int file, const std::string& text, const std::string& path) {
  errno = WriteAll(file, text);
  if (errno != 0) Fail(path, "cannot be written");
  if (fsync(file) != 0 && errno != EINVAL) Fail(path, "cannot be written");  // EINVAL: a pipe or device
}

SweepLine ParseLine(const std::string& text, const std::string& where) {
  const Json row = ParseBoundedJson(text, where);
  if (row.is_object() && row.contains("schema") && row["schema"] == kSweepSummarySchema) return {text, "", false};
  if (!row.is_object() || !row.contains("key") || !row["key"].is_string()) {
    throw InvalidInput(where + ": is not a row of a sweep");
  }
  return {text, row["key"].get<std::string>(), row.contains("error")};
}

}  // namespace

std::string ShortKey(const std::string& key) {
  constexpr size_t kDigits = 16;
  return Quoted(key.substr(0, kDigits)) + "...";
}

std::vector<SweepLine> ParseSweepLines(const std::string& text, const std::string& name, size_t* whole_bytes) {
  std::vector<SweepLine> lines;
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; begin = end + 1, end = text.find('\n', begin)) {
    SweepLine line = ParseLine(text.substr(begin, end - begin), name + ": line " + std::to_string(lines.size() + 1));
    if (!line.key.empty()) lines.push_back(std::move(line));  // summaries are made again
  }
  *whole_bytes = begin;
  return lines;
}

SweepLog::SweepLog(std::string path, std::vector<std::string> keys, bool resume)
    : path_(std::move(path)), keys_(std::move(keys)) {
  Open(resume ? O_CREAT : O_CREAT | O_EXCL);
  try {
    Read();
  } catch (...) {
    close(file_);
    throw;
  }
}

SweepLog::~SweepLog() {
  if (file_ >= 0) close(file_);
}

void SweepLog::Open(int flags) {
  file_ = open(path_.c_str(), O_RDWR | O_APPEND | O_CLOEXEC | flags, kMode);
  if (file_ < 0 && errno == EEXIST) throw InvalidInput(path_ + " exists: --resume continues it");
  if (file_ < 0) Fail(path_, "cannot be opened");
  if (flock(file_, LOCK_EX | LOCK_NB) != 0) {
    close(file_);
    file_ = -1;
    throw InvalidInput(path_ + ": another sweep is writing it");
  }
}

void SweepLog::Read() {
  const std::string text = ReadWholeFile(path_);
  size_t whole = 0;
  bool in_order = true;
  for (SweepLine& line : ParseSweepLines(text, path_, &whole)) {
    const auto found = std::find(keys_.begin(), keys_.end(), line.key);
    const auto i = static_cast<size_t>(found - keys_.begin());
    const std::string where = path_ + ": line " + std::to_string(lines_.size() + 1);
    if (found == keys_.end()) {
      throw InvalidInput(where + ": key " + ShortKey(line.key) + " is of another sweep, version or shard");
    }
    if (lines_.contains(i)) throw InvalidInput(where + ": key " + ShortKey(line.key) + " is there twice");
    in_order = in_order && (lines_.empty() || lines_.rbegin()->first < i);
    if (line.failed) failed_.insert(i);
    lines_.emplace(i, std::move(line.text));
  }
  if (whole < text.size() && ftruncate(file_, static_cast<off_t>(whole)) != 0) Fail(path_, "cannot be cut");
  if (!in_order || text.find(kSweepSummarySchema) != std::string::npos) Rewrite();
}

void SweepLog::Rewrite() { Replace(Rows()); }

void SweepLog::Replace(const std::vector<std::string>& lines) {
  const std::string next = path_ + ".next";
  const int file = open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode);
  if (file < 0) Fail(next, "cannot be created");
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  try {
    WriteDurably(file, text, next);
  } catch (...) {
    close(file);
    throw;
  }
  close(file);
  if (rename(next.c_str(), path_.c_str()) != 0) Fail(path_, "cannot be replaced");
  close(file_);
  Open(0);
}

void SweepLog::Put(size_t i, const std::string& row, bool failed) {
  const bool at_end = lines_.empty() || lines_.rbegin()->first < i;
  lines_[i] = row;
  if (failed) {
    failed_.insert(i);
  } else {
    failed_.erase(i);
  }
  if (at_end) {
    WriteDurably(file_, row + '\n', path_);
  } else {
    Rewrite();
  }
}

std::vector<std::string> SweepLog::Rows() const {
  std::vector<std::string> rows;
  for (const auto& [i, line] : lines_) rows.push_back(line);
  return rows;
}

}  // namespace stoch::cli
