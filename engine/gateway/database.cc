// SPDX-License-Identifier: Apache-2.0
#include "engine/gateway/database.h"

#include <sqlite3.h>

#include <algorithm>
#include <climits>

namespace stoch::serve {
namespace {

constexpr int kBusyMs = 2000;  // a process that held the file may be about to end

[[noreturn]] void Throw(sqlite3* handle, int code) {
  const std::string message = handle == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(handle);
  throw DatabaseError(code & 0xff, message);
}

}  // namespace

DatabaseError DatabaseError::Damage(const std::string& message) { return {SQLITE_CORRUPT, message}; }

bool DatabaseError::is_damage() const {
  constexpr int kCodes[] = {SQLITE_CORRUPT, SQLITE_NOTADB, SQLITE_TOOBIG,
                            SQLITE_ERROR,      // a schema or a format that it does not know
                            SQLITE_READONLY};  // of a format that it may read only
  return std::find(std::begin(kCodes), std::end(kCodes), code_) != std::end(kCodes);
}

bool DatabaseError::is_of_a_row() const {
  return code_ == SQLITE_TOOBIG || code_ == SQLITE_NOMEM || code_ == SQLITE_CONSTRAINT || code_ == SQLITE_MISMATCH;
}

Database::Database(const std::string& file, const std::string& vfs) {
  constexpr int kFlags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int code = sqlite3_open_v2(file.c_str(), &handle_, kFlags, vfs.empty() ? nullptr : vfs.c_str());
  if (code != SQLITE_OK) {
    const std::string message = handle_ == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(handle_);
    sqlite3_close(handle_);
    throw DatabaseError(code & 0xff, message);
  }
  sqlite3_busy_timeout(handle_, kBusyMs);
}

Database::~Database() {
  begin_.reset();
  commit_.reset();
  sqlite3_close(handle_);
}

void Database::Run(const std::string& sql) {
  const int code = sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) Throw(handle_, code);
}

int64_t Database::Integer(const std::string& sql) {
  Statement statement(*this, sql.c_str());
  return statement.Next() ? statement.Integer(0) : 0;
}

std::string Database::Text(const std::string& sql) {
  Statement statement(*this, sql.c_str());
  return statement.Next() ? statement.Bytes(0) : "";
}

void Database::LimitRows(int64_t bytes) {
  sqlite3_limit(handle_, SQLITE_LIMIT_LENGTH, static_cast<int>(std::min<int64_t>(bytes, INT_MAX)));
}

void Database::RunPrepared(std::unique_ptr<Statement>* statement, const char* sql) {
  if (*statement == nullptr) *statement = std::make_unique<Statement>(*this, sql);
  (*statement)->Run();
}

void Database::Begin() { RunPrepared(&begin_, "BEGIN IMMEDIATE"); }
void Database::Commit() { RunPrepared(&commit_, "COMMIT"); }

Database::Statement::Statement(Database& database, const char* sql) : database_(database.handle_) {
  Check(sqlite3_prepare_v3(database_, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement_, nullptr));
}

Database::Statement::~Statement() { sqlite3_finalize(statement_); }

void Database::Statement::Check(int code) const {
  if (code != SQLITE_OK) Throw(database_, code);
}

Database::Statement& Database::Statement::Bind(int argument, int64_t value) {
  Check(sqlite3_bind_int64(statement_, argument, value));
  return *this;
}

Database::Statement& Database::Statement::Bind(int argument, std::string_view text) {
  Check(sqlite3_bind_text64(statement_, argument, text.data(), text.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
  return *this;
}

Database::Statement& Database::Statement::BindBlob(int argument, std::string_view bytes) {
  Check(sqlite3_bind_blob64(statement_, argument, bytes.data(), bytes.size(), SQLITE_TRANSIENT));
  return *this;
}

bool Database::Statement::Next() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  sqlite3_reset(statement_);
  if (code != SQLITE_DONE) Throw(database_, code);
  return false;
}

void Database::Statement::Run() {
  while (Next()) {
  }
}

void Database::Statement::Reset() noexcept { sqlite3_reset(statement_); }

int64_t Database::Statement::Integer(int column) const { return sqlite3_column_int64(statement_, column); }

std::string Database::Statement::Bytes(int column) const {
  const void* bytes = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return bytes == nullptr ? "" : std::string(static_cast<const char*>(bytes), static_cast<size_t>(size));
}

Transaction::~Transaction() {
  if (!open_) return;
  try {
    database_.Run("ROLLBACK");
  } catch (const DatabaseError&) {  // some errors have done it already
  }
}

void Transaction::Commit() {
  database_.Commit();
  open_ = false;
}

}  // namespace stoch::serve
