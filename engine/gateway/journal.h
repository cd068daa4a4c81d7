// SPDX-License-Identifier: Apache-2.0
// The log of answers in a file: an SQLite database with a write-ahead log, one transaction for each pass.
//
// What was written before a process was killed is there when the next one opens the file: SQLite checks every page of
// its log by a checksum, and a transaction that is not whole (a torn tail) counts as not begun. Rows have checksums of
// their own (engine/gateway/journal_rows.h has the format): an answer of which one is damaged or missing is dropped and
// logged, and it alone. So is one whose update cannot be written. Where the file cannot be written any more (a full
// disk), that is logged once, the log is lost, and nothing else ends.
//
// Rows are only ever appended; which of them are an answer's is known in memory, and read when the file is opened. They
// are deleted when their answer is forgotten, some at a time, and the file shrinks with them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/gateway/database.h"
#include "engine/gateway/journal_rows.h"
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
    std::chrono::seconds keep{600};              // after an answer's end
    int64_t max_row_bytes = int64_t{256} << 20;  // of one update
    std::string vfs;                             // of SQLite, "" = its own
  };

  // Errors: InvalidInput of OpenJournalFile.
  Journal(Options options, LogSink log);
  ~Journal() override;

  AnswerKey Begin(const Name& name) override;
  void Commit(const AnswerKey& answer, const std::string& request) override;
  void Write(std::span<const Entry> entries) override;
  void Forget(const AnswerKey& answer) override;
  void Drop(const AnswerKey& answer, const std::string& why) override;
  void End(const AnswerKey& answer) override;
  void Leave(const AnswerKey& answer) override;
  std::optional<std::string> RequestOf(const Name& name) override;
  std::optional<Kept> TakeOver(const Name& name) override;
  std::vector<Name> Unfinished() override;
  bool lost() const override { return lost_; }

  // Forgets answers whose time is over, and gives some of their space back: to be called every second or so.
  // Any thread, as all of the above.
  void Tidy();

 private:
  using State = AnswerHead::State;
  struct Known {
    AnswerHead head;
    uint64_t run = 1;
    std::vector<int64_t> rows;  // of updates
    bool committed = false;     // until then no row of answers is its own
    bool dropped = false;       // nothing of it counts any more
    bool torn = false;          // as in Kept
  };
  struct Broken {
    int64_t answer = 0;
    std::string why;
  };

  void Read(int64_t torn_after);
  // Runs `body`. Where the database says no, the log is lost; where a row or memory is the matter, `on_failure` is called.
  template <class Body, class OnFailure>
  void Guarded(const Body& body, const OnFailure& on_failure);
  // The same, dropping the answer of the key.
  template <class Body>
  void GuardedFor(const AnswerKey& answer, const Body& body);
  void Lose(const std::string& why) noexcept;
  Known* Find(const AnswerKey& answer);
  Known* FindKept(const Name& name);
  std::optional<Broken> TryWrite(std::span<const Entry> entries);
  void DropAnswer(int64_t number, std::string_view why) noexcept;
  void LogDropped(const std::string& answer, const std::string& why) const;
  Kept ReadAll(const Known& known);
  void SetState(Known& known, State state);
  void Erase(int64_t number);
  void ForgetOld();
  bool DeleteSome();  // false: there is nothing to delete
  bool ShrinkSome();

  const Options options_;
  const std::string served_;  // digest of Options::model
  const LogSink log_;
  std::atomic<bool> lost_ = false;
  std::mutex mutex_;                    // of everything below
  std::unique_ptr<Database> database_;  // null: lost
  std::unique_ptr<JournalRows> rows_;
  std::map<int64_t, Known> answers_;
  std::map<std::string, int64_t> number_of_;
  int64_t next_answer_ = 1, next_row_ = 1;
  std::deque<int64_t> doomed_;                    // updates of what was forgotten
  bool has_free_pages_ = true;                    // there may be some
  std::chrono::steady_clock::time_point looked_;  // for old ones
};

}  // namespace stoch::serve
