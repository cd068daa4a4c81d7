// SPDX-License-Identifier: Apache-2.0
// Files of a model that change while it is served: whatever a client has read is the old model's, and nothing is told
// of the new one, by a worker that takes a lost one's place or by a server that takes the journal up.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/serve/http_client.h"
#include "tests/serve/serving.h"

namespace stoch::test {
namespace {

using Json = nlohmann::json;
using std::chrono::seconds;

// Of --mp, with one threshold for all rows.
std::string Table(double threshold) {
  Json defaults;
  for (const char* op : {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qk", "av"}) {
    defaults[op] = {{"thresholds", {threshold}}, {"metric_lo", 0}, {"metric_hi", 8}};
  }
  return Json({{"stoc_len_levels", {128, 64}}, {"operator_defaults", defaults}}).dump();
}

enum class Kind { kConfig, kTable, kWeights, kGeneration, kTokenizer };

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error("no " + from);
  return text.replace(at, from.size(), to);
}

// A copy of the demo model and a table next to it, one file of which changes.
class Model {
 public:
  Model() {
    std::filesystem::copy(kDemo, folder(), std::filesystem::copy_options::recursive);
    WriteFile(table(), Table(0.2));
  }

  std::string folder() const { return (root_ / "model").string(); }
  std::string table() const { return (root_ / "table.json").string(); }
  std::string journal() const { return (root_ / "journal").string(); }

  // in_place: the same file is written to; otherwise another one takes its name, as most programs do it.
  void Change(Kind kind, bool in_place) const {
    const auto [path, bytes] = Changed(kind);
    if (in_place) {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      file.close();
      std::filesystem::resize_file(path, bytes.size());
      return;
    }
    WriteFile(path + ".new", bytes);
    std::filesystem::rename(path + ".new", path);
  }

 private:
  std::pair<std::string, std::string> Changed(Kind kind) const {
    const auto edit = [this](const char* name, const char* from, const char* to) {
      const std::string path = folder() + "/" + name;
      return std::pair(path, Replaced(ReadFile(path), from, to));
    };
    switch (kind) {
      case Kind::kConfig: return edit("config.json", "\"rope_theta\": 10000.0", "\"rope_theta\": 1000.0");
      case Kind::kGeneration:
        return edit("generation_config.json", "\"eos_token_id\": 2", "\"eos_token_id\": [2, 261]");
      case Kind::kTable: return {table(), Table(0.6)};
      case Kind::kTokenizer: {
        const std::string path = folder() + "/tokenizer_config.json";
        return {path, ReadFile(path) + "\n"};
      }
      case Kind::kWeights: break;
    }
    const std::string path = folder() + "/model.safetensors";
    std::string bytes = ReadFile(path);
    // Signs of numbers, far from the header.
    for (size_t i = bytes.size() / 2 | 1; i < bytes.size(); i += 2) bytes[i] = static_cast<char>(bytes[i] ^ 0x80);
    return {path, bytes};
  }

  TempDir root_;
};

std::vector<std::string> Words(const Model& model, bool with_journal) {
  std::vector<std::string> words = {"--mp", model.table(), "--no-prefix-reuse"};
  if (with_journal) words.insert(words.end(), {"--journal", model.journal()});
  return words;
}

// Texts and log-probabilities of a stream's events, in order; what ends it, and errors, are none.
struct Heard {
  std::vector<std::string> tokens;
  std::string answer;  // its name, as events have it
  bool finished = false;
};

Heard Hear(const std::string& raw) {
  Heard heard;
  std::istringstream lines(raw);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.starts_with("id: ")) heard.answer = line.substr(4, line.rfind(':') - 4);
    if (!line.starts_with("data: {")) continue;
    const Json event = Json::parse(line.substr(6), nullptr, false);
    if (event.is_discarded() || !event.contains("choices")) continue;  // cut off, or an error
    for (const Json& choice : event["choices"]) {
      if (choice["logprobs"].is_object()) {
        for (size_t i = 0; i < choice["logprobs"]["tokens"].size(); ++i) {
          heard.tokens.push_back(choice["logprobs"]["tokens"][i].dump() + " " +
                                 choice["logprobs"]["token_logprobs"][i].dump());
        }
      }
      heard.finished = heard.finished || !choice["finish_reason"].is_null();
    }
  }
  return heard;
}

std::string Request() {
  const std::string body = Json({{"prompt", "Once upon a time"},
                                 {"max_tokens", 400},
                                 {"ignore_eos", true},
                                 {"stream", true},
                                 {"logprobs", 1},
                                 {"seed", 5},
                                 {"temperature", 1}})
                               .dump();
  return "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
         "Content-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

pid_t WorkerOf(uint16_t port) { return Call(port, "GET", "/health").Json()["workers"][0]["pid"].get<pid_t>(); }

class ModelChange : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const Model model;
    Serving server(Words(model, false), model.folder());
    ASSERT_TRUE(server.Logs("ready")) << server.Log();
    HttpClient client(server.port());
    client.SendRaw(Request());
    const Heard heard = Hear(client.ReadToEnd());
    ASSERT_TRUE(heard.finished);
    ASSERT_EQ(heard.tokens.size(), 400u);
    alone_ = heard.tokens;
  }
  static void ExpectOld(const Heard& heard, const std::string& where) {
    ASSERT_LE(heard.tokens.size(), alone_.size()) << where;
    for (size_t i = 0; i < heard.tokens.size(); ++i) ASSERT_EQ(heard.tokens[i], alone_[i]) << where << ", token " << i;
  }

  static std::vector<std::string> alone_;
};
std::vector<std::string> ModelChange::alone_;

