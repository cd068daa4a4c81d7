// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/http/browser_rules.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "engine/serve/http/request_error.h"
#include "engine/serve/http/tokens.h"

namespace stoch::serve {
namespace {

constexpr int kNoContent = 204;
constexpr int kForbidden = 403;
constexpr int kUnsupportedType = 415;

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
  return text;
}

// Without the port, and the dot that a full name may end in.
std::string NameOf(const std::string& host) {
  const bool bracketed = host.starts_with('[');
  const size_t end = bracketed ? host.find(']') : host.find(':');
  std::string name = Lower(host.substr(bracketed ? 1 : 0, end == std::string::npos ? end : end - (bracketed ? 1 : 0)));
  if (name.ends_with('.')) name.pop_back();
  return name;
}

bool IsAddress(const std::string& name) {
  in6_addr address{};
  return inet_pton(AF_INET, name.c_str(), &address) == 1 || inet_pton(AF_INET6, name.c_str(), &address) == 1;
}

bool IsJson(const std::string& content_type) {
  std::string type = Lower(content_type.substr(0, content_type.find(';')));
  while (!type.empty() && IsBlank(type.back())) type.pop_back();
  return type == "application/json";
}

HttpResponse Refusal(int status, const std::string& message) {
  return {status, "application/json", ErrorText(status, message, ""), {}};
}

}  // namespace

BrowserRules::BrowserRules(BrowserOptions options, bool on_loopback) : options_(std::move(options)) {
  switch (options_.check_host) {
    case BrowserOptions::HostCheck::kNever: break;
    case BrowserOptions::HostCheck::kOnLoopback: checks_host_ = on_loopback; break;
    case BrowserOptions::HostCheck::kAlways: checks_host_ = true; break;
  }
  for (std::string& host : options_.allowed_hosts) host = NameOf(host);
  any_origin_ =
      std::find(options_.cors_origins.begin(), options_.cors_origins.end(), "*") != options_.cors_origins.end();
}

bool BrowserRules::AllowsHost(const std::string& host) const {
  const std::string name = NameOf(host);
  if (!checks_host_ || name.empty() || name == "localhost" || name.ends_with(".localhost") || IsAddress(name)) {
    return true;
  }
  return std::find(options_.allowed_hosts.begin(), options_.allowed_hosts.end(), name) != options_.allowed_hosts.end();
}

bool BrowserRules::AllowsOrigin(const HttpRequest& request) const {
  if (!request.origin) return false;
  return any_origin_ || std::find(options_.cors_origins.begin(), options_.cors_origins.end(), *request.origin) !=
                            options_.cors_origins.end();
}

std::optional<HttpResponse> BrowserRules::Answer(const HttpRequest& request) const {
  if (!AllowsHost(request.host)) {
    return Refusal(kForbidden, "this server does not know itself by the name in Host (--allowed-host NAME)");
  }
  if (request.method == "OPTIONS" && !request.asked_method.empty() && AllowsOrigin(request)) {
    return HttpResponse{kNoContent,
                        "",
                        "",
                        {{"Access-Control-Allow-Methods", "GET, POST"},
                         // The star is for all but this one.
                         {"Access-Control-Allow-Headers", "*, Authorization"},
                         {"Access-Control-Max-Age", "86400"}}};
  }
  if (request.origin && request.method == "POST" && !IsJson(request.content_type)) {
    return Refusal(kUnsupportedType, "expected Content-Type: application/json, as from any page of a browser");
  }
  return std::nullopt;
}

HttpHeaders BrowserRules::Headers(const HttpRequest& request) const {
  if (options_.cors_origins.empty()) return {};
  HttpHeaders headers;
  if (!any_origin_) headers.emplace_back("Vary", "Origin");
  if (!AllowsOrigin(request)) return headers;
  headers.emplace_back("Access-Control-Allow-Origin", any_origin_ ? "*" : *request.origin);
  headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  return headers;
}

}  // namespace stoch::serve
