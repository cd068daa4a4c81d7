// SPDX-License-Identifier: Apache-2.0
// libstoch_mpi.so with faults: hands every call on to the module that STOCH_TEST_MPI names, and changes the messages of
// rank STOCH_TEST_MPI_RANK, as STOCH_TEST_MPI_FAULT says, from the STOCH_TEST_MPI_FIRST-th with rows on.
//
//   flip    the lowest bit of the last number arrives as another one
//   repeat  what was sent before is sent again in place of what comes next
//   silent  nothing is sent any more
//   half    rows that are sent to it begin to arrive, and that is all
//   stuck   the call that sends them does not return
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/ranks/mpi/module.h"

namespace {

// With rows of a residual stream; notes are shorter.
constexpr size_t kLeastBytes = 200;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

const StochMpiModule& Real() {
  static const StochMpiModule* const module = [] {
    void* handle = dlopen(Variable("STOCH_TEST_MPI").c_str(), RTLD_NOW | RTLD_GLOBAL);
    auto* entry =
        handle == nullptr ? nullptr : reinterpret_cast<const StochMpiModule* (*)()>(dlsym(handle, "stoch_mpi_module"));
    if (entry == nullptr) {
      std::fprintf(stderr, "faulty_mpi: STOCH_TEST_MPI: %s\n", dlerror());
      std::abort();
    }
    return entry();
  }();
  return *module;
}

struct Faults {
  bool is_here = false;
  std::string kind = Variable("STOCH_TEST_MPI_FAULT");
  int first = std::atoi(Variable("STOCH_TEST_MPI_FIRST").c_str());
  int seen = 0;             // messages with rows
  bool takes_rows = false;  // what it takes has some
  std::vector<char> last;
};
Faults& TheFaults() {
  static Faults faults;
  return faults;
}

int32_t Open(int32_t* rank, int32_t* count, char* host, size_t host_bytes) {
  const int32_t code = Real().open(rank, count, host, host_bytes);
  TheFaults().is_here = Variable("STOCH_TEST_MPI_RANK") == std::to_string(*rank);
  return code;
}

int32_t Send(int32_t to, const void* message, size_t bytes) {
  Faults& faults = TheFaults();
  const bool has_rows = bytes >= kLeastBytes;
  if (!faults.is_here) return Real().send(to, message, bytes);
  if (has_rows) ++faults.seen;
  const bool begins = has_rows && faults.seen == faults.first;
  if (faults.kind == "silent" && faults.seen >= faults.first) return 0;
  std::vector<char> copy(static_cast<const char*>(message), static_cast<const char*>(message) + bytes);
  while (begins && faults.kind == "stuck") pause();
  if (begins && faults.kind == "flip") copy[bytes - sizeof(float)] ^= 1;
  if (begins && faults.kind == "repeat" && !faults.last.empty()) copy = faults.last;
  if (has_rows) faults.last = copy;
  return Real().send(to, copy.data(), copy.size());
}

int32_t Progress(int32_t* unsent) { return Real().progress(unsent); }
int32_t Probe(int32_t from, int32_t* is_there, size_t* bytes) { return Real().probe(from, is_there, bytes); }
int32_t Receive(int32_t from, void* message, size_t bytes) {
  TheFaults().takes_rows = bytes >= kLeastBytes;
  return Real().receive(from, message, bytes);
}
int32_t Received(int32_t* is_there) {
  const Faults& faults = TheFaults();
  *is_there = 0;
  if (faults.is_here && faults.kind == "half" && faults.seen >= faults.first && faults.takes_rows) return 0;
  return Real().received(is_there);
}
int32_t Close() { return Real().close(); }
void EndAll(int32_t exit_code) { Real().end_all(exit_code); }
const char* Error(int32_t code) { return Real().error(code); }

}  // namespace

extern "C" const StochMpiModule* stoch_mpi_module() {
  static const StochMpiModule module = {
      STOCH_MPI_MODULE_VERSION, Open, Send, Progress, Probe, Receive, Received, Close, EndAll, Error};
  return &module;
}
