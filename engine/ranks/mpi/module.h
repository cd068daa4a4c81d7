// SPDX-License-Identifier: Apache-2.0
// The interface of libstoch_mpi.so: MPI without its headers, whose ABI differs between implementations. One file of C++, so
// that a cluster builds it alone against its own MPI.
//
// One thread at a time calls them. Functions return 0, or an error that `error` describes.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STOCH_MPI_MODULE_VERSION 3

struct StochMpiModule {
  int32_t version;  // STOCH_MPI_MODULE_VERSION
  // Begins MPI; which rank this process is, of how many, and its host's name (at most `host_bytes` with the final 0).
  int32_t (*open)(int32_t* rank, int32_t* count, char* host, size_t host_bytes);
  // Copies the message, and returns before it has arrived.
  int32_t (*send)(int32_t to, const void* message, size_t bytes);
  // Lets messages on their way get on, and tells how many of those that were sent MPI still reads. Never waits.
  int32_t (*progress)(int32_t* unsent);
  // Whether a message of that rank is there, and its size. Never waits; lets messages on their way get on.
  int32_t (*probe)(int32_t from, int32_t* is_there, size_t* bytes);
  // Begins to take it. Requires: probe said that it is there, with this size, and the last one has arrived. `message` is
  // kept until it has.
  int32_t (*receive)(int32_t from, void* message, size_t bytes);
  // Whether that message has arrived, all of it: a large one travels on only now. Never waits.
  int32_t (*received)(int32_t* is_there);
  // Waits until what was sent is on its way, and ends MPI.
  int32_t (*close)();
  // Ends the processes of all ranks. May return where a rank cannot be reached.
  void (*end_all)(int32_t exit_code);
  const char* (*error)(int32_t code);
};

const struct StochMpiModule* stoch_mpi_module();

#ifdef __cplusplus
}
#endif
