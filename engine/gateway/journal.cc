// SPDX-License-Identifier: Apache-2.0
#include "engine/gateway/journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/ipc/convert.h"
#include "kernels/base/error.h"

namespace stoch::serve {
namespace {

constexpr int64_t kApplication = 0x73746f63;  // "stoc", for file(1) and for us
constexpr int64_t kFormat = 1;
constexpr std::chrono::seconds kLook{10};

constexpr const char* kTables =
    "CREATE TABLE model(text TEXT NOT NULL);"
    "CREATE TABLE answers(number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, request BLOB NOT NULL,"
    " state INTEGER NOT NULL, since INTEGER NOT NULL);"
    "CREATE TABLE updates(number INTEGER PRIMARY KEY, answer INTEGER NOT NULL, choice INTEGER NOT NULL,"
    " body BLOB NOT NULL)";

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Prompts are nobody else's business. A file that is there keeps its mode.
void MakePrivate(const std::string& file) {
  const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd < 0) throw InvalidInput("--journal " + file + ": " + std::strerror(errno));
  close(fd);
}

}  // namespace

struct Journal::Statements {
  explicit Statements(Database& database)
      : begin(database, "INSERT INTO answers(number, id, request, state, since) VALUES(?, ?, ?, ?, ?)"),
        write(database, "INSERT INTO updates(answer, choice, body) VALUES(?, ?, ?)"),
        set_state(database, "UPDATE answers SET state = ?, since = ? WHERE number = ?"),
        request(database, "SELECT request FROM answers WHERE number = ?"),
        update(database, "SELECT choice, body FROM updates WHERE number = ?"),
        forget(database, "DELETE FROM answers WHERE number = ?"),
        forget_updates(database, "DELETE FROM updates WHERE number < ?") {}

  Database::Statement begin, write, set_state, request, update, forget, forget_updates;
};

Journal::Journal(Options options, LogSink log) : options_(std::move(options)), log_(std::move(log)) {
  MakePrivate(options_.file);
  try {
    database_ = std::make_unique<Database>(options_.file, options_.vfs);
    Prepare();
    statements_ = std::make_unique<Statements>(*database_);
    Read();
  } catch (const DatabaseError& error) {
    throw InvalidInput("--journal " + options_.file + ": " + error.what());
  }
}

Journal::~Journal() {
  statements_.reset();
  database_.reset();
}

