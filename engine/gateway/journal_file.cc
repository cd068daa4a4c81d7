// SPDX-License-Identifier: Apache-2.0
#include "engine/gateway/journal_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string_view>
#include <utility>

#include "engine/gateway/journal_rows.h"
#include "kernels/base/error.h"

namespace stoch::serve {
namespace {

constexpr size_t kPage = 4096;
constexpr int64_t kIncremental = 2;                                    // of PRAGMA auto_vacuum
constexpr std::string_view kBesides[] = {"-wal", "-shm", "-journal"};  // files of SQLite next to a database

[[noreturn]] void Refuse(const JournalFileOptions& options, const std::string& why) {
  throw InvalidInput("--journal " + options.file + ": " + why);
}

// Prompts are nobody else's business. A file that is there keeps its mode.
void MakePrivate(const JournalFileOptions& options) {
  const int fd = open(options.file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd < 0) Refuse(options, std::strerror(errno));
  close(fd);
}

void Remove(const std::string& file) {
  std::remove(file.c_str());
  for (const std::string_view more : kBesides) std::remove((file + std::string(more)).c_str());
}

std::string Tables() { return std::string(kJournalAnswers) + ";" + std::string(kJournalUpdates); }

std::string SchemaOf(Database& database) {
  return database.Text("SELECT group_concat(sql, ';') FROM (SELECT sql FROM sqlite_master ORDER BY name)");
}

// An open database in which tables can be made.
std::unique_ptr<Database> Open(const JournalFileOptions& options) {
  auto database = std::make_unique<Database>(options.file, options.vfs);
  database->Run("PRAGMA locking_mode = EXCLUSIVE");
  return database;
}

void Configure(Database& database, const JournalFileOptions& options) {
  database.Run("PRAGMA journal_mode = WAL");
  database.Run("PRAGMA journal_size_limit = 4194304");  // of the log, which would stay as long as it ever was
  database.Run(options.full_sync ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL");
}

void MakeTables(Database& database) {
  Transaction transaction(database);
  database.Run(Tables());
  database.Run("PRAGMA application_id = " + std::to_string(kJournalApplication));
  database.Run("PRAGMA user_version = " + std::to_string(kJournalFormat));
  transaction.Commit();
}

// Before anything is in the database.
void MakeEmpty(Database& database, const JournalFileOptions& options) {
  database.Run("PRAGMA auto_vacuum = INCREMENTAL");
  Configure(database, options);
  MakeTables(database);
}

// An empty journal next to the one there is. Returns its name. fill: puts rows into it.
std::string MakeNext(JournalFileOptions options, const std::function<void(Database&)>& fill) {
  options.file += "-new";
  Remove(options.file);
  MakePrivate(options);
  const std::unique_ptr<Database> made = Open(options);
  MakeEmpty(*made, options);
  if (fill) fill(*made);
  return options.file;
}

enum class Kind : uint8_t { kEmpty, kOurs, kOlder, kNewer, kForeign, kDamaged };

Kind KindOf(Database& database) {
  if (database.Integer("SELECT count(*) FROM sqlite_master") == 0) {
    const bool is_new = database.Integer("PRAGMA page_count") == 0;
    return is_new || database.Integer("PRAGMA auto_vacuum") == kIncremental ? Kind::kEmpty : Kind::kOlder;
  }
  // Its tables say which format it is, more reliably than a number of two bytes.
  if (SchemaOf(database) == Tables()) return Kind::kOurs;
  if (database.Integer("PRAGMA application_id") != kJournalApplication) return Kind::kForeign;
  const int64_t format = database.Integer("PRAGMA user_version");
  if (format == kJournalFormat) return Kind::kDamaged;
  return format > kJournalFormat ? Kind::kNewer : Kind::kOlder;
}

// ---------------------------------------------------------------------------------------------------- damage ----

// Whether a file that is no database is a journal all the same, by its first page: no few neighbouring bytes of it say so
// alone.
bool LooksLikeOurs(const std::string& page) {
  using namespace std::string_view_literals;  // NOLINT(google-build-using-namespace)
  constexpr size_t kApplicationAt = 68;
  constexpr std::string_view kApplication = "stoc";
  if (page.size() < kPage) return false;
  return page.compare(kApplicationAt, kApplication.size(), kApplication) == 0 ||
         (page.starts_with("SQLite format 3\0"sv) && page.find(kJournalUpdates) != std::string::npos);
}

std::string FirstPage(const std::string& file) {
  std::string page(kPage, '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(page.data(), static_cast<std::streamsize>(page.size()));
  page.resize(static_cast<size_t>(in.gcount()));
  return page;
}

// A journal's first page says the same in every file, but for counters and a list of free pages, which are of no use where
// rows are only read: that of an empty one takes its place. Returns: false where the file is no journal.
bool MendFirstPage(const JournalFileOptions& options) {
  if (!LooksLikeOurs(FirstPage(options.file))) return false;
  const std::string empty = MakeNext(options, nullptr);
  std::string page = FirstPage(empty);
  Remove(empty);
  // 0 pages: as many as the file is long.
  constexpr size_t kPagesAt = 28, kPagesBytes = 4;
  page.replace(kPagesAt, kPagesBytes, kPagesBytes, '\0');
  std::fstream out(options.file, std::ios::binary | std::ios::in | std::ios::out);
  out.write(page.data(), static_cast<std::streamsize>(page.size()));
  return out.flush().good();
}

bool IsSound(Database& database) {
  try {
    return database.Text("PRAGMA quick_check(1)") == "ok";
  } catch (const DatabaseError& error) {
    if (!error.is_damage()) throw;
    return false;
  }
}

struct Copied {
  int64_t answers = 0, updates = 0, lost = 0;  // lost: at least so many rows
  int64_t torn_after = 0;                      // as in OpenedJournal
};

Copied CopyRows(Database& from, Database& to) {
  Copied copied;
  JournalRows source(from), target(to);
  Transaction transaction(to);
  source.ForEachAnswer(
      [&](const AnswerRow& row) {
        target.Insert(row.head, row.request);
        ++copied.answers;
      },
      [&](const JournalRows::Damage&) { ++copied.lost; });
  int64_t last = 0;
  source.ForEachUpdate(
      [&](const UpdateRow& row) {
        last = row.number;
        target.Insert(row);
        ++copied.updates;
      },
      [&](const JournalRows::Damage&) {
        ++copied.lost;
        copied.torn_after = std::max<int64_t>(last, 1);
      });
  transaction.Commit();
  return copied;
}

// A new file in the place of the one there is, with those rows of `from` that can be read (null: none).
OpenedJournal Renew(std::unique_ptr<Database> from, const JournalFileOptions& options, Copied* copied) {
  const std::string fresh = MakeNext(options, [&](Database& made) {
    if (from != nullptr) *copied = CopyRows(*from, made);
  });
  from.reset();
  std::error_code ignored;
  std::filesystem::permissions(fresh, std::filesystem::status(options.file, ignored).permissions(), ignored);
  for (const std::string_view more : kBesides) std::remove((options.file + std::string(more)).c_str());
  if (std::rename(fresh.c_str(), options.file.c_str()) != 0) Refuse(options, std::strerror(errno));
  std::unique_ptr<Database> database = Open(options);
  Configure(*database, options);
  return {std::move(database), copied->torn_after};
}

OpenedJournal RenewDamaged(const JournalFileOptions& options, const std::string& why, const LogSink& log) {
  Copied copied;
  OpenedJournal opened;
  try {
    std::unique_ptr<Database> damaged = Open(options);
    Configure(*damaged, options);
    opened = Renew(std::move(damaged), options, &copied);
  } catch (const DatabaseError& error) {
    if (!error.is_damage()) throw;
    opened = Renew(nullptr, options, &copied);  // nothing of it can be read
  }
  log({LogLevel::kError,
       "journal_damaged",
       {{"file", options.file},
        {"why", why},
        {"answers", std::to_string(copied.answers)},
        {"updates", std::to_string(copied.updates)},
        {"lost_rows", std::to_string(copied.lost)}}});
  return opened;
}

// ------------------------------------------------------------------------------------------------------ open ----

OpenedJournal RenewOlder(std::unique_ptr<Database> older, const JournalFileOptions& options, const LogSink& log) {
  log({LogLevel::kWarning, "journal_older", {{"file", options.file}, {"format", older->Text("PRAGMA user_version")}}});
  older.reset();
  Copied none;
  return Renew(nullptr, options, &none);
}

OpenedJournal OpenSound(const JournalFileOptions& options, const LogSink& log) {
  std::unique_ptr<Database> database = Open(options);
  switch (KindOf(*database)) {
    case Kind::kForeign: Refuse(options, "is something else");
    case Kind::kNewer:
      Refuse(options, "is of format " + database->Text("PRAGMA user_version") +
                          ", of a newer version; this one knows " + std::to_string(kJournalFormat));
    case Kind::kEmpty: MakeEmpty(*database, options); return {std::move(database)};
    case Kind::kOlder: return RenewOlder(std::move(database), options, log);
    case Kind::kDamaged: throw DatabaseError::Damage("its tables are not what was written");
    case Kind::kOurs: break;
  }
  Configure(*database, options);
  if (!IsSound(*database)) throw DatabaseError::Damage("database disk image is malformed");
  return {std::move(database)};
}

}  // namespace

OpenedJournal OpenJournalFile(JournalFileOptions options, const LogSink& log) {
  MakePrivate(options);
  options.file = std::filesystem::canonical(options.file);  // SQLite's other files are next to what a link points to
  try {
    try {
      return OpenSound(options, log);
    } catch (const DatabaseError& error) {
      if (!error.is_damage() || !MendFirstPage(options)) throw;
      return RenewDamaged(options, error.what(), log);
    }
  } catch (const DatabaseError& error) {
    Refuse(options, error.what());
  }
}

}  // namespace stoch::serve
