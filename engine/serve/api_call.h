// SPDX-License-Identifier: Apache-2.0
// One request on its way through the endpoints. Internal to the API.
#pragma once

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "engine/serve/api.h"
#include "engine/serve/completion_exchange.h"
#include "engine/serve/format/completion_response.h"
#include "engine/serve/http/request_error.h"
#include "loader/bounded_json.h"

namespace stoch::serve {

struct Api::Call {
  HttpRequest request;
  std::shared_ptr<Connection> connection;
  std::string id;     // for logs, and sent back
  std::string owner;  // digest of its key, "" where none is asked for

  Client client() const { return {connection, id, owner, request.address}; }

  // lists: their limits.
  ReleasedJson<SortedJson> TakeBody(const JsonEntryCheck& lists = nullptr) {
    const BodyLease memory = std::move(request.memory);  // free for others before there is an answer
    return {Take<SortedJson>(ConsumeBoundedJson, lists)};
  }
  // With the members of objects in order. What it has of the memory for bodies stays the request's.
  ReleasedJson<OrderedJson> TakeOrderedBody(const JsonEntryCheck& lists = nullptr) {
    return {Take<OrderedJson>(ConsumeOrderedJson, lists)};
  }

  std::shared_ptr<Exchange> Send(OrderedJson body) {
    connection->Send({200, "application/json", Dump(std::move(body)), {{"X-Request-Id", id}}});
    return nullptr;
  }

 private:
  template <class Document, class Consume>
  Document Take(const Consume& consume, const JsonEntryCheck& lists) {
    constexpr int kMaxDepth = 32;
    constexpr int64_t kMaxBytes = int64_t{10} << 20;  // of memory that a body may take as a document
    std::string text = std::exchange(request.body, {});
    const int64_t most = std::max(kMaxBytes, 2 * static_cast<int64_t>(text.size()));  // whatever --max-body lets in
    return consume(std::move(text), "the request body", kMaxDepth, kMaxJsonFileValues, most, lists);
  }
};

inline const Tokenizer& RequireTokenizer(const ModelFacts& model) {
  constexpr int kNotFound = 404;
  if (model.tokenizer == nullptr) throw RequestError(kNotFound, "", "the model " + model.id + " has no tokenizer");
  return *model.tokenizer;
}

}  // namespace stoch::serve