// A database of ours for this process alone, with nothing of another model in it.
void Journal::Prepare() {
  database_->Run("PRAGMA locking_mode = EXCLUSIVE");
  const bool is_new = database_->Integer("SELECT count(*) FROM sqlite_master") == 0;
  if (!is_new && (database_->Integer("PRAGMA application_id") != kApplication ||
                  database_->Integer("PRAGMA user_version") != kFormat)) {
    throw InvalidInput("--journal " + options_.file + ": is something else, or of another version");
  }
  database_->Run("PRAGMA journal_mode = WAL");
  database_->Run(options_.full_sync ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL");
  if (database_->Text("PRAGMA quick_check(1)") != "ok") {
    throw InvalidInput("--journal " + options_.file + ": is damaged; remove it to go on without what it holds");
  }
  Transaction transaction(*database_);
  if (is_new) {
    database_->Run(kTables);
    database_->Run("PRAGMA application_id = " + std::to_string(kApplication));
    database_->Run("PRAGMA user_version = " + std::to_string(kFormat));
  }
  if (database_->Text("SELECT text FROM model") != options_.model) {
    database_->Run("DELETE FROM model; DELETE FROM answers; DELETE FROM updates");
    Database::Statement(*database_, "INSERT INTO model VALUES(?)").Bind(1, options_.model).Run();
  }
  transaction.Commit();
}

void Journal::Read() {
  Database::Statement answers(*database_, "SELECT number, id, state, since FROM answers");
  size_t unfinished = 0;
  while (answers.Next()) {
    Known& known = answers_[answers.Integer(0)];
    known.id = answers.Bytes(1);
    known.state = static_cast<State>(answers.Integer(2));
    known.since = answers.Integer(3);
    known.committed = true;
    number_of_[known.id] = answers.Integer(0);
    unfinished += known.state == State::kRunning ? 1 : 0;
  }
  next_number_ = 1 + database_->Integer("SELECT seq FROM sqlite_sequence WHERE name = 'answers'");
  // Of answers that were never committed: their numbers come again.
  database_->Run("DELETE FROM updates WHERE answer >= " + std::to_string(next_number_));
  Database::Statement updates(*database_, "SELECT number, answer FROM updates ORDER BY number");
  while (updates.Next()) {
    const auto found = answers_.find(updates.Integer(1));
    if (found != answers_.end()) found->second.rows.push_back(updates.Integer(0));
  }
  ForgetOld();
  log_({LogLevel::kInfo,
        "journal_opened",
        {{"answers", std::to_string(answers_.size())}, {"unfinished", std::to_string(unfinished)}}});
}

template <class Body>
void Journal::Guarded(const Body& body) {
  if (database_ == nullptr) return;
  try {
    body();
  } catch (const std::exception& error) {  // memory is what a database may want for too
    Lose(error.what());
  }
}

void Journal::Lose(const std::string& why) {
  log_({LogLevel::kError, "journal_lost", {{"file", options_.file}, {"why", why}}});
  lost_ = true;
  statements_.reset();
  database_.reset();
  answers_.clear();
  number_of_.clear();
}

Journal::Known* Journal::Find(const AnswerKey& answer) {
  const auto found = answers_.find(answer.number);
  return found == answers_.end() || found->second.run != answer.run ? nullptr : &found->second;
}

AnswerKey Journal::Begin(const std::string& id) {
  const std::lock_guard lock(mutex_);
  AnswerKey key;
  Guarded([&] {
    Known known;
    known.id = id;
    known.since = Now();
    const auto same = number_of_.find(id);
    if (same != number_of_.end()) {
      const Known& before = answers_.at(same->second);
      known.replaces = before.committed ? same->second : before.replaces;
      answers_.erase(same->second);
    }
    const int64_t number = next_number_++;
    number_of_[id] = number;
    key = {number, known.run};
    answers_[number] = std::move(known);
  });
  return key;
}

void Journal::Commit(const AnswerKey& answer, const std::string& request) {
  const std::lock_guard lock(mutex_);
  Guarded([&] {
    ForgetOld();
    Known* known = Find(answer);
    if (known == nullptr || known->committed) return;
    Transaction transaction(*database_);
    if (known->replaces != 0) statements_->forget.Bind(1, known->replaces).Run();
    statements_->begin.Bind(1, answer.number)
        .Bind(2, known->id)
        .BindBlob(3, request)
        .Bind(4, static_cast<int64_t>(known->state))
        .Bind(5, known->since)
        .Run();
    transaction.Commit();
    known->committed = true;
  });
}

void Journal::Write(std::span<const Entry> entries) {
  const std::lock_guard lock(mutex_);
  Guarded([&] {
    std::vector<std::pair<Known*, int64_t>> rows;
    Transaction transaction(*database_);
    for (const Entry& entry : entries) {
      Known* known = Find(entry.as.answer);
      if (known == nullptr) continue;  // taken over, or forgotten
      const std::string body = ipc::ToMessage(entry.as.answer.number, *entry.update).SerializeAsString();
      statements_->write.Bind(1, entry.as.answer.number)
          .Bind(2, static_cast<int64_t>(entry.as.choice))
          .BindBlob(3, body)
          .Run();
      rows.emplace_back(known, database_->last_row());
    }
    transaction.Commit();
    for (const auto& [known, row] : rows) known->rows.push_back(row);
  });
}

void Journal::SetState(int64_t number, Known& known, State state) {
  if (known.state == state || known.state == State::kEnded) return;
  const int64_t now = Now();
  if (known.committed) statements_->set_state.Bind(1, static_cast<int64_t>(state)).Bind(2, now).Bind(3, number).Run();
  known.state = state;
  known.since = now;
}

void Journal::Forget(const AnswerKey& answer) {
  const std::lock_guard lock(mutex_);
  Guarded([&] {
    const Known* known = Find(answer);
    if (known == nullptr) return;
    const int64_t there = known->committed ? answer.number : known->replaces;
    if (there != 0) statements_->forget.Bind(1, there).Run();
    number_of_.erase(known->id);
    answers_.erase(answer.number);
  });
}

void Journal::End(const AnswerKey& answer) {
  const std::lock_guard lock(mutex_);
  Guarded([&] {
    if (Known* known = Find(answer)) SetState(answer.number, *known, State::kEnded);
  });
}

void Journal::Leave(const AnswerKey& answer) {
  const std::lock_guard lock(mutex_);
  Guarded([&] {
    if (Known* known = Find(answer)) SetState(answer.number, *known, State::kLeft);
  });
}

std::optional<AnswerLog::Kept> Journal::TakeOver(const std::string& id) {
  const std::lock_guard lock(mutex_);
  std::optional<Kept> kept;
  Guarded([&] {
    ForgetOld();
    const auto found = number_of_.find(id);
    if (found == number_of_.end()) return;
    Known& known = answers_.at(found->second);
    if (!known.committed) return;
    Kept all;
    if (!statements_->request.Bind(1, found->second).Next()) return;
    all.request = statements_->request.Bytes(0);
    statements_->request.Run();
    for (const int64_t row : known.rows) {
      ipc::Update message;
      Database::Statement& update = statements_->update.Bind(1, row);
      if (!update.Next() || !message.ParseFromString(update.Bytes(1))) throw InvalidInput("a row is damaged");
      all.updates.push_back({static_cast<size_t>(update.Integer(0)), ipc::FromMessage(message)});
      update.Run();
    }
    SetState(found->second, known, State::kRunning);
    all.key = {found->second, ++known.run};
    kept = std::move(all);
  });
  return kept;
}

std::vector<std::string> Journal::Unfinished() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> ids;
  for (const auto& [number, known] : answers_) {
    if (known.state == State::kRunning) ids.push_back(known.id);
  }
  return ids;
}

// Those that nobody has asked for in time, now and then.
void Journal::ForgetOld() {
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < std::min<std::chrono::steady_clock::duration>(kLook, options_.keep / 2)) return;
  looked_ = now;
  const int64_t oldest = Now() - options_.keep.count();
  Transaction transaction(*database_);
  std::erase_if(answers_, [&](const auto& entry) {
    const auto& [number, known] = entry;
    if (known.state == State::kRunning || known.since >= oldest) return false;
    statements_->forget.Bind(1, number).Run();
    const auto by_id = number_of_.find(known.id);
    if (by_id != number_of_.end() && by_id->second == number) number_of_.erase(by_id);
    return true;
  });
  // Rows of what was forgotten, up to the first one that is needed.
  int64_t first = INT64_MAX;
  for (const auto& [number, known] : answers_) {
    if (!known.rows.empty()) first = std::min(first, known.rows.front());
  }
  statements_->forget_updates.Bind(1, first).Run();
  transaction.Commit();
}

}  // namespace stoch::serve
