// SPDX-License-Identifier: Apache-2.0
// Jobs that wait, and whose turn it is: clients in turn, one job each, however many each of them has.
//
// A client with a thousand jobs delays another's single one by one turn, not by a thousand. Jobs that had begun before (they
// gave their place up, or lost it) go first: what was computed for them is not to be wasted, and no new one may keep them
// out. The next one stays the next one until it leaves or one of those comes, so nobody overtakes it while it waits for room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/request/job_runner.h"

namespace stoch::serve {

// Threads: one at a time.
class FairQueue {
 public:
  // Within a client's own line lower ids go first. One that waits there already goes on doing so.
  // Errors: std::bad_alloc, and nothing has changed.
  void Add(uint64_t id, const std::string& client);
  // One that had begun before; of those the lowest age goes first. Requires: an age that none of them has.
  void AddFirst(uint64_t id, uint64_t age);
  // Whose turn it is; none: nobody waits.
  std::optional<uint64_t> Next() const;
  // Takes one out, wherever it is; where it was the next one, its client's turn is over. False: it is not there.
  bool Remove(uint64_t id);
  void Clear();

  bool empty() const { return size() == 0; }
  size_t size() const { return client_of_.size() + begun_.size(); }
  size_t size_of(const std::string& client) const;
  // Why these jobs, all of one client, cannot be added: kFull, kFullForClient, or kNone where they can.
  Refusal Check(const std::vector<Job>& jobs, int64_t most, int64_t most_per_client) const;

 private:
  struct Line {
    std::set<uint64_t> ids;
    std::list<std::string>::iterator turn;
  };
  std::map<uint64_t, uint64_t> begun_;  // ids by age; as few as have places
  std::list<std::string> turns_;        // clients that wait; the first one is next
  std::map<std::string, Line> lines_;
  std::unordered_map<uint64_t, std::map<std::string, Line>::iterator> client_of_;
};

}  // namespace stoch::serve
