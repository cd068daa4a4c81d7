// SPDX-License-Identifier: Apache-2.0
// Where one request ends and the next begins (RFC 9112): a proxy in front must read it as this server does. And the
// memory that a request may take before it is understood.

#include <gtest/gtest.h>

#include <random>

#include "engine/serve/http/request_error.h"
#include "engine/serve/http/request_reader.h"
#include "tests/serve/server_fixture.h"

namespace stoch::test {
namespace {

constexpr size_t kHeaderBytes = 2000;
constexpr uint64_t kBodyBytes = 1000;

struct Case {
  const char* name;
  std::string bytes;  // "POST / HTTP/1.1\r\n" comes before it, unless it is whole
  int status;         // 200: accepted
  std::string body;
  bool is_whole = false;
};

std::string TextOf(const Case& framing) { return (framing.is_whole ? "" : "POST / HTTP/1.1\r\n") + framing.bytes; }

const std::string kChunked = "Host: a\r\nTransfer-Encoding: chunked\r\n\r\n";

const std::vector<Case>& Cases() {
  static const std::vector<Case> kCases = {
      {"no body", "Host: a\r\n\r\n", 200, ""},
      {"length", "Host: a\r\nContent-Length: 3\r\n\r\nabc", 200, "abc"},
      {"the same length twice", "Host: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 200, "abc"},
      {"two lengths", "Host: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400, ""},
      {"two lengths in one", "Host: a\r\nContent-Length: 3, 4\r\n\r\nabcd", 400, ""},
      {"a negative length", "Host: a\r\nContent-Length: -3\r\n\r\nabc", 400, ""},
      {"a length with a sign", "Host: a\r\nContent-Length: +3\r\n\r\nabc", 400, ""},
      {"a hexadecimal length", "Host: a\r\nContent-Length: 0x3\r\n\r\nabc", 400, ""},
      {"no length at all", "Host: a\r\nContent-Length:\r\n\r\nabc", 400, ""},
      {"a length beyond 64 bits", "Host: a\r\nContent-Length: 18446744073709551619\r\n\r\nabc", 400, ""},
      {"a length beyond the limit", "Host: a\r\nContent-Length: 1001\r\n\r\n", 413, ""},
      {"the largest length", "Host: a\r\nContent-Length: 18446744073709551615\r\n\r\n", 413, ""},

      {"chunked", kChunked + "3\r\nabc\r\n0\r\n\r\n", 200, "abc"},
      {"Chunked", "Host: a\r\nTransfer-Encoding: Chunked\r\n\r\n1\r\na\r\n00\r\n\r\n", 200, "a"},
      {"several chunks", kChunked + "3\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\n", 200, "abc0123456789"},
      {"extensions", kChunked + "3;a\r\nabc\r\n1 ; b=\"c;d\"\r\nd\r\n0;e\r\n\r\n", 200, "abcd"},
      {"trailers", kChunked + "1\r\na\r\n0\r\nX: y\r\nZ:\r\n\r\n", 200, "a"},
      {"gzip", "Host: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501, ""},
      {"identity", "Host: a\r\nTransfer-Encoding: identity\r\n\r\n", 501, ""},
      {"gzip, chunked", "Host: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, ""},
      {"gzip and chunked", "Host: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501,
       ""},
      {"chunked, gzip", "Host: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 501, ""},
      {"xchunked", "Host: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501, ""},
      {"chunked with a parameter", "Host: a\r\nTransfer-Encoding: chunked;a=b\r\n\r\n0\r\n\r\n", 501, ""},
      {"no coding", "Host: a\r\nTransfer-Encoding:\r\n\r\n0\r\n\r\n", 501, ""},
      {"chunked twice", "Host: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400,
       ""},
      {"both", "Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400, ""},
      {"both the other way", "Host: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, ""},
      {"both, another coding", "Host: a\r\nContent-Length: 5\r\nTransfer-Encoding: gzip\r\n\r\n12345", 400, ""},
      {"chunked in HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "", true},

      {"no size", kChunked + "\r\nabc\r\n0\r\n\r\n", 400, ""},
      {"an extension without a size", kChunked + ";a\r\nabc\r\n0\r\n\r\n", 400, ""},
      {"a size with 0x", kChunked + "0x3\r\nabc\r\n0\r\n\r\n", 400, ""},
      {"a size with a sign", kChunked + "+3\r\nabc\r\n0\r\n\r\n", 400, ""},
      {"a negative size", kChunked + "-1\r\nabc\r\n0\r\n\r\n", 400, ""},
      {"a size and a space", kChunked + "3 \r\nabc\r\n0\r\n\r\n", 400, ""},
      {"a space and a size", kChunked + " 3\r\nabc\r\n0\r\n\r\n", 400, ""},
      {"a size beyond 64 bits", kChunked + "10000000000000003\r\nabc\r\n0\r\n\r\n", 400, ""},
      {"digits without end", kChunked + std::string(5000, '0'), 400, ""},
      {"a size that ends in LF", kChunked + "3\nabc\r\n0\r\n\r\n", 400, ""},
      {"a size that ends in CR", kChunked + "3\rabc\r\n0\r\n\r\n", 400, ""},
      {"a longer chunk", kChunked + "3\r\nabcd\r\n0\r\n\r\n", 400, ""},
      {"a chunk that ends in LF", kChunked + "3\r\nabc\n0\r\n\r\n", 400, ""},
      {"a chunk beyond the limit", kChunked + "3E9\r\n" + std::string(1001, 'x'), 413, ""},
      {"chunks beyond the limit", kChunked + "3E8\r\n" + std::string(1000, 'x') + "\r\n1\r\ny\r\n0\r\n\r\n", 413, ""},
      {"an extension without end", kChunked + "3;" + std::string(5000, 'x'), 400, ""},
      {"a control character", kChunked + "3;a\x01\r\nabc\r\n0\r\n\r\n", 400, ""},
      {"trailers without end", kChunked + "0\r\nX: " + std::string(5000, 'y'), 431, ""},
      {"a trailer without a name", kChunked + "0\r\n: y\r\n\r\n", 400, ""},
      {"a trailer without a colon", kChunked + "0\r\nX\r\n\r\n", 400, ""},
      {"a folded trailer", kChunked + "0\r\nX: y\r\n z\r\n\r\n", 400, ""},

      {"no Host", "\r\n", 400, ""},
      {"two Hosts", "Host: a\r\nHost: a\r\n\r\n", 400, ""},
      {"two Hosts in one", "Host: a, b\r\n\r\n", 400, ""},
      {"a Host with a path", "Host: a/b\r\n\r\n", 400, ""},
      {"a Host with a port", "Host: [::1]:80\r\n\r\n", 200, ""},
      {"an empty Host", "Host:\r\n\r\n", 200, ""},
      {"no Host in HTTP/1.0", "POST / HTTP/1.0\r\n\r\n", 200, "", true},
      {"two Hosts in HTTP/1.0", "POST / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400, "", true},
      {"a folded line", "Host: a\r\nX: y\r\n z\r\n\r\n", 400, ""},
      {"a line folded by a tab", "Host: a\r\nX: y\r\n\tz\r\n\r\n", 400, ""},
      {"a folded start line", " Host: a\r\n\r\n", 400, ""},
      {"a space before the colon", "Host : a\r\n\r\n", 400, ""},
      {"a space before another colon", "Host: a\r\nContent-Length : 3\r\n\r\nabc", 400, ""},
      {"a field without a colon", "Host: a\r\nX\r\n\r\n", 400, ""},
      {"a field without a name", "Host: a\r\n: y\r\n\r\n", 400, ""},
      {"a line that ends in LF", "Host: a\nX: y\r\n\r\n", 400, ""},
      {"a line that ends in CR", "Host: a\rX: y\r\n\r\n", 400, ""},
      {"the header ends in LF", "Host: a\r\n\n", 400, ""},
      {"a null character", std::string("Host: a\r\nX: \0y\r\n\r\n", 18), 400, ""},
      {"an empty line before", "\r\n\r\nPOST / HTTP/1.1\r\nHost: a\r\n\r\n", 200, "", true},
      {"a start line that ends in LF", "POST / HTTP/1.1\nHost: a\r\n\r\n", 400, "", true},
      {"a tab in the start line", "POST\t/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "", true},
      {"two spaces in the start line", "POST  / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "", true},
      {"HTTP/0.9", "POST /\r\n\r\n", 400, "", true},
      {"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "", true},
      {"TLS", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11), 400, "", true},
      {"a start line without end", "POST /" + std::string(5000, 'a'), 431, "", true},
      {"a field without end", "Host: a\r\nX: " + std::string(5000, 'a'), 431, ""},
      {"empty lines without end",
       [] {
         std::string lines;
         for (int i = 0; i < 2000; ++i) lines += "\r\n";
         return lines;
       }(),
       431, "", true},
      {"a GET with a large body", "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 2001\r\n\r\n", 413, "", true},
  };
  return kCases;
}

struct Result {
  int status = 0;  // 0: more is to come
  std::string body;
  size_t used = 0;
};

Result Read(std::string_view bytes, const std::function<size_t()>& piece) {
  serve::BodyBudget budget(1 << 20);
  serve::RequestReader reader({kHeaderBytes, kBodyBytes}, budget);
  Result result;
  try {
    while (result.used < bytes.size() && reader.stage() != serve::RequestReader::Stage::kDone) {
      result.used += reader.Read(bytes.substr(result.used, piece()));
    }
  } catch (const serve::RequestError& error) {
    result.status = error.status();
    return result;
  }
  if (reader.stage() != serve::RequestReader::Stage::kDone) return result;
  result.status = 200;
  result.body = reader.request().body;
  return result;
}

TEST(Framing, IsThatOfTheRfcHoweverTheBytesCome) {
  std::mt19937 random(1);
  for (const Case& framing : Cases()) {
    const std::string text = TextOf(framing);
    const std::function<size_t()> pieces[] = {[] { return std::string::npos; }, [] { return size_t{1}; },
                                              [&] { return size_t{1} + random() % 7; }};
    for (const auto& piece : pieces) {
      const Result result = Read(text, piece);
      EXPECT_EQ(result.status, framing.status) << framing.name;
      EXPECT_EQ(result.body, framing.body) << framing.name;
      if (framing.status == 200) {
        EXPECT_EQ(result.used, text.size()) << framing.name;
      }
    }
  }
}

TEST(Framing, EndsWhereTheNextRequestBegins) {
  for (const Case& framing : Cases()) {
    if (framing.status != 200) continue;
    const std::string text = TextOf(framing);
    const Result result = Read(text + "GET /next HTTP/1.1\r\n", [] { return std::string::npos; });
    EXPECT_EQ(result.status, 200) << framing.name;
    EXPECT_EQ(result.used, text.size()) << framing.name;
    EXPECT_EQ(result.body, framing.body) << framing.name;
  }
}

// Small chunks are allowed: what is between them counts in proportion.
TEST(Framing, SmallChunksAreNoAttack) {
  serve::BodyBudget budget(1 << 20);
  serve::RequestReader reader({kHeaderBytes, 100'000}, budget);
  std::string text = "POST / HTTP/1.1\r\n" + kChunked;
  for (int i = 0; i < 100'000; ++i) text += "1\r\nx\r\n";
  EXPECT_EQ(reader.Read(text), text.find("1\r\nx"));
  text.erase(0, text.find("1\r\nx"));
  EXPECT_EQ(reader.Read(text + "0\r\n\r\n"), text.size() + 5);
  EXPECT_EQ(reader.request().body, std::string(100'000, 'x'));
  // Extensions of a hundred bytes around each byte are one.
  serve::RequestReader other({kHeaderBytes, 100'000}, budget);
  (void)other.Read("POST / HTTP/1.1\r\n" + kChunked);
  text.clear();
  for (int i = 0; i < 100; ++i) text += "1;" + std::string(100, 'e') + "\r\nx\r\n";
  EXPECT_THROW(other.Read(text), serve::RequestError);
}

// What a request takes of the budget is what it has brought, and free when the request is gone.
TEST(Framing, BodiesTakeOfTheBudgetWhatTheyBring) {
  serve::BodyBudget budget(300'000);
  const auto begin = [&] {
    auto reader = std::make_unique<serve::RequestReader>(serve::ReaderLimits{kHeaderBytes, 200'000}, budget);
    (void)reader->Read("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n");
    return reader;
  };
  auto first = begin();
  EXPECT_EQ(budget.left(), 300'000);
  (void)first->Read(std::string(1000, 'x'));
  EXPECT_GT(budget.left(), 280'000);
  (void)first->Read(std::string(199'000, 'x'));
  EXPECT_EQ(budget.left(), 100'000);
  auto second = begin();
  try {
    (void)second->Read(std::string(150'000, 'x'));
    FAIL() << "more than there is";
  } catch (const serve::RequestError& error) {
    EXPECT_EQ(error.status(), 503);
  }
  serve::HttpRequest request = std::move(first->request());
  first.reset();
  second.reset();
  EXPECT_EQ(budget.left(), 100'000);
  { const serve::HttpRequest gone = std::move(request); }
  EXPECT_EQ(budget.left(), 300'000);
}

class FramingOnASocket : public ServerFixture {};

// A request that is refused ends the connection: what follows may be anybody's.
TEST_F(FramingOnASocket, NothingAfterItIsARequest) {
  server_options_.http.max_body_bytes = kBodyBytes;
  server_options_.http.max_header_bytes = kHeaderBytes;
  StartServer();
  for (const Case& framing : Cases()) {
    std::string text = TextOf(framing);
    if (framing.status == 200 && text.find("HTTP/1.0") != std::string::npos) continue;  // ends there by itself
    HttpClient client(port());
    if (const size_t at = text.find(" / "); at != std::string::npos) text.replace(at, 3, " /tokenize ");
    client.SendRaw(text + "GET /version HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    client.EndSending();
    const std::string answer = client.ReadToEnd();
    const bool refused = framing.status != 200;
    EXPECT_EQ(answer.find("\"commit\"") == std::string::npos, refused) << framing.name << answer;
    if (refused) {
      EXPECT_EQ(answer.substr(0, 12), "HTTP/1.1 " + std::to_string(framing.status)) << framing.name << answer;
      EXPECT_NE(answer.find("\r\nConnection: close\r\n"), std::string::npos) << framing.name << answer;
    }
  }
}

}  // namespace
}  // namespace stoch::test
