// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/peers.h"

#include <poll.h>
#include <unistd.h>

extern "C" {  // glibc 2.36 forgets to say so
#include <sys/pidfd.h>
}

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>

namespace stoch {
namespace {

// Where process numbers mean the same.
std::string SystemName(const std::string& host) {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/pid", error).string() + " " + host;
}

}  // namespace

RankPeers::RankPeers(RankLink& link, const std::string& host) {
  const std::string here = SystemName(host) + " ";
  for (int to = 0; to < link.count(); ++to) {
    if (to != link.rank()) SendText(link, to, here + std::to_string(getpid()));
  }
  for (int from = 0; from < link.count(); ++from) {
    if (from == link.rank()) continue;
    const std::string place = TakeText(link, from, RankLink::Wait::kOpening);
    if (!place.starts_with(here)) continue;
    pid_t pid = 0;
    const char* const end = place.data() + place.size();
    const auto [parsed, error] = std::from_chars(place.data() + here.size(), end, pid);
    if (error != std::errc() || parsed != end || pid < 1) throw LostRank(from, "says a process that cannot be");
    const int process = pidfd_open(pid, 0);
    if (process >= 0 || errno == ESRCH) peers_.push_back({from, process});
  }
}

RankPeers::~RankPeers() {
  for (const Peer& peer : peers_) {
    if (peer.process >= 0) close(peer.process);
  }
}

std::optional<int> RankPeers::Ended() const {
  for (const Peer& peer : peers_) {
    pollfd process{peer.process, POLLIN, 0};
    if (peer.process < 0 || poll(&process, 1, 0) > 0) return peer.rank;
  }
  return std::nullopt;
}

}  // namespace stoch
