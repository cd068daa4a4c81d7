// SPDX-License-Identifier: Apache-2.0
// Ranks on the same host, watched as processes: MPI hears nothing of one that is killed next to it, where messages go through
// shared memory, and it is the launcher that ends a job.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/decoder/rank_link.h"

namespace stoch {

// Number of the protocol, the messages of ranks and their order. The first text of each rank names it.
inline constexpr int64_t kRankProtocol = 6;

class RankPeers {
 public:
  // Tells every other rank its protocol and where this one runs, and hears it of them, so that all ranks make one at the
  // same time. Keeps processes of the same boot, name of the host and process namespace, as `proc` says them.
  // Errors: LostRank alone, also for a rank of another protocol.
  RankPeers(RankLink& link, const std::string& host, const std::filesystem::path& proc = "/proc");
  ~RankPeers();
  RankPeers(const RankPeers&) = delete;
  RankPeers& operator=(const RankPeers&) = delete;

  // Ranks that are watched: none where the kernel has no descriptors of processes (Linux 5.3), or does not say its boot
  // and process namespace.
  size_t count() const { return peers_.size(); }
  // One of them that has ended, waited for by its parent or not. Never waits. Threads: any.
  std::optional<int> Ended() const;

 private:
  struct Peer {
    int rank = 0;
    int process = -1;  // pidfd; -1: it had ended before
  };
  std::vector<Peer> peers_;
};

}  // namespace stoch
