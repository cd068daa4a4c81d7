// SPDX-License-Identifier: Apache-2.0
#include "tests/serve/journal/kept_streams.h"

#include <stdexcept>

namespace stoch::test {

using Json = nlohmann::json;

std::string StreamId(const std::string& head) {
  const std::string name = "\r\nX-Stream-Id: ";
  const size_t at = head.find(name);
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size();
  return head.substr(begin, head.find('\r', begin) - begin);
}

int KeptStream::Read(uint16_t port, size_t most_events, const std::map<std::string, std::string>& headers) {
  int status = 0;
  try {
    HttpClient client(port);
    std::string text = begun_ ? "GET /v1/streams/" + id_ : "POST /v1/completions";
    text += " HTTP/1.0\r\n";  // no chunks around the events
    if (!events_.empty()) text += "Last-Event-ID: " + id_ + ":" + std::to_string(events_.size() - 1) + "\r\n";
    for (const auto& [name, value] : headers) text += name + ": " + value + "\r\n";
    const std::string body = begun_ ? "" : body_.dump();
    client.SendRaw(text + "X-Request-Id: " + name_ + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
                   body);
    std::string received = client.ReadUntil("\r\n\r\n");
    status = std::stoi(received.substr(received.find(' ')));
    if (status != 200) return status;
    begun_ = true;
    if (id_.empty()) id_ = StreamId(received);
    taken_up_ += events_.empty() || done() ? 0 : 1;
    received.erase(0, received.find("\r\n\r\n") + 4);
    while (!done()) {
      for (size_t end = 0; (end = received.find("\n\n")) != std::string::npos; received.erase(0, end + 2)) {
        if (most_events == 0) return status;
        if (Take(received.substr(0, end))) --most_events;
      }
      if (most_events == 0) return status;
      if (!done()) received += client.ReadUntil("\n");
    }
  } catch (const std::runtime_error&) {  // the server is gone, or cut the connection
  }
  return status;
}

// Returns: whether it is an event that is part of the answer.
bool KeptStream::Take(const std::string& event) {
  if (id_.empty() && event.starts_with("id: ")) id_ = event.substr(4, event.find(':', 4) - 4);  // one that is not kept
  const size_t at = event.find("id: " + id_ + ":");
  const size_t data = event.find("\ndata: ");
  if (at == std::string::npos || data == std::string::npos) return false;  // ": ping"
  const size_t number = std::stoul(event.substr(at + 5 + id_.size()));
  const std::string text = event.substr(data + 7);
  // What stands at the place of the event before it only says that the connection ends.
  if (number + 1 == events_.size()) throw std::runtime_error(text);
  if (number != events_.size()) disorder_ += " " + std::to_string(number) + " after " + std::to_string(events_.size());
  events_.push_back(text);
  return true;
}

std::vector<std::string> KeptStream::Events() const {
  std::vector<std::string> events;
  for (const std::string& event : events_) {
    if (event == "[DONE]") {
      events.push_back(event);
      continue;
    }
    Json json = Json::parse(event);
    json.erase("created");
    json.erase("id");
    json.erase("system_fingerprint");  // not known at first
    events.push_back(json.dump());
  }
  return events;
}

}  // namespace stoch::test
