// SPDX-License-Identifier: Apache-2.0
// Streams that are taken up again: after a disconnect, by somebody else, and after a kill -9 of the server.

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <iostream>
#include <random>
#include <set>
#include <sstream>

#include "engine/gateway/journal_rows.h"
#include "engine/ipc/messages.pb.h"
#include "tests/serve/journal/kept_streams.h"
#include "tests/serve/serving.h"

namespace stoch::test {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

bool Eventually20(const std::function<bool()>& condition) {
  const auto deadline = Clock::now() + seconds(20);
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

bool ComesTo(uint16_t port, const std::string& name, double value) {
  const auto deadline = Clock::now() + seconds(20);
  while (Metric(port, name) != value) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

Json LongRequest() { return {{"prompt", "Once upon a time"}, {"max_tokens", 120}, {"ignore_eos", true}, {"seed", 3}}; }

class Streams : public testing::Test {
 protected:
  std::vector<std::string> Words(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"--journal", (folder_ / "journal").string()};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  TempDir folder_;
};

TEST_F(Streams, GoOnWhereTheClientWas) {
  Serving server(Words());
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const uint16_t port = server.port();
  EXPECT_EQ(Call(port, "GET", "/health").Json()["journal"], "ok");
  const double total = Metric(port, "stoch_device_memory_bytes{kind=\"total\",worker=\"0\"}");
  const double used = Metric(port, "stoch_device_memory_bytes{kind=\"used\",worker=\"0\"}");
  EXPECT_GT(used, 0);
  EXPECT_LT(used, total);
  KeptStream alone("alone", LongRequest());
  EXPECT_EQ(alone.Read(port), 200);
  ASSERT_TRUE(alone.done());
  const auto expect_same = [&](const KeptStream& stream) {
    EXPECT_TRUE(stream.done());
    EXPECT_EQ(stream.disorder(), "");
    const std::vector<std::string> events = stream.Events(), expected = alone.Events();
    ASSERT_EQ(events.size(), expected.size());
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      EXPECT_EQ(Json::parse(events[i])["choices"], Json::parse(expected[i])["choices"]) << i;
    }
  };

  // Leaves and comes again and again; whoever leaves frees its place.
  KeptStream stream("leaves", LongRequest());
  for (const size_t events : {1, 7, 30}) {
    EXPECT_EQ(stream.Read(port, events), 200);
    EXPECT_FALSE(stream.done());
    EXPECT_TRUE(ComesTo(port, "stoch_requests_running", 0));
  }
  EXPECT_EQ(stream.Read(port), 200);
  expect_same(stream);

  // Whoever asks gets it, and the one before is cut.
  KeptStream shared("shared", LongRequest());
  EXPECT_EQ(shared.Read(port, 2), 200);
  HttpClient first(port);
  first.SendRaw("GET /v1/streams/" + shared.id() + " HTTP/1.0\r\n\r\n");
  first.ReadUntil(shared.id() + ":3");
  EXPECT_EQ(shared.Read(port), 200);
  expect_same(shared);
  EXPECT_EQ(first.ReadToEnd().find("[DONE]"), std::string::npos);

  // Whoever asks for an event that it cannot have gets nothing, and whoever reads it reads on.
  KeptStream read("read", LongRequest());
  EXPECT_EQ(read.Read(port, 2), 200);
  HttpClient reader(port);
  reader.SendRaw("GET /v1/streams/" + read.id() + " HTTP/1.0\r\n\r\n");
  reader.ReadUntil(read.id() + ":3");
  const Reply none = Call(port, "GET", "/v1/streams/" + read.id(), "", {{"Last-Event-ID", read.id() + ":999999"}});
  EXPECT_EQ(Metric(port, "stoch_requests_running"), 1);  // it was in time to cut the reader
  EXPECT_EQ(none.status, 400);
  EXPECT_NE(reader.ReadToEnd().find("[DONE]"), std::string::npos);

  // All of it, once more, though it has ended.
  const Reply whole = Call(port, "GET", "/v1/streams/" + shared.id());
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(whole.Events().size(), shared.Events().size());
  // What is no stream has no place there.
  const Reply plain = Call(port, "POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 1})");
  EXPECT_EQ(Call(port, "GET", "/v1/streams/" + plain.Json()["id"].get<std::string>()).status, 404);
}

TEST_F(Streams, AskForTheKeyAndForWhatIsThere) {
  Serving server(Words({"--api-key", "k"}));
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const uint16_t port = server.port();
  KeptStream stream("s", LongRequest());
  const std::map<std::string, std::string> key = {{"Authorization", "Bearer k"}};
  EXPECT_EQ(stream.Read(port, 3, key), 200);
  EXPECT_EQ(stream.Read(port), 401);
  const auto ask = [&](const std::string& id, const std::string& last) {
    return Call(port, "GET", "/v1/streams/" + id, "", {{"Authorization", "Bearer k"}, {"Last-Event-ID", last}}).status;
  };
  EXPECT_EQ(ask("cmpl-other", ""), 404);
  const std::string id = stream.id();
  for (const std::string& last :
       {id, id + ":", id + ":x", id + ":-1", std::string("cmpl-other:1"), std::string("1"), id + ":1x"}) {
    EXPECT_EQ(ask(id, last), 400) << last;
  }
  // One that no stream of this request has is refused at once, though it runs on: its client would hear nothing before the end.
  const Reply never =
      Call(port, "GET", "/v1/streams/" + id, "", {{"Authorization", "Bearer k"}, {"Last-Event-ID", id + ":999999"}});
  EXPECT_EQ(never.status, 400);
  EXPECT_NE(never.body.find("this stream has fewer than"), std::string::npos) << never.body;
  EXPECT_EQ(Call(port, "POST", "/v1/streams/" + id, "{}", key).status, 405);
  EXPECT_EQ(Call(port, "HEAD", "/v1/streams/" + id, "", key).status, 405);
  EXPECT_EQ(stream.Read(port, SIZE_MAX, key), 200);
  EXPECT_TRUE(stream.done());
  EXPECT_EQ(ask(id, id + ":999999"), 400);
  const std::string next = id + ":" + std::to_string(stream.Events().size());
  const Reply beyond =
      Call(port, "GET", "/v1/streams/" + id, "", {{"Authorization", "Bearer k"}, {"Last-Event-ID", next}});
  EXPECT_EQ(beyond.status, 200);
  EXPECT_NE(beyond.body.find("the last event of this stream is " + id), std::string::npos) << beyond.body;
  EXPECT_NE(beyond.body.find("[DONE]"), std::string::npos) << beyond.body;
  EXPECT_EQ(beyond.body.find("choices"), std::string::npos) << beyond.body;

  Serving without;
  ASSERT_TRUE(without.Logs("ready")) << without.Log();
  const Reply refused = Call(without.port(), "GET", "/v1/streams/" + id);
  EXPECT_EQ(refused.status, 404);
  EXPECT_NE(refused.body.find("--journal"), std::string::npos) << refused.body;
}

// Every id is one of 2^128, whatever its client calls the request.
TEST_F(Streams, AreTheirMakersAlone) {
  const std::string keys = (folder_ / "keys").string();
  WriteFile(keys, "# of two clients\n  first-key  \n\nsecond-key\r\n");
  std::filesystem::permissions(keys, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  Serving server(Words({"--api-key-file", keys, "--api-key", "third-key"}));
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  EXPECT_EQ(server.Log().find("api_key_file_readable"), std::string::npos);
  const uint16_t port = server.port();
  const auto with = [](const std::string& key) {
    return std::map<std::string, std::string>{{"Authorization", "Bearer " + key}};
  };
  for (const char* key : {"", "# of two clients", "first-key second-key", "fourth-key"}) {
    EXPECT_EQ(Call(port, "GET", "/v1/models", "", with(key)).status, 401) << key;
  }
  // The same name of two clients, and of one client twice, is of different streams.
  KeptStream first("name", LongRequest()), again("name", LongRequest()), other("name", LongRequest());
  EXPECT_EQ(first.Read(port, 2, with("first-key")), 200);
  EXPECT_EQ(again.Read(port, 2, with("first-key")), 200);
  EXPECT_EQ(other.Read(port, 2, with("second-key")), 200);
  EXPECT_NE(first.id(), again.id());
  EXPECT_NE(first.id(), other.id());
  EXPECT_EQ(first.id().size(), 5u + 32);
  EXPECT_EQ(first.id().find_first_not_of("0123456789abcdef", 5), std::string::npos) << first.id();

  // Somebody reads it; others learn nothing, and cut nothing.
  HttpClient reader(port);
  reader.SendRaw("GET /v1/streams/" + first.id() + " HTTP/1.0\r\nAuthorization: Bearer first-key\r\n\r\n");
  reader.ReadUntil(first.id() + ":3");
  const Reply unknown = Call(port, "GET", "/v1/streams/" + std::string(first.id().size(), '0'), "", with("second-key"));
  for (const char* key : {"second-key", "third-key"}) {
    const Reply refused = Call(port, "GET", "/v1/streams/" + first.id(), "", with(key));
    EXPECT_EQ(refused.status, 404);
    EXPECT_EQ(refused.body, unknown.body);
    EXPECT_EQ(refused.headers.count("x-stream-id"), 0u);
  }
  EXPECT_EQ(Call(port, "GET", "/v1/streams/cmpl-name", "", with("first-key")).status, 404);
  EXPECT_NE(reader.ReadToEnd().find("[DONE]"), std::string::npos);
  for (KeptStream* stream : {&first, &again}) {
    EXPECT_EQ(stream->Read(port, SIZE_MAX, with("first-key")), 200);
    EXPECT_TRUE(stream->done());
  }
  EXPECT_EQ(other.Read(port, SIZE_MAX, with("second-key")), 200);
  // No whole id is in the log, which more people may read than streams.
  const std::string log = server.Log();
  EXPECT_NE(log.find("answer=" + first.id().substr(0, 17)), std::string::npos) << log;
  for (const KeptStream* stream : {&first, &again, &other}) EXPECT_EQ(log.find(stream->id()), std::string::npos) << log;
}

TEST_F(Streams, KeyFilesAreCheckedAtTheStart) {
  const std::string keys = (folder_ / "keys").string();
  const auto refused = [&](const std::string& text, const std::string& why) {
    WriteFile(keys, text);
    Serving server({"--api-key-file", keys});
    EXPECT_EQ(server.Wait(seconds(20)), 2) << text.substr(0, 20);
    EXPECT_NE(server.Log().find(why), std::string::npos) << server.Log();
    EXPECT_NE(server.Log().find(keys), std::string::npos) << server.Log();
    EXPECT_EQ(server.Log().find("secret"), std::string::npos) << server.Log();
  };
  refused("", "has no key");
  refused("# secret\n\n", "has no key");
  refused("secret one\n", "line 1");
  refused("good\nsecret\x80\n", "line 2");
  refused(std::string(513, 's'), "line 1 has more than 512 bytes");
  refused("good\n" + std::string(100000, 's'), "line 2 has more than 512 bytes");
  std::filesystem::remove(keys);
  Serving none({"--api-key-file", keys});
  EXPECT_EQ(none.Wait(seconds(20)), 2);
  EXPECT_NE(none.Log().find("No such file"), std::string::npos) << none.Log();

  WriteFile(keys, "secret\n" + std::string(512, 's'));
  std::filesystem::permissions(keys, std::filesystem::perms::group_read, std::filesystem::perm_options::add);
  Serving server({"--api-key-file", keys, "--host", "0.0.0.0"});
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  EXPECT_TRUE(server.Logs("api_key_file_readable")) << server.Log();
  EXPECT_EQ(server.Log().find("no_api_key"), std::string::npos) << server.Log();
  for (const std::string& key : {std::string("secret"), std::string(512, 's')}) {
    EXPECT_EQ(Call(server.port(), "GET", "/v1/models", "", {{"Authorization", "Bearer " + key}}).status, 200);
  }
}

// Rows that fit their checksums and say what no server wrote, as another program or a foe may make them.
TEST_F(Streams, ForgedRowsAreNoFailedStart) {
  std::vector<KeptStream> streams;
  for (int i = 0; i < 5; ++i) streams.emplace_back("s" + std::to_string(i), LongRequest());
  {
    Serving server(Words());
    ASSERT_TRUE(server.Logs("ready")) << server.Log();
    std::vector<std::thread> clients;
    for (KeptStream& stream : streams) clients.emplace_back([&] { stream.Read(server.port(), 3); });
    for (std::thread& client : clients) client.join();
    server.Signal(SIGKILL);
    server.Wait(seconds(5));
  }
  const std::string file = (folder_ / "journal").string();
  {
    serve::Database database(file, "");
    database.Run("PRAGMA locking_mode = EXCLUSIVE");
    serve::JournalRows rows(database);
    std::map<std::string, int64_t> number_of;
    std::map<int64_t, int64_t> updates;
    int64_t last = 0;
    rows.ForEachAnswer([&](const serve::AnswerRow& row) { number_of[row.head.id] = row.head.number; },
                       [](const auto&) { FAIL(); });
    rows.ForEachUpdate(
        [&](const serve::UpdateRow& row) {
          ++updates[row.answer];
          last = row.number;
        },
        [](const auto&) { FAIL(); });
    const auto forge = [&](const KeptStream& stream, int64_t choice, const ipc::Update& update) {
      const int64_t answer = number_of.at(stream.id());
      rows.Insert({++last, answer, updates[answer]++, choice, update.SerializeAsString()});
    };
    ipc::Update update;
    update.add_ids(5);
    forge(streams[0], 7, update);  // of no choice of it
    update.set_ids(0, 1 << 30);
    forge(streams[1], 0, update);
    update.set_ids(0, 5);
    update.set_finish(200);
    forge(streams[2], 0, update);
    std::optional<serve::AnswerRow> row = rows.Answer(number_of.at(streams[3].id()));
    rows.DeleteAnswer(row->head.number);
    row->request = std::string(100000, '\x81');  // lists in lists
    row->head.request_crc = serve::RequestCrc(row->request);
    rows.Insert(row->head, row->request);
  }
  Serving server(Words());
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(Call(server.port(), "GET", "/v1/streams/" + streams[i].id()).status, 404) << i;
    // The log is written by a thread of its own.
    EXPECT_TRUE(server.Logs("journal_answer_dropped file=" + file + " answer=" + streams[i].id())) << i << server.Log();
  }
  EXPECT_EQ(streams[4].Read(server.port()), 200);
  EXPECT_TRUE(streams[4].done());
  EXPECT_EQ(streams[4].disorder(), "");
  EXPECT_EQ(Call(server.port(), "GET", "/health").Json()["journal"], "ok");
}

TEST_F(Streams, LogsAreOneObjectALineWhereAskedFor) {
  Serving server({"--log-format", "json"});
  ASSERT_TRUE(Eventually20([&] { return server.Log().find("\"ready\"") != std::string::npos; })) << server.Log();
  Call(server.port(), "POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 1, "no_such_field": 1})",
       {{"X-Request-Id", "mine"}});
  Call(server.port(), "GET", "/v1/\"\xff");
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(seconds(20)), 0);
  std::istringstream lines(server.Log());
  std::set<std::string> events;
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line, nullptr, false);
    ASSERT_TRUE(json.is_object()) << line;
    EXPECT_EQ(json["time"].get<std::string>().size(), 29u) << line;  // 2026-01-02T03:04:05.678+00:00
    EXPECT_TRUE(json["level"] == "info" || json["level"] == "warning" || json["level"] == "error") << line;
    events.insert(json["event"].get<std::string>());
  }
  for (const char* event : {"ready", "refused", "stopped"}) EXPECT_TRUE(events.contains(event)) << event;
}

