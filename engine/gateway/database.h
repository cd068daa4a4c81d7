// SPDX-License-Identifier: Apache-2.0
// SQLite, as much of it as the journal needs, with errors as exceptions.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace stoch::serve {

// What SQLite said, with its code (SQLITE_FULL, ...).
class DatabaseError : public std::runtime_error {
 public:
  DatabaseError(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
  static DatabaseError Damage(const std::string& message);
  int code() const { return code_; }
  bool is_damage() const;    // bytes of the file may not be what SQLite wrote
  bool is_of_a_row() const;  // a row's own fault, or a want of memory: the file is well

 private:
  int code_;
};

// Threads: one at a time.
// Errors:  DatabaseError, of every call.
class Database {
 public:
  // Opens a file, or makes it, for this process alone. vfs: one that is registered with SQLite; "" = its own.
  Database(const std::string& file, const std::string& vfs);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  void Run(const std::string& sql);
  // Rows and texts that are longer are errors from now on.
  void LimitRows(int64_t bytes);
  int64_t Integer(const std::string& sql);  // of the first row
  std::string Text(const std::string& sql);
  // A transaction, by statements that are prepared once: parsing them takes longer than running them.
  void Begin();
  void Commit();

  // A prepared statement. Arguments are numbered from 1, columns from 0.
  class Statement {
   public:
    Statement(Database& database, const char* sql);
    ~Statement();
    Statement(const Statement&) = delete;
    Statement& operator=(const Statement&) = delete;

    Statement& Bind(int argument, int64_t value);
    Statement& Bind(int argument, std::string_view text);
    Statement& BindBlob(int argument, std::string_view bytes);
    bool Next();            // to the next row; false: there is none, and it can be run again
    void Run();             // to its end
    void Reset() noexcept;  // from wherever it is
    int64_t Integer(int column) const;
    std::string Bytes(int column) const;

   private:
    void Check(int code) const;
    sqlite3* database_;
    sqlite3_stmt* statement_ = nullptr;
  };

 private:
  void RunPrepared(std::unique_ptr<Statement>* statement, const char* sql);

  sqlite3* handle_ = nullptr;
  std::unique_ptr<Statement> begin_, commit_;  // null until they are needed
};

// All of what is run until Commit, or nothing.
class Transaction {
 public:
  explicit Transaction(Database& database) : database_(database) { database_.Begin(); }
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void Commit();

 private:
  Database& database_;
  bool open_ = true;
};

}  // namespace stoch::serve
