// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/mpi/module.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstring>
#include <list>
#include <thread>
#include <vector>

namespace {

constexpr int kTag = 1;
constexpr int32_t kTooLong = -1, kNotThreaded = -2;  // of our own; those of MPI are positive

// Messages that MPI has not taken yet.
struct Sending {
  MPI_Request request = MPI_REQUEST_NULL;
  std::vector<char> message;
};
std::list<Sending>& AllSending() {
  static std::list<Sending> sending;
  return sending;
}

int32_t DropSent() {
  std::list<Sending>& sending = AllSending();
  for (auto it = sending.begin(); it != sending.end();) {
    int is_sent = 0;
    if (const int code = MPI_Test(&it->request, &is_sent, MPI_STATUS_IGNORE); code != MPI_SUCCESS) return code;
    it = is_sent != 0 ? sending.erase(it) : std::next(it);
  }
  return 0;
}

int32_t Open(int32_t* rank, int32_t* count, char* host, size_t host_bytes) {
  int provided = 0;
  if (const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided); code != MPI_SUCCESS)
    return code;
  if (provided < MPI_THREAD_SERIALIZED) return kNotThreaded;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, count);
  std::vector<char> name(MPI_MAX_PROCESSOR_NAME + 1, '\0');
  int size = 0;
  MPI_Get_processor_name(name.data(), &size);
  std::strncpy(host, name.data(), host_bytes - 1);
  host[host_bytes - 1] = '\0';
  return 0;
}

int32_t Send(int32_t to, const void* message, size_t bytes) {
  if (bytes > INT_MAX) return kTooLong;
  if (const int32_t code = DropSent(); code != 0) return code;
  Sending& sending = AllSending().emplace_back();
  const char* begin = static_cast<const char*>(message);
  sending.message.assign(begin, begin + bytes);
  return MPI_Isend(sending.message.data(), static_cast<int>(bytes), MPI_BYTE, to, kTag, MPI_COMM_WORLD,
                   &sending.request);
}

int32_t Progress(int32_t* unsent) {
  const int32_t code = DropSent();
  *unsent = static_cast<int32_t>(AllSending().size());
  return code;
}

int32_t Probe(int32_t from, int32_t* is_there, size_t* bytes) {
  if (const int32_t code = DropSent(); code != 0) return code;
  int found = 0, count = 0;
  MPI_Status status;
  if (const int code = MPI_Iprobe(from, kTag, MPI_COMM_WORLD, &found, &status); code != MPI_SUCCESS) return code;
  if (found != 0) MPI_Get_count(&status, MPI_BYTE, &count);
  *is_there = found;
  *bytes = static_cast<size_t>(std::max(count, 0));
  return 0;
}

MPI_Request& Receiving() {
  static MPI_Request request = MPI_REQUEST_NULL;
  return request;
}

int32_t Receive(int32_t from, void* message, size_t bytes) {
  return MPI_Irecv(message, static_cast<int>(bytes), MPI_BYTE, from, kTag, MPI_COMM_WORLD, &Receiving());
}

int32_t Received(int32_t* is_there) {
  int found = 0;
  if (const int code = MPI_Test(&Receiving(), &found, MPI_STATUS_IGNORE); code != MPI_SUCCESS) return code;
  *is_there = found;
  return 0;
}

// MPI_Finalize of MPICH 4.0.2 over UCX asks every rank over TCP whether all has arrived, and stops to answer others once it has
// its own answers: a rank that asks later waits for ever. No rank asks later where all of them have asked before they take
// another message, so none may take one between the barrier and MPI_Finalize, while others are on their way out of it.
void LeaveTogether() {
#ifdef MPICH
  constexpr std::chrono::milliseconds kAllHaveLeft(200);
  MPI_Barrier(MPI_COMM_WORLD);
  std::this_thread::sleep_for(kAllHaveLeft);
#endif
}

int32_t Close() {
  for (Sending& sending : AllSending()) MPI_Wait(&sending.request, MPI_STATUS_IGNORE);
  AllSending().clear();
  LeaveTogether();
  return MPI_Finalize();
}

void Abort(int32_t exit_code) { MPI_Abort(MPI_COMM_WORLD, exit_code); }

const char* Error(int32_t code) {
  if (code == kTooLong) return "a message of more than 2 GiB";
  if (code == kNotThreaded) return "this MPI takes calls of one thread alone";
  static std::vector<char> text(MPI_MAX_ERROR_STRING + 1, '\0');
  int size = 0;
  MPI_Error_string(code, text.data(), &size);
  return text.data();
}

}  // namespace

extern "C" const StochMpiModule* stoch_mpi_module() {
  static const StochMpiModule module = {
      STOCH_MPI_MODULE_VERSION, Open, Send, Progress, Probe, Receive, Received, Close, Abort, Error};
  return &module;
}