TEST_F(Streams, ASaltIsOfItsPrefixes) {
  Serving server({"--kv-tokens", "4096"});
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  std::string text;
  for (int i = 0; i < 40; ++i) text += "The dog went to the park and met a cat. ";
  std::vector<std::string> answers;
  double reused = 0;
  std::vector<bool> shared;
  for (const char* salt : {"", "a", "", "b", "a", "b"}) {
    Json body = {{"prompt", text}, {"max_tokens", 5}, {"seed", 1}};
    if (*salt != '\0') body["cache_salt"] = salt;
    const Reply reply = Call(server.port(), "POST", "/v1/completions", body.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    answers.push_back(reply.Json()["choices"].dump());
    EXPECT_EQ(answers.back(), answers.front());
    const double now = Metric(server.port(), "stoch_prompt_tokens_reused_total");
    shared.push_back(now > reused);
    reused = now;
  }
  EXPECT_EQ(shared, (std::vector<bool>{false, false, true, false, true, true}));
  for (const Json& salt : {Json(""), Json(5), Json(std::string(257, 's'))}) {
    const Json body = {{"prompt", "a"}, {"max_tokens", 1}, {"cache_salt", salt}};
    const Reply refused = Call(server.port(), "POST", "/v1/completions", body.dump());
    EXPECT_EQ(refused.status, 400) << salt;
    EXPECT_EQ(refused.Json()["error"]["param"], "cache_salt");
  }
}

TEST_F(Streams, AJournalIsOfOneServer) {
  Serving server(Words());
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const std::vector<std::string> refused[] = {Words(),
                                              {"--journal", (folder_ / "no/folder").string()},
                                              {"--journal", kDemo + "/config.json"},
                                              Words({"--in-process"}),
                                              Words({"--journal-sync", "sometimes"}),
                                              {"--journal-sync", "full"}};
  for (const std::vector<std::string>& words : refused) {
    Serving other(words);
    EXPECT_EQ(other.Wait(seconds(20)), 2) << words.back();
    EXPECT_NE(other.Log().find("error: "), std::string::npos) << other.Log();
  }
}

// Of many kinds.
std::vector<KeptStream> ManyStreams(const std::string& round) {
  std::vector<KeptStream> streams;
  const char* prompts[] = {"Once upon a time", "The little dog", "A",
                           "One day, a girl named Lily went to the park and"};
  for (int i = 0; i < 12; ++i) {
    Json request = {{"prompt", prompts[i % 4]}, {"max_tokens", 12 + 6 * i}, {"seed", i}};
    request["ignore_eos"] = i % 2 == 0;
    if (i % 3 == 0) request["temperature"] = 0;
    if (i % 4 == 1) request["logprobs"] = 2;
    if (i % 4 == 2) request["stop"] = {"the", "Lily"};
    if (i % 5 == 1) request["frequency_penalty"] = 0.5;
    if (i % 5 == 2) request["return_logits_sha256"] = true;
    if (i % 6 == 3) request["echo"] = true;
    streams.emplace_back(round + std::to_string(i), request);
  }
  return streams;
}

// An event a token, whatever passes brought the tokens: a stream that is taken up elsewhere meets other guesses.
TEST_F(Streams, HaveTheEventsOfSingleStepsWithGuesses) {
  std::vector<std::vector<std::string>> events;
  for (const char* speculate : {"off", "ngram"}) {
    Serving server({"--speculate", speculate});
    ASSERT_TRUE(server.Logs("ready")) << server.Log();
    std::vector<KeptStream> streams = ManyStreams("s");
    Json again = LongRequest();  // a negative penalty has a text say its words again, as guesses expect
    again["frequency_penalty"] = -2;
    streams.emplace_back("again", again);
    for (KeptStream& stream : streams) EXPECT_EQ(stream.Read(server.port()), 200);
    if (events.empty()) {
      for (const KeptStream& stream : streams) events.push_back(stream.Events());
      continue;
    }
    EXPECT_GT(Metric(server.port(), "stoch_draft_tokens_accepted_total"), 5);
    for (size_t i = 0; i < streams.size(); ++i) EXPECT_EQ(streams[i].Events(), events[i]) << i;
  }
}

TEST_F(Streams, OutliveAKilledServer) {
  const auto sync = {"normal", "full"};
  std::vector<std::vector<std::string>> alone;
  std::mt19937 random(11);
  int taken_up = 0;
  const int rounds = std::getenv("STOCH_FAULT_MOMENTS") == nullptr ? 6 : std::atoi(std::getenv("STOCH_FAULT_MOMENTS"));
  for (int round = 0; round < rounds; ++round) {
    std::vector<KeptStream> streams = ManyStreams("s");
    const std::string how = *(sync.begin() + round % 2);
    std::atomic<uint16_t> port = 0;
    std::atomic<bool> over = false;
    if (alone.empty()) {
      Serving server;
      ASSERT_TRUE(server.Logs("ready")) << server.Log();
      for (KeptStream& stream : streams) {
        EXPECT_EQ(stream.Read(server.port()), 200);
        EXPECT_TRUE(stream.done());
        alone.push_back(stream.Events());
      }
      continue;
    }
    std::vector<std::thread> clients;
    for (KeptStream& stream : streams) {
      clients.emplace_back([&] {
        while (!stream.done() && !over) {
          if (port == 0 || stream.Read(port) == 0) std::this_thread::sleep_for(milliseconds(5));
        }
      });
    }
    for (int life = 0; life < 4; ++life) {
      Serving server(Words({"--journal-sync", how}));
      ASSERT_TRUE(server.Logs("ready")) << server.Log();
      port = server.port();
      if (life < 3) {
        std::this_thread::sleep_for(milliseconds(random() % 120));
        port = 0;
        server.Signal(SIGKILL);
        server.Wait(seconds(5));
        continue;
      }
      for (std::thread& client : clients) client.join();
      over = true;
    }
    for (size_t i = 0; i < streams.size(); ++i) {
      EXPECT_EQ(streams[i].disorder(), "") << i;
      taken_up += streams[i].taken_up();
      const std::vector<std::string> events = streams[i].Events();
      EXPECT_EQ(events, alone[i]) << round << ", stream " << i;
    }
  }
  EXPECT_GT(taken_up, 5);
  std::cout << taken_up << " streams taken up" << std::endl;
}

}  // namespace
}  // namespace stoch::test