TEST_F(ModelChange, NoClientHearsATokenOfAnotherModel) {
  constexpr Kind kKinds[] = {Kind::kConfig, Kind::kTable, Kind::kWeights, Kind::kGeneration, Kind::kTokenizer};
  int cut_off = 0;
  for (int attempt = 0; attempt < 20; ++attempt) {
    const Kind kind = kKinds[attempt % 5];
    const bool with_journal = attempt % 2 == 1;
    const bool in_place = attempt / 5 % 2 == 1;
    const std::string where = "attempt " + std::to_string(attempt);
    const Model model;
    Heard heard;
    {
      Serving server(Words(model, with_journal), model.folder());
      ASSERT_TRUE(server.Logs("ready")) << server.Log();
      const pid_t worker = WorkerOf(server.port());
      HttpClient client(server.port());
      client.SendRaw(Request());
      std::string raw;
      while (Hear(raw).tokens.size() < 10) raw += client.ReadUntil("\n\n");
      model.Change(kind, in_place);
      kill(worker, SIGKILL);
      raw += client.ReadToEnd();
      heard = Hear(raw);
      ExpectOld(heard, where);
      cut_off += heard.tokens.size() < alone_.size() ? 1 : 0;
      EXPECT_EQ(server.Wait(seconds(20)), 3) << where << server.Log();
      EXPECT_NE(server.Log().find("model_changed"), std::string::npos) << where << server.Log();
    }
    if (!with_journal) continue;
    Serving next(Words(model, true), model.folder());
    ASSERT_TRUE(next.Logs("ready")) << where << next.Log();
    EXPECT_NE(next.Log().find("unfinished=0"), std::string::npos) << where << next.Log();
    EXPECT_EQ(Call(next.port(), "GET", "/v1/streams/" + heard.answer).status, 404) << where;
  }
  EXPECT_GE(cut_off, 15);
}

// The name of a file is none of its content: kept streams end with the table that began them.
TEST_F(ModelChange, AJournalIsOfTheFilesThatBeganIt) {
  for (const bool changes : {false, true}) {
    const Model model;
    std::string raw, answer;
    {
      Serving server(Words(model, true), model.folder());
      ASSERT_TRUE(server.Logs("ready")) << server.Log();
      HttpClient client(server.port());
      client.SendRaw(Request());
      while (Hear(raw).tokens.size() < 10) raw += client.ReadUntil("\n\n");
      answer = Hear(raw).answer;
      server.Signal(SIGKILL);
      server.Wait(seconds(5));
    }
    if (changes) model.Change(Kind::kTable, true);
    Serving next(Words(model, true), model.folder());
    ASSERT_TRUE(next.Logs("ready")) << next.Log();
    const Reply reply = Call(next.port(), "GET", "/v1/streams/" + answer);
    EXPECT_EQ(reply.status, changes ? 404 : 200) << reply.body;
    if (reply.status == 200) ExpectOld(Hear(reply.body), "after a restart");
  }
}

// Bytes that are what they were are no change, whoever writes them, and a file that is gone for a moment is none.
TEST_F(ModelChange, TheSameBytesAgainAreTheSameModel) {
  const Model model;
  Serving server(Words(model, false), model.folder());
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  for (const std::string name : {"config.json", "model.safetensors", "tokenizer_config.json"}) {
    const std::string path = model.folder() + "/" + name;
    std::filesystem::rename(path, path + ".old");
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    // In one step: half of a file, where the server looks for it just then, is a change.
    std::filesystem::copy_file(path + ".old", path + ".new");
    std::filesystem::rename(path + ".new", path);
    kill(WorkerOf(server.port()), SIGKILL);
    HttpClient client(server.port());
    client.SendRaw(Request());
    const Heard heard = Hear(client.ReadToEnd());
    ExpectOld(heard, name);
    EXPECT_EQ(heard.tokens.size(), alone_.size()) << name << server.Log();
  }
  EXPECT_NE(server.Log().find("model_file_missing"), std::string::npos) << server.Log();
  EXPECT_EQ(server.Log().find("model_changed"), std::string::npos) << server.Log();
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(seconds(20)), 0);
}

// On CPUs weights are read where they are mapped: between the change and the next look at the file nothing is told.
TEST_F(ModelChange, WeightsThatAreWrittenToAreToldNothingOf) {
  for (int attempt = 0; attempt < 4; ++attempt) {
    const Model model;
    Serving server(Words(model, false), model.folder());
    ASSERT_TRUE(server.Logs("ready")) << server.Log();
    HttpClient client(server.port());
    client.SendRaw(Request());
    std::string raw;
    while (Hear(raw).tokens.size() < 10) raw += client.ReadUntil("\n\n");
    model.Change(Kind::kWeights, true);
    raw += client.ReadToEnd();
    ExpectOld(Hear(raw), "attempt " + std::to_string(attempt));
    EXPECT_EQ(server.Wait(seconds(20)), 3) << server.Log();
  }
}

}  // namespace
}  // namespace stoch::test
