// SPDX-License-Identifier: Apache-2.0
// Mutated requests: bodies that are almost right, and bytes that are almost HTTP. Whatever comes in, the answer is 200
// or a client error, the server goes on, and others get what they get alone.
//
// STOCH_FUZZ_CASES says how many of each kind are sent (the ctest entry serve_hostile_10000 sends 10 000 of each).

#include <array>
#include <atomic>
#include <random>
#include <regex>

#include "tests/serve/server_fixture.h"

namespace stoch::test {
namespace {

constexpr int kCases = 250;

const std::array<std::pair<const char*, const char*>, 8> kRequests = {{
    {"/v1/completions", R"({"model":"tiny","prompt":"Hello there","max_tokens":5,"temperature":0.7,"seed":3})"},
    {"/v1/completions", R"({"prompt":[[1,5,6],[7,8]],"max_tokens":1,"logprobs":1,"echo":true,"temperature":0})"},
    {"/v1/completions", R"({"prompt":[4,5,6],"max_tokens":4,"stop":["ab","c"],"stop_token_ids":[7],"n":2,"top_k":5})"},
    {"/v1/completions", R"({"prompt":["a","b"],"stream":true,"stream_options":{"include_usage":true},"max_tokens":3})"},
    {"/v1/completions",
     R"({"prompt":"x","logit_bias":{"5":1.5,"6":-2},"presence_penalty":0.5,"min_p":0.1,"top_p":0.9})"},
    {"/v1/chat/completions",
     R"({"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"logprobs":true})"},
    {"/tokenize", R"({"prompt":"Hello","add_special_tokens":true})"},
    {"/detokenize", R"({"tokens":[1,2,3]})"},
}};

class Hostile : public ServerFixture {
 protected:
  void SetUp() override {
    runner_options_.max_queue = 8;
    server_options_.http.max_body_bytes = 64 << 10;
    server_options_.http.max_header_bytes = 4 << 10;
    StartServer();
    alone_ = Complete(kQuestion)["choices"];
    bystander_ = std::thread([this] {
      while (!done_) {
        const Reply reply = Post("/v1/completions", kQuestion);
        if (reply.status == 429) continue;  // the queue is small
        EXPECT_EQ(reply.status, 200) << reply.body;
        EXPECT_EQ(reply.Json()["choices"], alone_);
        ++asked_;
      }
    });
  }

  void TearDown() override {
    done_ = true;
    bystander_.join();
    EXPECT_GT(asked_, 0);
    EXPECT_TRUE(Eventually([this] { return Metric("stoch_requests_running") == 0; }));
    EXPECT_EQ(Metric("stoch_requests_waiting"), 0);
    EXPECT_TRUE(Eventually([this] { return Metric("stoch_kv_cache_usage_ratio") == 0; }));
    EXPECT_EQ(Call(port(), "GET", "/health").status, 200);
    EXPECT_EQ(Call(port(), "GET", "/metrics").body.find("code=\"5"), std::string::npos);
    // What is wrong with a request is found before it is queued.
    EXPECT_EQ(Metric("stoch_requests_finished_total{reason=\"error\"}"), 0) << LogLine("error: ");
  }

  const Json kQuestion = {{"prompt", {9, 8, 7, 6}}, {"max_tokens", 8}, {"logprobs", 1}, {"seed", 5}};
  Json alone_;
  std::atomic<bool> done_ = false;
  std::atomic<int> asked_ = 0;
  std::thread bystander_;
};

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  size_t Below(size_t limit) { return random_() % limit; }

  // A valid text with one value, key or nesting changed.
  std::string Value(const std::string& text) {
    Json json = Json::parse(text);
    Json* at = &json;
    while (at->is_structured() && !at->empty() && Below(3) != 0) {
      auto entry = at->begin();
      std::advance(entry, static_cast<std::ptrdiff_t>(Below(at->size())));
      at = &*entry;
    }
    static const std::array<const char*, 24> kValues = {"null",
                                                        "true",
                                                        "-1",
                                                        "0",
                                                        "1",
                                                        "1.5",
                                                        "1e308",
                                                        "-0.0",
                                                        "4294967296",
                                                        "9223372036854775808",
                                                        "1e-320",
                                                        "18446744073709551615",
                                                        "\"\"",
                                                        "\"\\u0000\"",
                                                        "\"\\ud83d\\ude00\"",
                                                        "\"a\\nb\"",
                                                        "[]",
                                                        "[[]]",
                                                        "{}",
                                                        "[1,\"a\"]",
                                                        "[null]",
                                                        "{\"\":{}}",
                                                        "\"999999999999\"",
                                                        "[[1,2],[3,95]]"};
    if (at->is_object() && Below(2) == 0) {
      (*at)[std::string(Below(12), 'k')] = Json::parse(kValues[Below(kValues.size())]);
    } else if (at->is_array() && Below(2) == 0) {
      for (size_t i = Below(300); i > 0; --i) at->push_back(at->empty() ? Json(Below(100)) : at->front());
    } else {
      *at = Json::parse(kValues[Below(kValues.size())]);
    }
    return json.dump();
  }

