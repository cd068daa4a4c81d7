// SPDX-License-Identifier: Apache-2.0
// The rows of a journal, each with a checksum, and how they are read where some of them are damaged.
//
// Format 2: an SQLite database (application_id "stoc", user_version 2, incremental vacuum) of two tables without index:
//   answers(number, id, owner, served, request, state, since, updates, crc)
//   updates(number, answer, place, choice, body, place_crc, crc)
// number is the key of each. owner: the digest of the key that asked, "" where the server has none. served: a digest of
// what was served. request: of stored_request.h. state: 0 runs, 1 left by its client, 2 ended, since when (seconds since
// 1970), with how many updates there were then. place: 0, 1, 2, ... of an answer. body: ipc::Update. crc: CRC32C
// (loader/crc32c.h) of all columns before it, in this order, `request` by its own CRC32C; place_crc: of the three before `choice`.
//
// Format 1 (until 0.1.0) had no checksums, owners or places.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/gateway/database.h"

namespace stoch::serve {

inline constexpr int64_t kJournalApplication = 0x73746f63;  // "stoc", for file(1) and for us
inline constexpr int64_t kJournalFormat = 2;
inline constexpr std::string_view kJournalAnswers =
    "CREATE TABLE answers(number INTEGER PRIMARY KEY, id TEXT NOT NULL, owner TEXT NOT NULL, served TEXT NOT NULL,"
    " request BLOB NOT NULL, state INTEGER NOT NULL, since INTEGER NOT NULL, updates INTEGER NOT NULL,"
    " crc INTEGER NOT NULL) STRICT";
inline constexpr std::string_view kJournalUpdates =
    "CREATE TABLE updates(number INTEGER PRIMARY KEY, answer INTEGER NOT NULL, place INTEGER NOT NULL,"
    " choice INTEGER NOT NULL, body BLOB NOT NULL, place_crc INTEGER NOT NULL, crc INTEGER NOT NULL) STRICT";

// All of an answer but its request.
struct AnswerHead {
  enum class State : uint8_t { kRunning, kLeft, kEnded };
  int64_t number = 0;
  std::string id, owner, served;
  uint32_t request_crc = 0;
  State state = State::kRunning;
  int64_t since = 0;
  int64_t updates = 0;
};
struct AnswerRow {
  AnswerHead head;
  std::string request;
};
struct UpdateRow {
  int64_t number = 0;
  int64_t answer = 0;
  int64_t place = 0;
  int64_t choice = 0;
  std::string body;
};

uint32_t RequestCrc(std::string_view request);

// The rows of an open database that has the tables.
// Threads: one at a time. Errors: DatabaseError of every call; one of a row alone where a call reads rows is told, not thrown.
class JournalRows {
 public:
  explicit JournalRows(Database& database);

  void Insert(const AnswerHead& head, std::string_view request);
  void Insert(const UpdateRow& row);
  void SetState(const AnswerHead& head);  // state, since and updates of it
  void DeleteAnswer(int64_t number);
  void DeleteUpdate(int64_t number);

  // Null: it is not there, or not what was written.
  std::optional<AnswerRow> Answer(int64_t number);
  std::optional<UpdateRow> Update(int64_t number);

  // A row that is not what was written.
  struct Damage {
    int64_t number = 0;             // 0: rows that cannot be reached, some number of them
    std::optional<int64_t> answer;  // of an update, where that much can be relied on
  };
  // All rows in order of their numbers; what cannot be read is told in its place.
  void ForEachAnswer(const std::function<void(AnswerRow row)>& row, const std::function<void(Damage)>& damage);
  void ForEachUpdate(const std::function<void(UpdateRow row)>& row, const std::function<void(Damage)>& damage);

 private:
  // Calls `row` for rows after each other, past pages that cannot be read.
  void Scan(Database::Statement& after, const std::function<void()>& row, const std::function<void(Damage)>& damage);
  // The first number after `number` from which rows can be read again; none: there is none.
  static std::optional<int64_t> NextReadable(Database::Statement& after, int64_t number);

  Database::Statement insert_answer_, insert_update_, set_state_, delete_answer_, delete_update_;
  Database::Statement answer_, update_, answers_after_, updates_after_;
};

}  // namespace stoch::serve
