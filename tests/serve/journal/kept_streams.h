// SPDX-License-Identifier: Apache-2.0
// A client that takes its stream up again where it broke off, and remembers every event.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/serve/http_client.h"

namespace stoch::test {

// What the head of an answer calls its stream, "" where it is not kept.
std::string StreamId(const std::string& head);

class KeptStream {
 public:
  // name: X-Request-Id of the request, a completion.
  KeptStream(std::string name, nlohmann::json body) : name_(std::move(name)), body_(std::move(body)) {
    body_["stream"] = true;
  }

  // Asks, or asks again, and reads until the connection ends, or until some events have come.
  // Returns: the status; 0 where there was none.
  int Read(uint16_t port, size_t most_events = SIZE_MAX, const std::map<std::string, std::string>& headers = {});

  const std::string& id() const { return id_; }  // "" until its answer has a head
  bool done() const { return !events_.empty() && events_.back() == "[DONE]"; }
  // Data of all events, in order; what differs between two runs of a request ("created") is left out.
  std::vector<std::string> Events() const;
  // How often it was taken up in its middle.
  int taken_up() const { return taken_up_; }
  // What was wrong with the numbers of events: one missing, doubled or out of order.
  const std::string& disorder() const { return disorder_; }

 private:
  bool Take(const std::string& event);

  const std::string name_;
  std::string id_;
  nlohmann::json body_;
  bool begun_ = false;  // its answer has a head: it is to be taken up, never asked for again
  std::vector<std::string> events_;
  std::string disorder_;
  int taken_up_ = 0;
};

}  // namespace stoch::test
