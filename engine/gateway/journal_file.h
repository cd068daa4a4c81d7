// SPDX-License-Identifier: Apache-2.0
// The file of a journal: whose it is, of which format, and what is left of it where it is damaged.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/gateway/database.h"
#include "engine/serve/log.h"

namespace stoch::serve {

struct JournalFileOptions {
  std::string file;
  std::string vfs;  // of SQLite, "" = its own
  bool full_sync = false;
};

struct OpenedJournal {
  std::unique_ptr<Database> database;
  int64_t torn_after = 0;  // updates with numbers after this one may be missing, and nothing there says of which answer
};

// An open database with the tables of journal_rows.h, for this process alone. A file that is not there is made, readable
// by its owner only. One of an older format is emptied: its streams are of an older version, and do not go on. One with
// damaged pages is made again from the rows that can still be read. Both are logged.
// Errors: InvalidInput naming the file, whose rows are as they were: it cannot be opened or written, is no journal, is of
//         a newer format, or another process has it.
OpenedJournal OpenJournalFile(JournalFileOptions options, const LogSink& log);

}  // namespace stoch::serve
