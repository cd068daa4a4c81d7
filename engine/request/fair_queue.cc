// SPDX-License-Identifier: Apache-2.0
#include "engine/request/fair_queue.h"

namespace stoch::serve {

void FairQueue::Add(uint64_t id, const std::string& client) {
  const auto [line, is_new] = lines_.try_emplace(client);
  try {
    if (is_new) line->second.turn = turns_.insert(turns_.end(), client);
    line->second.ids.insert(id);
    client_of_.emplace(id, line);
  } catch (...) {
    line->second.ids.erase(id);
    if (line->second.ids.empty()) {
      if (!turns_.empty() && turns_.back() == client) turns_.pop_back();
      lines_.erase(line);
    }
    throw;
  }
}

void FairQueue::AddFirst(uint64_t id, uint64_t age) { begun_.emplace(age, id); }

std::optional<uint64_t> FairQueue::Next() const {
  if (!begun_.empty()) return begun_.begin()->second;
  if (turns_.empty()) return std::nullopt;
  return *lines_.at(turns_.front()).ids.begin();
}

bool FairQueue::Remove(uint64_t id) {
  if (std::erase_if(begun_, [id](const auto& entry) { return entry.second == id; }) > 0) return true;
  const auto found = client_of_.find(id);
  if (found == client_of_.end()) return false;
  const auto line = found->second;
  const bool was_next = line->second.turn == turns_.begin() && *line->second.ids.begin() == id;
  client_of_.erase(found);
  line->second.ids.erase(id);
  if (line->second.ids.empty()) {
    turns_.erase(line->second.turn);
    lines_.erase(line);
  } else if (was_next) {
    turns_.splice(turns_.end(), turns_, line->second.turn);
  }
  return true;
}

void FairQueue::Clear() {
  begun_.clear();
  turns_.clear();
  client_of_.clear();
  lines_.clear();
}

Refusal FairQueue::Check(const std::vector<Job>& jobs, int64_t most, int64_t most_per_client) const {
  if (static_cast<int64_t>(size() + jobs.size()) > most) return Refusal::kFull;
  const size_t own = jobs.empty() ? 0 : size_of(jobs.front().client);
  return static_cast<int64_t>(own + jobs.size()) > most_per_client ? Refusal::kFullForClient : Refusal::kNone;
}

size_t FairQueue::size_of(const std::string& client) const {
  const auto found = lines_.find(client);
  return found == lines_.end() ? 0 : found->second.ids.size();
}

}  // namespace stoch::serve
