// SPDX-License-Identifier: Apache-2.0
// Any bytes of a connection are the same requests however they are cut into pieces, take no more memory than their limits
// say, and give all of it back; what is no HTTP is refused with a status of 4xx or 5xx. Hosts and origins of what is
// accepted get an answer, too.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/serve/http/browser_rules.h"
#include "engine/serve/http/request_error.h"
#include "engine/serve/http/request_reader.h"
#include "tests/fuzz/try.h"

namespace {

using namespace stoch;
using serve::RequestReader;
using test::Check;

constexpr size_t kHeaderBytes = 512;
constexpr uint64_t kBodyBytes = 4096;
constexpr int64_t kBudgetBytes = 6000;

struct Request {
  std::string method, path, host, body;
  bool operator==(const Request&) const = default;
};

struct Outcome {
  std::vector<Request> requests;
  int status = 0;   // of the refusal; 0: none
  size_t used = 0;  // bytes of requests that are complete, and of the one that is not
  bool operator==(const Outcome&) const = default;
};

void CheckBrowserRules(const serve::HttpRequest& request) {
  static const serve::BrowserRules kRules(
      {serve::BrowserOptions::HostCheck::kAlways, {"stoch.example"}, {"https://app.example"}}, true);
  if (const std::optional<serve::HttpResponse> answer = kRules.Answer(request)) Check(answer->status >= 200);
  for (const auto& [name, value] : kRules.Headers(request)) Check(value.find_first_of("\r\n") == std::string::npos);
}

// piece: bytes at a time; 0: as many as the bytes themselves say.
Outcome Read(std::string_view bytes, size_t piece) {
  Outcome outcome;
  serve::BodyBudget budget(kBudgetBytes);
  try {
    while (outcome.used < bytes.size()) {
      RequestReader reader({kHeaderBytes, kBodyBytes}, budget);
      while (outcome.used < bytes.size() && reader.stage() != RequestReader::Stage::kDone) {
        const std::string_view rest = bytes.substr(outcome.used);
        const size_t next = piece != 0 ? piece : size_t{1} + static_cast<unsigned char>(rest.front()) % 16;
        const RequestReader::Stage before = reader.stage();
        const size_t used = reader.Read(rest.substr(0, next));
        Check(used == std::min(next, rest.size()) || reader.stage() != before);
        outcome.used += used;
        Check(reader.request().body.size() <= kBodyBytes);
        Check(budget.left() >= 0);
      }
      if (reader.stage() == RequestReader::Stage::kHead) break;
      serve::HttpRequest& request = reader.request();
      Check(!request.method.empty() && !request.path.empty());
      CheckBrowserRules(request);
      if (reader.stage() != RequestReader::Stage::kDone) break;
      outcome.requests.push_back({request.method, request.path, request.host, request.body});
    }
  } catch (const serve::RequestError& error) {
    outcome.status = error.status();
    outcome.used = 0;  // a refusal may come at any byte of a line
    Check(error.status() >= 400 && error.status() < 600);
  }
  Check(budget.left() == kBudgetBytes);
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Outcome whole = Read(bytes, std::max<size_t>(1, size));
  Check(Read(bytes, 1) == whole);
  Check(Read(bytes, 0) == whole);
  return 0;
}
