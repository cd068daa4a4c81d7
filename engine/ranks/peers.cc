// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/peers.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "loader/bounded_json.h"
#include "loader/json_text.h"

namespace stoch {
namespace {

// Where process numbers mean the same; "" where that is not known.
std::string SystemName(const std::filesystem::path& proc, const std::string& host) {
  std::string boot;
  std::ifstream(proc / "sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  const std::string processes = std::filesystem::read_symlink(proc / "self/ns/pid", error).string();
  return boot.empty() || processes.empty() ? "" : boot + " " + processes + " " + host;
}

struct Place {
  std::string system;
  int64_t pid = 0;
};

// Errors: LostRank.
Place PlaceOf(const std::string& text, int rank) {
  const auto check_protocol = [rank](const std::string& spoken) {
    const std::string own = std::to_string(kRankProtocol);
    if (spoken != own) throw LostRank(rank, "speaks protocol " + spoken + ", this rank " + own + ": another commit");
  };
  if (!text.starts_with('{')) check_protocol("5");  // the one that began with the name of its system
  try {
    const nlohmann::json json = ParseBoundedJson(text, "what it says");
    check_protocol(json.at("protocol").dump());
    Place place{json.at("system").get<std::string>(), json.at("process").get<int64_t>()};
    if (place.pid >= 1 && place.pid <= std::numeric_limits<pid_t>::max()) return place;
    throw LostRank(rank, "says a process that cannot be");
  } catch (const LostRank&) {
    throw;
  } catch (const std::exception& error) {
    throw LostRank(rank, std::string("its first text cannot be read: ") + error.what());
  }
}

}  // namespace

RankPeers::RankPeers(RankLink& link, const std::string& host, const std::filesystem::path& proc) {
  const std::string here = SystemName(proc, host);
  const nlohmann::ordered_json own = {{"protocol", kRankProtocol}, {"system", here}, {"process", getpid()}};
  const std::string text = JsonText(own);
  for (int to = 0; to < link.count(); ++to) {
    if (to != link.rank()) SendText(link, to, text);
  }
  for (int from = 0; from < link.count(); ++from) {
    if (from == link.rank()) continue;
    const Place place = PlaceOf(TakeText(link, from, RankLink::Wait::kOpening), from);
    if (here.empty() || place.system != here) continue;
    // By its number: glibc has a function of that name from 2.36 on.
    const auto process = static_cast<int>(syscall(SYS_pidfd_open, place.pid, 0));
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
