// SPDX-License-Identifier: Apache-2.0
// Two ranks: rank 0 sends a message of 8 MiB, as rows of a prompt have, and computes on for two seconds without another call.
// Rank 1 takes it. Each prints when it was done, by the clock of their host: "sender 1234" and "taker 1234", milliseconds.
//   mpirun -n 2 busy_sender FOLDER    FOLDER: of libstoch_mpi.so
#include <cstdio>
#include <filesystem>
#include <thread>

#include "engine/ranks/mpi/mpi_link.h"

namespace stoch::test {
namespace {

constexpr size_t kBytes = size_t{8} << 20;
constexpr std::chrono::seconds kComputes(2), kLimit(60);

void Say(const char* who) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  std::printf("%s %lld\n", who,
              static_cast<long long>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()));
  std::fflush(stdout);
}

void Take(MpiLink& link, int from, size_t bytes) {
  if (!link.WaitFor(from, bytes, kLimit)) throw LostRank(from, "sends nothing");
  (void)link.Take(from);
}

void Run(const std::filesystem::path& folder) {
  MpiLink link({&folder, 1}, {kLimit, kLimit, kLimit});
  const std::vector<std::byte> small(1), large(kBytes);
  if (link.rank() == 0) {
    Take(link, 1, small.size());  // it is there
    link.Send(1, large);
    std::this_thread::sleep_for(kComputes);
    Say("sender");
  } else {
    link.Send(0, small);
    Take(link, 0, large.size());
    Say("taker");
  }
}

}  // namespace
}  // namespace stoch::test

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    stoch::test::Run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "busy_sender: %s\n", error.what());
    return 1;
  }
  return 0;
}
