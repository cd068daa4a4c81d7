// The promise: a request's tokens and logprobs do not depend on who else is served.

#include <cctype>
#include <cmath>
#include <random>

#include "tests/serve/server_fixture.h"

namespace stoch::test {
namespace {

constexpr int kNeighbours = 12;
constexpr int kRounds = 6;

class Needle : public ServerFixture, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    engine_options_.max_sequences = 6;         // fewer than ask, so that they come and go
    engine_options_.kv_tokens = 5 * kContext;  // and wait for each other's pages
    engine_options_.sc = ParseScModelConfig(std::vector<std::string>{GetParam()});
    StartServer();
  }

  static std::vector<int> RandomIds(std::mt19937& random, size_t most) {
    std::vector<int> ids(1 + random() % most);
    for (int& id : ids) id = static_cast<int>(3 + random() % 90);
    return ids;
  }

  static Json RandomRequest(std::mt19937& random) {
    Json body = {{"prompt", RandomIds(random, 100)}, {"max_tokens", 1 + random() % 25}, {"temperature", random() % 2},
                 {"seed", random() % 100},           {"ignore_eos", random() % 2 == 0}, {"stream", random() % 2 == 0},
                 {"echo", random() % 4 == 0}};
    if (random() % 2 == 0) body["logprobs"] = 1;
    return body;
  }

  // Sends it and stays to the end, or leaves after a while.
  void BeNeighbour(const Json& body, bool leave, std::chrono::milliseconds delay) {
    std::this_thread::sleep_for(delay);
    HttpClient client(port());
    const std::string text = body.dump();
    client.SendRaw("POST /v1/completions HTTP/1.1\r\nContent-Length: " + std::to_string(text.size()) + "\r\n\r\n" +
                   text);
    if (leave) {
      std::this_thread::sleep_for(delay);
      client.Close();
    } else {
      EXPECT_EQ(client.Receive().status, 200);
    }
  }
};

// Numbers are printed so that they read back exactly: equal text is equal bits.
std::string Bits(const Json& body) { return body["choices"].dump(); }

TEST_P(Needle, IsTheSameAloneAndInACrowd) {
  std::mt19937 random(7);
  for (int round = 0; round < kRounds; ++round) {
    const Json needle = {{"prompt", {RandomIds(random, 90), RandomIds(random, 90)}},
                         {"max_tokens", 16},
                         {"temperature", round % 2},
                         {"seed", round},
                         {"logprobs", 2},
                         {"echo", round % 3 == 0},
                         {"ignore_eos", true}};
    const Json alone = Complete(needle);
    std::vector<std::thread> crowd;
    for (int i = 0; i < kNeighbours; ++i) {
      crowd.emplace_back([this, body = RandomRequest(random), leave = random() % 3 == 0,
                          delay = std::chrono::milliseconds(random() % 30)] { BeNeighbour(body, leave, delay); });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
    const Json among = Complete(needle);
    for (std::thread& neighbour : crowd) neighbour.join();
    EXPECT_EQ(Bits(alone), Bits(among)) << "round " << round;
  }
}

// The inverse: what is compared shows one flipped bit of one logprob, and another seed.
TEST_P(Needle, WouldShowOneFlippedBit) {
  Json body = {{"prompt", {5, 6, 7}}, {"max_tokens", 4}, {"logprobs", 1}, {"ignore_eos", true}};
  const Json answer = Complete(body);
  Json flipped = answer;
  Json& logprob = flipped["choices"][0]["logprobs"]["token_logprobs"][2];
  logprob = std::nextafter(logprob.get<double>(), 0.0);
  EXPECT_NE(Bits(answer), Bits(flipped));
  body["seed"] = 1;
  EXPECT_NE(Bits(answer), Bits(Complete(body)));
}

// Chunked prompts and shared passes; windows of their own; one sequence per pass.
INSTANTIATE_TEST_SUITE_P(Configurations, Needle,
                         testing::Values("preset=halved", "attention=per_head", "granularity=per_tensor,chunk_d=0"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
                           return name;
                         });

}  // namespace
}  // namespace stoch::test