  // Bytes changed, dropped, doubled, put in or cut off.
  std::string Bytes(std::string text) {
    static const std::array<const char*, 14> kPieces = {"{",
                                                        "}",
                                                        "[",
                                                        "\"",
                                                        "\\",
                                                        "\r\n",
                                                        "\0x",
                                                        ":",
                                                        "\xff",
                                                        "1e999",
                                                        "NaN",
                                                        "\r\n\r\n",
                                                        "Transfer-Encoding: chunked\r\n",
                                                        "Content-Length: 18446744073709551616\r\n"};
    for (size_t i = 1 + Below(3); i > 0 && !text.empty(); --i) {
      const size_t at = Below(text.size());
      switch (Below(6)) {
        case 0: text[at] = static_cast<char>(random_()); break;
        case 1: text.erase(at, 1 + Below(8)); break;
        case 2: text.insert(at, text.substr(at, 1 + Below(20))); break;
        case 3: text.insert(at, kPieces[Below(kPieces.size())]); break;
        case 4: text.resize(at); break;
        default: text[at] = static_cast<char>(text[at] ^ (1 << Below(8))); break;
      }
    }
    return text;
  }

 private:
  std::mt19937 random_;
};

TEST_F(Hostile, BodiesAreAnsweredOrRefused) {
  Mutator mutate(1);
  auto client = std::make_unique<HttpClient>(port());
  const int cases = NumberFromEnvironment("STOCH_FUZZ_CASES", kCases);
  std::map<int, int> seen;
  for (int i = 0; i < cases && !HasFailure(); ++i) {
    const auto& [path, valid] = kRequests[mutate.Below(kRequests.size())];
    const std::string body = mutate.Below(2) == 0 ? mutate.Value(valid) : mutate.Bytes(valid);
    const Reply reply = client->Call("POST", path, body);
    ++seen[reply.status];
    ASSERT_TRUE(reply.status == 200 || (reply.status >= 400 && reply.status < 500)) << i << ": " << body << reply.body;
    if (reply.status != 200) {
      EXPECT_EQ(reply.Json()["error"]["type"], "invalid_request_error") << body;
    } else if (reply.headers.at("content-type") == "text/event-stream") {
      EXPECT_EQ(reply.Events().back(), "[DONE]") << body;
      EXPECT_EQ(reply.body.find("\"error\""), std::string::npos) << body << reply.body;
    }
    if (reply.headers.count("connection") != 0 && reply.headers.at("connection") == "close") {
      client = std::make_unique<HttpClient>(port());
    }
  }
  EXPECT_GT(seen[200], cases / 20);  // near enough to right to get far
  EXPECT_GT(seen[400], cases / 3);
}

TEST_F(Hostile, BytesThatAreAlmostHttpAreAnsweredOrRefused) {
  Mutator mutate(2);
  const std::regex status_line("HTTP/1\\.[01] ([0-9]{3}) ");
  const int cases = NumberFromEnvironment("STOCH_FUZZ_CASES", kCases);
  std::map<int, int> seen;
  for (int i = 0; i < cases && !HasFailure(); ++i) {
    const auto& [path, body] = kRequests[mutate.Below(kRequests.size())];
    const std::string text = mutate.Bytes("POST " + std::string(path) +
                                          " HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: " +
                                          std::to_string(std::string_view(body).size()) + "\r\n\r\n" + body);
    HttpClient client(port());
    client.SendRaw(text);
    client.EndSending();
    const std::string answer = client.ReadToEnd();
    const auto end = std::sregex_iterator();
    for (auto at = std::sregex_iterator(answer.begin(), answer.end(), status_line); at != end; ++at) {
      const int status = std::stoi((*at)[1]);
      ++seen[status];
      ASSERT_TRUE(status == 100 || status == 200 || (status >= 400 && status < 500)) << i << ": " << text << answer;
    }
  }
  EXPECT_GT(seen[400], cases / 5);
}

}  // namespace
}  // namespace stoch::test
