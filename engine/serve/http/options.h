// SPDX-License-Identifier: Apache-2.0
// Where the HTTP front listens, and the limits it holds clients to.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/serve/http/browser_rules.h"

namespace stoch::serve {

struct HttpOptions {
  std::string host = "127.0.0.1";  // an address, a name, or "unix:PATH", for which no port is read
  uint16_t port = 8080;            // 0 = any free one
  int listening_fd = -1;           // a socket that listens already, which host and port are not read for; -1: none
  int io_threads = 2;              // sockets, and the handler of requests that are always answered at once
  int api_threads = 4;             // every other call of the handler, and what is posted to connections
  // For one more the connection is closed that has waited longest for a request to come. If none of them waits, a few more
  // are accepted to be told 503, or to hear what `always` answers.
  int64_t max_connections = 4096;
  uint32_t max_header_bytes = 16 << 10;
  uint64_t max_body_bytes = 5 << 20;
  int64_t max_bodies_bytes = 256 << 20;  // of the bodies of all requests, until they have been read
  // Events a client has not read yet; one that lags further behind is disconnected.
  size_t max_backlog_bytes = 4 << 20;
  std::chrono::milliseconds first_byte_timeout{10'000};  // of a new connection
  std::chrono::milliseconds idle_timeout{75'000};        // between requests
  std::chrono::milliseconds request_timeout{30'000};     // from a request's first byte to its last
  std::chrono::milliseconds write_timeout{30'000};       // without the client reading a byte
  std::chrono::milliseconds ping_interval{15'000};       // of a stream that has nothing to say
  BrowserOptions browsers;
};

}  // namespace stoch::serve
