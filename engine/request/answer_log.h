// SPDX-License-Identifier: Apache-2.0
// Keeps what streamed answers brought where it outlives the process, so that a client can take its stream up again.
//
// An answer is kept from Commit on, until some minutes after its end or its client's leaving. What its jobs bring is
// written pass by pass, before the jobs are told (Job::kept), and counts from Commit on too. Whoever takes an answer over
// goes on from what is kept; jobs of earlier runs write nothing from then on, so nothing is ever there twice.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request/job_runner.h"

namespace stoch::serve {

// Threads: any, several at once. No call throws: where the log cannot be kept, it is lost, and answers go on without.
class AnswerLog {
 public:
  struct Update {
    size_t choice = 0;
    JobUpdate update;
  };
  // Who may ask for an answer: its id, and the digest of the key that made it ("" where the server has none).
  struct Name {
    std::string id;
    std::string owner;
    bool operator==(const Name&) const = default;
  };
  struct Kept {
    AnswerKey key;
    std::string request;          // of Commit
    std::vector<Update> updates;  // in the order in which they came
    // More may have been told to a client than these: they come again, but of several choices in any order.
    bool torn = false;
  };
  struct Entry {
    KeptAs as;
    const JobUpdate* update = nullptr;
  };

  virtual ~AnswerLog() = default;

  // A new answer, for its jobs.
  // Requires: an id that nobody can guess, and that no other answer has.
  // Returns: a key with number 0 where the log is lost, or has no place for it.
  virtual AnswerKey Begin(const Name& name) = 0;
  // It is kept from here on, with `request` to go on from. Before anybody hears of the answer; its jobs may run already.
  virtual void Commit(const AnswerKey& answer, const std::string& request) = 0;
  // What one pass brought: all of it is kept, or nothing.
  virtual void Write(std::span<const Entry> entries) = 0;
  // It never began.
  virtual void Forget(const AnswerKey& answer) = 0;
  // A kept answer that makes no sense is forgotten, and that is logged.
  virtual void Drop(const AnswerKey& answer, const std::string& why) = 0;
  // All of the answer is there.
  virtual void End(const AnswerKey& answer) = 0;
  // Its client is gone: nobody goes on with it unless somebody asks for it.
  virtual void Leave(const AnswerKey& answer) = 0;
  // The request of Commit, while whoever runs the answer goes on; none where TakeOver would have none.
  virtual std::optional<std::string> RequestOf(const Name& name) = 0;
  // What there is of an answer, for a new run of it; none where it is not kept, or is somebody else's.
  virtual std::optional<Kept> TakeOver(const Name& name) = 0;
  // Answers that ran when the process before this one ended.
  virtual std::vector<Name> Unfinished() = 0;
  virtual bool lost() const = 0;
};

}  // namespace stoch::serve
