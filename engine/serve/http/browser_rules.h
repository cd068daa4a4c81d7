// SPDX-License-Identifier: Apache-2.0
// What pages in somebody's browser may ask of a server that this browser reaches: nothing, unless the options say so.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/serve/http/connection.h"

namespace stoch::serve {

struct BrowserOptions {
  // A page of another host whose name was made to lead here (DNS rebinding) says its own name in Host. Addresses and
  // localhost always pass, and so does a request that names no host.
  enum class HostCheck { kNever, kOnLoopback, kAlways };
  HostCheck check_host = HostCheck::kNever;
  std::vector<std::string> allowed_hosts;  // names, without a port
  // Origins ("https://app.example") whose pages may read answers; "*": all of them. None: only pages of this server.
  std::vector<std::string> cors_origins;
};

// Threads: safe.
class BrowserRules {
 public:
  // on_loopback: only this machine reaches the server, and so do pages in its browsers.
  BrowserRules(BrowserOptions options, bool on_loopback);

  // The answer to a request that is not for the handler: one of a page that may not ask (403), a body of a page that is
  // not declared as JSON, which a browser sends without asking first (415), and what browsers ask first (204).
  std::optional<HttpResponse> Answer(const HttpRequest& request) const;
  // To be added to whatever answers it.
  HttpHeaders Headers(const HttpRequest& request) const;

 private:
  bool AllowsHost(const std::string& host) const;
  bool AllowsOrigin(const HttpRequest& request) const;

  BrowserOptions options_;
  bool checks_host_ = false;
  bool any_origin_ = false;
};

}  // namespace stoch::serve
