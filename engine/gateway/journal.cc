// SPDX-License-Identifier: Apache-2.0
#include "engine/gateway/journal.h"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/gateway/journal_file.h"
#include "engine/ipc/convert.h"
#include "kernels/base/error.h"
#include "loader/sha256.h"

namespace stoch::serve {
namespace {

constexpr std::chrono::seconds kLook{10};
constexpr size_t kRowsAtOnce = 1000;   // that are deleted while others wait
constexpr int64_t kPagesAtOnce = 256;  // that are moved, likewise
constexpr int kSlices = 50;            // of such work in one call of Tidy
constexpr const char* kDamagedRow = "its row is damaged";
constexpr const char* kDamagedUpdate = "an update is damaged";
constexpr const char* kMissingUpdate = "an update is missing";

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

Journal::Journal(Options options, LogSink log)
    : options_(std::move(options)), served_(Sha256Hex(options_.model)), log_(std::move(log)) {
  OpenedJournal opened = OpenJournalFile({options_.file, options_.vfs, options_.full_sync}, log_);
  database_ = std::move(opened.database);
  try {
    database_->LimitRows(options_.max_row_bytes);
    rows_ = std::make_unique<JournalRows>(*database_);
    Read(opened.torn_after);
  } catch (const DatabaseError& error) {
    throw InvalidInput("--journal " + options_.file + ": " + error.what());
  }
}

Journal::~Journal() {
  rows_.reset();
  database_.reset();
}

// ------------------------------------------------------------------------------------------------- the start ----

// torn_after: as in OpenedJournal.
void Journal::Read(int64_t torn_after) {
  std::vector<int64_t> gone;
  rows_->ForEachAnswer(
      [&](AnswerRow row) {
        const int64_t number = row.head.number;
        next_answer_ = std::max(next_answer_, number + 1);
        if (row.head.served != served_ || !number_of_.emplace(row.head.id, number).second)
          return gone.push_back(number);
        Known& known = answers_[number];
        known.head = std::move(row.head);
        known.committed = true;
      },
      [&](const JournalRows::Damage& damage) {
        gone.push_back(damage.number);
        LogDropped("#" + std::to_string(damage.number), kDamagedRow);
      });
  int64_t last = 0;
  rows_->ForEachUpdate(
      [&](const UpdateRow& row) {
        last = row.number;
        next_row_ = std::max(next_row_, row.number + 1);
        // Answers that were never committed count too: their numbers must not come again.
        next_answer_ = std::max(next_answer_, row.answer + 1);
        const auto found = answers_.find(row.answer);
        if (found == answers_.end() || found->second.dropped) return doomed_.push_back(row.number);
        std::vector<int64_t>& rows = found->second.rows;
        rows.push_back(row.number);
        if (row.place + 1 != static_cast<int64_t>(rows.size())) DropAnswer(row.answer, kMissingUpdate);
      },
      [&](const JournalRows::Damage& damage) {
        if (damage.number != 0) doomed_.push_back(damage.number);
        if (damage.answer) return DropAnswer(*damage.answer, kDamagedUpdate);
        torn_after = std::max<int64_t>(last, 1);
      });
  for (const int64_t number : gone) rows_->DeleteAnswer(number);
  size_t unfinished = 0;
  for (auto& [number, known] : answers_) {
    // How many there were is known of those that do not run, and that none is missing of those that have later ones.
    known.torn = torn_after > 0 && known.head.state == State::kRunning &&
                 (known.rows.empty() || known.rows.back() <= torn_after);
    if (static_cast<int64_t>(known.rows.size()) < known.head.updates) DropAnswer(number, kMissingUpdate);
    unfinished += known.head.state == State::kRunning && !known.dropped ? 1 : 0;
  }
  ForgetOld();
  log_({LogLevel::kInfo,
        "journal_opened",
        {{"file", options_.file},
         {"answers", std::to_string(answers_.size())},
         {"unfinished", std::to_string(unfinished)}}});
}

// ---------------------------------------------------------------------------------------- what goes wrong later ----

template <class Body, class OnFailure>
void Journal::Guarded(const Body& body, const OnFailure& on_failure) {
  if (database_ == nullptr) return;
  try {
    body();
  } catch (const DatabaseError& error) {
    if (!error.is_of_a_row()) return Lose(error.what());
    on_failure(error.what());
  } catch (const std::exception& error) {  // memory, as a rule
    on_failure(error.what());
  }
}

template <class Body>
void Journal::GuardedFor(const AnswerKey& answer, const Body& body) {
  Guarded(body, [&](const char* why) {
    if (Find(answer) != nullptr) DropAnswer(answer.number, why);
  });
}

void Journal::Lose(const std::string& why) noexcept {
  lost_ = true;
  rows_.reset();
  database_.reset();
  answers_.clear();
  number_of_.clear();
  doomed_.clear();
  try {
    log_({LogLevel::kError, "journal_lost", {{"file", options_.file}, {"why", why}}});
  } catch (const std::bad_alloc&) {  // /health says so, too
  }
}

void Journal::LogDropped(const std::string& answer, const std::string& why) const {
  log_({LogLevel::kError, "journal_answer_dropped", {{"file", options_.file}, {"answer", answer}, {"why", why}}});
}

// Nothing of it counts from now on; ForgetOld takes what is left of it away, here or in the file.
void Journal::DropAnswer(int64_t number, std::string_view why) noexcept {
  const auto found = answers_.find(number);
  if (found == answers_.end() || std::exchange(found->second.dropped, true)) return;
  looked_ = {};
  try {
    LogDropped(found->second.head.id, std::string(why));
    if (found->second.committed) rows_->DeleteAnswer(number);
  } catch (const std::exception&) {  // once more, by ForgetOld
  }
}

Journal::Known* Journal::Find(const AnswerKey& answer) {
  const auto found = answers_.find(answer.number);
  if (found == answers_.end() || found->second.run != answer.run || found->second.dropped) return nullptr;
  return &found->second;
}

void Journal::Drop(const AnswerKey& answer, const std::string& why) {
  const std::lock_guard lock(mutex_);
  GuardedFor(answer, [&] {
    if (Find(answer) != nullptr) DropAnswer(answer.number, why);
  });
}

// ---------------------------------------------------------------------------------------------------- answers ----

AnswerKey Journal::Begin(const Name& name) {
  const std::lock_guard lock(mutex_);
  AnswerKey key;
  GuardedFor(key, [&] {
    Known known;
    known.head.number = next_answer_;
    known.head.id = name.id;
    known.head.owner = name.owner;
    known.head.served = served_;
    known.head.since = Now();
    const uint64_t run = known.run;
    const auto place = answers_.emplace(next_answer_, std::move(known)).first;
    try {
      if (!number_of_.emplace(name.id, next_answer_).second) throw InvalidInput("an answer has this id");
    } catch (...) {
      answers_.erase(place);
      throw;
    }
    key = {next_answer_++, run};
  });
  return key;
}

void Journal::Commit(const AnswerKey& answer, const std::string& request) {
  const std::lock_guard lock(mutex_);
  GuardedFor(answer, [&] {
    ForgetOld();
    Known* known = Find(answer);
    if (known == nullptr || known->committed) return;
    known->head.request_crc = RequestCrc(request);
    rows_->Insert(known->head, request);
    known->committed = true;
  });
}

void Journal::Write(std::span<const Entry> entries) {
  const std::lock_guard lock(mutex_);
  const auto write = [&] {
    while (const std::optional<Broken> broken = TryWrite(entries)) DropAnswer(broken->answer, broken->why);
  };
  Guarded(write, [&](const char* why) {
    for (const Entry& entry : entries) {
      if (Find(entry.as.answer) != nullptr) DropAnswer(entry.as.answer.number, why);
    }
  });
}

// Returns: the answer whose update cannot be written; nothing has been, then.
std::optional<Journal::Broken> Journal::TryWrite(std::span<const Entry> entries) {
  std::vector<Known*> written;
  written.reserve(entries.size());
  const auto undo = [&] {
    for (Known* known : written) known->rows.pop_back();
  };
  Transaction transaction(*database_);
  for (const Entry& entry : entries) {
    Known* known = Find(entry.as.answer);
    if (known == nullptr) continue;  // taken over, or forgotten
    const int64_t answer = entry.as.answer.number;
    try {
      UpdateRow row;
      row.number = next_row_++;
      row.answer = answer;
      row.place = static_cast<int64_t>(known->rows.size());
      row.choice = static_cast<int64_t>(entry.as.choice);
      if (!ipc::ToMessage(answer, *entry.update).SerializeToString(&row.body))
        return undo(), Broken{answer, "too large"};
      rows_->Insert(row);
      known->rows.push_back(row.number);
      written.push_back(known);
    } catch (const DatabaseError& error) {
      undo();
      if (!error.is_of_a_row()) throw;
      return Broken{answer, error.what()};
    } catch (const std::exception& error) {
      undo();
      return Broken{answer, error.what()};
    }
  }
  try {
    transaction.Commit();
  } catch (const DatabaseError&) {
    undo();
    throw;
  }
  return std::nullopt;
}

void Journal::SetState(Known& known, State state) {
  AnswerHead& head = known.head;
  if (head.state == state || head.state == State::kEnded) return;
  head.state = state;
  head.since = Now();
  head.updates = state == State::kRunning ? 0 : static_cast<int64_t>(known.rows.size());
  if (known.committed) rows_->SetState(head);
}

void Journal::Forget(const AnswerKey& answer) {
  const std::lock_guard lock(mutex_);
  GuardedFor(answer, [&] {
    if (Find(answer) != nullptr) Erase(answer.number);
  });
}

void Journal::End(const AnswerKey& answer) {
  const std::lock_guard lock(mutex_);
  GuardedFor(answer, [&] {
    if (Known* known = Find(answer)) SetState(*known, State::kEnded);
  });
}

void Journal::Leave(const AnswerKey& answer) {
  const std::lock_guard lock(mutex_);
  GuardedFor(answer, [&] {
    if (Known* known = Find(answer)) SetState(*known, State::kLeft);
  });
}

// Errors: InvalidInput, DatabaseError where not all of it is what was written.
AnswerLog::Kept Journal::ReadAll(const Known& known) {
  Kept all;
  std::optional<AnswerRow> answer = rows_->Answer(known.head.number);
  if (!answer) throw InvalidInput(kDamagedRow);
  all.request = std::move(answer->request);
  all.torn = known.torn;
  for (const int64_t number : known.rows) {
    const std::optional<UpdateRow> row = rows_->Update(number);
    const auto place = static_cast<int64_t>(all.updates.size());
    ipc::Update message;
    if (!row || row->answer != known.head.number || row->place != place || row->choice < 0 ||
        !message.ParseFromString(row->body)) {
      throw InvalidInput(kDamagedUpdate);
    }
    all.updates.push_back({static_cast<size_t>(row->choice), ipc::FromMessage(message)});
  }
  return all;
}

// Null: it is not kept, or is somebody else's.
Journal::Known* Journal::FindKept(const Name& name) {
  const auto found = number_of_.find(name.id);
  if (found == number_of_.end()) return nullptr;
  Known& known = answers_.at(found->second);
  return !known.committed || known.dropped || known.head.owner != name.owner ? nullptr : &known;
}

std::optional<std::string> Journal::RequestOf(const Name& name) {
  const std::lock_guard lock(mutex_);
  std::optional<std::string> request;
  GuardedFor(AnswerKey(), [&] {
    ForgetOld();
    const Known* known = FindKept(name);
    if (known == nullptr) return;
    std::optional<AnswerRow> answer = rows_->Answer(known->head.number);
    if (answer) request = std::move(answer->request);
  });
  return request;
}

std::optional<AnswerLog::Kept> Journal::TakeOver(const Name& name) {
  const std::lock_guard lock(mutex_);
  std::optional<Kept> kept;
  GuardedFor(AnswerKey(), [&] {
    ForgetOld();
    Known* known = FindKept(name);
    if (known == nullptr) return;
    const int64_t number = known->head.number;
    Kept all;
    try {
      all = ReadAll(*known);
    } catch (const std::bad_alloc&) {
      return;  // another time
    } catch (const std::exception& error) {
      return DropAnswer(number, error.what());
    }
    SetState(*known, State::kRunning);
    all.key = {number, ++known->run};
    kept = std::move(all);
  });
  return kept;
}

std::vector<AnswerLog::Name> Journal::Unfinished() {
  const std::lock_guard lock(mutex_);
  std::vector<Name> names;
  for (const auto& [number, known] : answers_) {
    if (known.head.state == State::kRunning && !known.dropped) names.push_back({known.head.id, known.head.owner});
  }
  return names;
}

// -------------------------------------------------------------------------------------------------- forgetting ----

void Journal::Erase(int64_t number) {
  Known& known = answers_.at(number);
  if (known.committed) rows_->DeleteAnswer(number);
  doomed_.insert(doomed_.end(), known.rows.begin(), known.rows.end());
  known.rows.clear();
  const auto by_id = number_of_.find(known.head.id);
  if (by_id != number_of_.end() && by_id->second == number) number_of_.erase(by_id);
  answers_.erase(number);
}

// Those that nobody has asked for in time, now and then, and what was dropped.
void Journal::ForgetOld() {
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < std::min<std::chrono::steady_clock::duration>(kLook, options_.keep / 2)) return;
  looked_ = now;
  const int64_t oldest = Now() - options_.keep.count();
  std::vector<int64_t> old;
  for (const auto& [number, known] : answers_) {
    const bool is_old = known.head.state != State::kRunning && known.head.since < oldest;
    if (known.dropped || is_old) old.push_back(number);
  }
  if (!old.empty()) {
    Transaction transaction(*database_);
    for (const int64_t number : old) Erase(number);
    transaction.Commit();
  }
  DeleteSome();
}

bool Journal::DeleteSome() {
  if (doomed_.empty()) return false;
  const size_t rows = std::min(doomed_.size(), kRowsAtOnce);
  Transaction transaction(*database_);
  for (size_t i = 0; i < rows; ++i) rows_->DeleteUpdate(doomed_[i]);
  transaction.Commit();
  doomed_.erase(doomed_.begin(), doomed_.begin() + static_cast<std::ptrdiff_t>(rows));
  has_free_pages_ = true;
  return true;
}

// Pages that the next answers will take anyway stay where they are.
bool Journal::ShrinkSome() {
  if (!has_free_pages_) return false;
  const int64_t free = database_->Integer("PRAGMA freelist_count");
  const int64_t most = answers_.empty() ? 0 : std::max(kPagesAtOnce, database_->Integer("PRAGMA page_count") / 4);
  if (free > most) {
    database_->Run("PRAGMA incremental_vacuum(" + std::to_string(std::min(free - most, kPagesAtOnce)) + ")");
    if (database_->Integer("PRAGMA freelist_count") < free) return true;
  }
  has_free_pages_ = false;
  database_->Run("PRAGMA wal_checkpoint(TRUNCATE)");
  return false;
}

void Journal::Tidy() {
  for (int slice = 0; slice < kSlices; ++slice) {
    const std::lock_guard lock(mutex_);  // others go in between
    bool more = false;
    GuardedFor(AnswerKey(), [&] {
      ForgetOld();
      more = DeleteSome() || ShrinkSome();
    });
    if (!more) return;
  }
}

}  // namespace stoch::serve
