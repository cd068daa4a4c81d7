// SPDX-License-Identifier: Apache-2.0
#include "engine/gateway/journal_rows.h"

#include <algorithm>
#include <utility>

#include "loader/crc32c.h"

namespace stoch::serve {
namespace {

uint32_t CrcOf(const AnswerHead& head) {
  return Crc32c()
      .Add(head.number)
      .Add(head.id)
      .Add(head.owner)
      .Add(head.served)
      .Add(static_cast<int64_t>(head.request_crc))
      .Add(static_cast<int64_t>(head.state))
      .Add(head.since)
      .Add(head.updates)
      .value();
}

uint32_t PlaceCrcOf(const UpdateRow& row) { return Crc32c().Add(row.number).Add(row.answer).Add(row.place).value(); }

uint32_t CrcOf(const UpdateRow& row, uint32_t place_crc) {
  return Crc32c()
      .Add(row.number)
      .Add(row.answer)
      .Add(row.place)
      .Add(row.choice)
      .Add(row.body)
      .Add(static_cast<int64_t>(place_crc))
      .value();
}

// As they are counted; others would overflow.
bool IsNumber(int64_t number) { return number > 0 && number < INT64_MAX / 2; }

// Null: it is not what was written.
std::optional<AnswerRow> ReadAnswer(const Database::Statement& from) {
  AnswerRow row;
  AnswerHead& head = row.head;
  head.number = from.Integer(0);
  head.id = from.Bytes(1);
  head.owner = from.Bytes(2);
  head.served = from.Bytes(3);
  row.request = from.Bytes(4);
  head.request_crc = RequestCrc(row.request);
  const int64_t state = from.Integer(5);
  if (state < 0 || state > static_cast<int64_t>(AnswerHead::State::kEnded)) return std::nullopt;
  head.state = static_cast<AnswerHead::State>(state);
  head.since = from.Integer(6);
  head.updates = from.Integer(7);
  if (from.Integer(8) != static_cast<int64_t>(CrcOf(head)) || !IsNumber(head.number)) return std::nullopt;
  return row;
}

std::optional<UpdateRow> ReadUpdate(const Database::Statement& from, JournalRows::Damage* damage) {
  UpdateRow row;
  row.number = from.Integer(0);
  row.answer = from.Integer(1);
  row.place = from.Integer(2);
  row.choice = from.Integer(3);
  row.body = from.Bytes(4);
  const uint32_t place_crc = PlaceCrcOf(row);
  damage->number = row.number;
  const bool is_placed = from.Integer(5) == static_cast<int64_t>(place_crc) && IsNumber(row.number);
  if (is_placed && IsNumber(row.answer) && row.place >= 0) damage->answer = row.answer;
  if (from.Integer(6) != static_cast<int64_t>(CrcOf(row, place_crc)) || !damage->answer) return std::nullopt;
  return row;
}

// A statement that is read once, and not left half read.
class OneReading {
 public:
  explicit OneReading(Database::Statement& statement) : statement_(statement) {}
  ~OneReading() { statement_.Reset(); }
  OneReading(const OneReading&) = delete;
  OneReading& operator=(const OneReading&) = delete;

