// SPDX-License-Identifier: Apache-2.0
// The log of answers in a file: an SQLite database with a write-ahead log, one transaction for each pass.
//
// What was written before a process was killed is there when the next one opens the file: SQLite checks every page of
// its log by a checksum, and a transaction that is not whole (a torn tail) counts as not begun. Where the file cannot be
// written any more (a full disk), that is logged once, the log is lost, and nothing else ends.
//
// Rows are only ever appended; which of them are an answer's is known in memory, and read when the file is opened.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/gateway/database.h"
#include "engine/request/answer_log.h"
#include "engine/serve/log.h"

namespace stoch::serve {

class Journal final : public AnswerLog {
 public:
  struct Options {
    std::string file;
    bool full_sync = false;  // a transaction survives a loss of power, not only of the process
    // What is served, as text that differs where answers would: those of another model are forgotten.
    std::string model;
    std::chrono::seconds keep{600};  // after an answer's end
    std::string vfs;                 // of SQLite, "" = its own
  };

  // Errors: InvalidInput: the file cannot be opened or written, is damaged, is something else, or is another process's.
  Journal(Options options, LogSink log);
  ~Journal() override;

  AnswerKey Begin(const std::string& id) override;
  void Commit(const AnswerKey& answer, const std::string& request) override;
  void Write(std::span<const Entry> entries) override;
  void Forget(const AnswerKey& answer) override;
  void End(const AnswerKey& answer) override;
  void Leave(const AnswerKey& answer) override;
  std::optional<Kept> TakeOver(const std::string& id) override;
  std::vector<std::string> Unfinished() override;
  bool lost() const override { return lost_; }

 private:
  enum class State : uint8_t { kRunning, kLeft, kEnded };
  struct Known {
    std::string id;
    State state = State::kRunning;
    int64_t since = 0;  // in this state: seconds since 1970
    uint64_t run = 1;
    std::vector<int64_t> rows;  // of updates
    bool committed = false;     // until then no row of answers is its own
    int64_t replaces = 0;       // the answer whose row it deletes then, 0 = none
  };
  struct Statements;

  void Prepare();
  void Read();
  // Runs `body`; the log is lost where the database says no.
  template <class Body>
  void Guarded(const Body& body);
  void Lose(const std::string& why);
  Known* Find(const AnswerKey& answer);
  void SetState(int64_t number, Known& known, State state);
  void ForgetOld();

  const Options options_;
  const LogSink log_;
  std::atomic<bool> lost_ = false;
  std::mutex mutex_;                    // of everything below
  std::unique_ptr<Database> database_;  // null: lost
  std::unique_ptr<Statements> statements_;
  std::map<int64_t, Known> answers_;
  std::map<std::string, int64_t> number_of_;
  int64_t next_number_ = 1;
  std::chrono::steady_clock::time_point looked_;  // for old ones
};

}  // namespace stoch::serve