 private:
  Database::Statement& statement_;
};

}  // namespace

uint32_t RequestCrc(std::string_view request) { return Crc32c().AddRaw(request).value(); }

JournalRows::JournalRows(Database& database)
    : insert_answer_(database,
                     "INSERT INTO answers(number, id, owner, served, request, state, since, updates, crc)"
                     " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)"),
      insert_update_(database,
                     "INSERT INTO updates(number, answer, place, choice, body, place_crc, crc)"
                     " VALUES(?, ?, ?, ?, ?, ?, ?)"),
      set_state_(database, "UPDATE answers SET state = ?, since = ?, updates = ?, crc = ? WHERE number = ?"),
      delete_answer_(database, "DELETE FROM answers WHERE number = ?"),
      delete_update_(database, "DELETE FROM updates WHERE number = ?"),
      answer_(database,
              "SELECT number, id, owner, served, request, state, since, updates, crc FROM answers WHERE number = ?"),
      update_(database, "SELECT number, answer, place, choice, body, place_crc, crc FROM updates WHERE number = ?"),
      answers_after_(database,
                     "SELECT number, id, owner, served, request, state, since, updates, crc FROM answers"
                     " WHERE number > ? ORDER BY number"),
      updates_after_(database,
                     "SELECT number, answer, place, choice, body, place_crc, crc FROM updates"
                     " WHERE number > ? ORDER BY number") {}

void JournalRows::Insert(const AnswerHead& head, std::string_view request) {
  insert_answer_.Bind(1, head.number)
      .Bind(2, head.id)
      .Bind(3, head.owner)
      .Bind(4, head.served)
      .BindBlob(5, request)
      .Bind(6, static_cast<int64_t>(head.state))
      .Bind(7, head.since)
      .Bind(8, head.updates)
      .Bind(9, static_cast<int64_t>(CrcOf(head)))
      .Run();
}

void JournalRows::Insert(const UpdateRow& row) {
  const uint32_t place_crc = PlaceCrcOf(row);
  insert_update_.Bind(1, row.number)
      .Bind(2, row.answer)
      .Bind(3, row.place)
      .Bind(4, row.choice)
      .BindBlob(5, row.body)
      .Bind(6, static_cast<int64_t>(place_crc))
      .Bind(7, static_cast<int64_t>(CrcOf(row, place_crc)))
      .Run();
}

void JournalRows::SetState(const AnswerHead& head) {
  set_state_.Bind(1, static_cast<int64_t>(head.state))
      .Bind(2, head.since)
      .Bind(3, head.updates)
      .Bind(4, static_cast<int64_t>(CrcOf(head)))
      .Bind(5, head.number)
      .Run();
}

void JournalRows::DeleteAnswer(int64_t number) { delete_answer_.Bind(1, number).Run(); }
void JournalRows::DeleteUpdate(int64_t number) { delete_update_.Bind(1, number).Run(); }

std::optional<AnswerRow> JournalRows::Answer(int64_t number) {
  const OneReading reading(answer_);
  return answer_.Bind(1, number).Next() ? ReadAnswer(answer_) : std::nullopt;
}

std::optional<UpdateRow> JournalRows::Update(int64_t number) {
  const OneReading reading(update_);
  Damage damage;
  return update_.Bind(1, number).Next() ? ReadUpdate(update_, &damage) : std::nullopt;
}

void JournalRows::ForEachAnswer(const std::function<void(AnswerRow row)>& row,
                                const std::function<void(Damage)>& damage) {
  const auto read = [&] {
    std::optional<AnswerRow> answer = ReadAnswer(answers_after_);
    if (!answer) return damage({answers_after_.Integer(0), std::nullopt});
    row(std::move(*answer));
  };
  Scan(answers_after_, read, damage);
}

void JournalRows::ForEachUpdate(const std::function<void(UpdateRow row)>& row,
                                const std::function<void(Damage)>& damage) {
  const auto read = [&] {
    Damage found;
    std::optional<UpdateRow> update = ReadUpdate(updates_after_, &found);
    if (!update) return damage(found);
    row(std::move(*update));
  };
  Scan(updates_after_, read, damage);
}

void JournalRows::Scan(Database::Statement& after, const std::function<void()>& row,
                       const std::function<void(Damage)>& damage) {
  const OneReading reading(after);
  std::optional<int64_t> last = INT64_MIN;
  while (last) {
    try {
      after.Bind(1, *last);
      bool in_order = true;
      while (in_order && after.Next()) {
        in_order = after.Integer(0) > *last;
        if (!in_order) break;
        last = after.Integer(0);
        row();
      }
      if (in_order) return;
      after.Reset();
    } catch (const DatabaseError& error) {
      if (!error.is_damage()) throw;
    }
    damage({});
    last = NextReadable(after, *last);
  }
}

std::optional<int64_t> JournalRows::NextReadable(Database::Statement& after, int64_t number) {
  // Whether there is a row to be read after it; none: it cannot be told.
  const auto reads = [&](int64_t from) -> std::optional<bool> {
    const OneReading reading(after);
    try {
      return after.Bind(1, from).Next() && after.Integer(0) > from;
    } catch (const DatabaseError& error) {
      if (!error.is_damage()) throw;
      return std::nullopt;
    }
  };
  constexpr int64_t kFarthest = int64_t{1} << 48;
  int64_t unreadable = std::max<int64_t>(number, 0);
  int64_t step = 1;
  std::optional<bool> found;
  while (step < kFarthest && !(found = reads(unreadable + step))) step *= 2;
  if (!found.value_or(false)) return std::nullopt;
  int64_t readable = unreadable + step;
  unreadable += step / 2;
  while (readable - unreadable > 1) {
    const int64_t middle = unreadable + (readable - unreadable) / 2;
    (reads(middle).value_or(false) ? readable : unreadable) = middle;
  }
  return readable;
}

}  // namespace stoch::serve
