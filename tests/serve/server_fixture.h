// SPDX-License-Identifier: Apache-2.0
// A running server with a random tiny model, and a second engine of the same model to compare with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/chat/chat.h"
#include "engine/generate.h"
#include "engine/serve/server.h"
#include "engine/worker/local_model.h"
#include "engine/worker/scheduler.h"
#include "kernels/registry.h"
#include "tests/serve/http_client.h"
#include "tests/support/chat_python.h"
#include "tests/support/failing_backend.h"
#include "tests/support/letters_tokenizer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {

using Json = nlohmann::json;

// `condition` comes true within a minute, which sanitizers on a busy machine may need.
inline bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 12000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return condition();
}

// The number in an environment variable: how much of a test that can go on for any time is run.
inline int NumberFromEnvironment(const char* name, int fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::atoi(text);
}

// The device is that of STOCH_TEST_DEVICE, or the devices: "cpu:2".
class ServerFixture : public testing::Test {
 protected:
  static constexpr int64_t kContext = 128;

  explicit ServerFixture(int64_t context = kContext) {
    TinyModel model;
    model.config.max_position_embeddings = context;
    WriteTinyModel(scratch_.path(), model);
    engine_options_.context = context;
    engine_options_.max_sequences = 4;
    engine_options_.max_pass_rows = 48;
    server_options_.http.port = 0;
    server_options_.model_id = "tiny";
    server_options_.api.default_seed = 0;  // the same question gets the same answer
  }

  std::unique_ptr<Engine> OpenEngine() const {
    const char* device = std::getenv("STOCH_TEST_DEVICE");
    auto backend = std::make_shared<FailingBackend>(
        OpenBackend(device == nullptr ? "cpu" : device, {.threads = 1, .cpu_variant = ""}, nullptr));
    backend->before_attention = before_attention_;
    // Layers in turn on all devices, so that several passes are in flight.
    const std::span<const Device> devices = backend->devices();
    ModelFiles files = OpenModelFiles(scratch_.path().string());
    DecoderPlacement placement = SingleDevice(files.config, devices.front());
    const size_t layers = placement.layers.size();
    for (size_t i = 0; i < layers; ++i) placement.layers[i] = devices[i * devices.size() / layers];
    placement.head = placement.layers.back();
    EngineOptions options = engine_options_;
    options.placement = placement;
    return Engine::Open(std::move(backend), std::move(files), options);
  }
  void Listen() {
    server_options_.max_choices = runner_options_.max_queue;
    server_ = std::make_unique<serve::Server>(server_options_, [this](const serve::LogLine& line) {
      const std::lock_guard lock(log_mutex_);
      log_.push_back(serve::FormatLogLine(line));
    });
  }
  void StartServer() { StartServer(tokenizer_); }
  void StartServer(const Tokenizer& tokenizer) {
    Listen();
    engine_ = OpenEngine();
    Attach(&tokenizer);
  }
  void Attach(const Tokenizer* tokenizer) {
    std::string why = "there is no tokenizer";
    chat_settings_.pythons = {ChatPython()};
    chat_ = tokenizer == nullptr ? nullptr : OpenChat(*tokenizer, chat_settings_, &why);
    server_->Attach(serve::Describe(*engine_), {tokenizer, chat_.get(), chat_ == nullptr ? why : "", check_grammar_},
                    std::make_unique<serve::Scheduler>(*engine_, runner_options_));
  }

  uint16_t port() const { return server_->port(); }
  Reply Post(const std::string& path, const Json& body) const { return Call(port(), "POST", path, body.dump()); }
  Json Complete(const Json& body) const {
    const Reply reply = Post("/v1/completions", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.Json();
  }
  // The chunks of a stream put together to the choices that the whole answer has.
  Json Collect(Json body) const {
    body["stream"] = true;
    const Reply reply = Post("/v1/completions", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream");
    std::vector<std::string> events = reply.Events();
    EXPECT_EQ(events.back(), "[DONE]");
    events.pop_back();
    std::map<int, Json> choices;
    for (const std::string& event : events) {
      const Json chunk = Json::parse(event);
      EXPECT_EQ(chunk["object"], "text_completion") << event;
      for (const Json& piece : chunk["choices"]) {
        Json& choice = choices[piece["index"].get<int>()];
        if (choice.is_null()) {
          choice = piece;
          continue;
        }
        EXPECT_TRUE(choice["finish_reason"].is_null());
        choice["text"] = choice["text"].get<std::string>() + piece["text"].get<std::string>();
        choice["finish_reason"] = piece["finish_reason"];
        if (piece.contains("logits_sha256")) choice["logits_sha256"] = piece["logits_sha256"];
        for (const auto& [name, values] : piece["logprobs"].items()) {
          for (const Json& value : values) choice["logprobs"][name].push_back(value);
        }
      }
    }
    Json all = Json::array();
    for (const auto& [index, choice] : choices) all.push_back(choice);
    return all;
  }
  // The value of a metric without labels, or with the labels as they are printed.
  double Metric(const std::string& name) const { return test::Metric(port(), name); }
  // The first line of the log with this in it, "" if there is none.
  std::string LogLine(const std::string& part) {
    const std::lock_guard lock(log_mutex_);
    for (const std::string& line : log_) {
      if (line.find(part) != std::string::npos) return line;
    }
    return "";
  }
  bool Logged(const std::string& part) { return !LogLine(part).empty(); }
  int64_t CountLogLines(const std::string& part) {
    const std::lock_guard lock(log_mutex_);
    return std::count_if(log_.begin(), log_.end(),
                         [&](const std::string& line) { return line.find(part) != std::string::npos; });
  }

  TempDir scratch_;
  EngineOptions engine_options_;
  serve::ServerOptions server_options_;
  serve::RunnerOptions runner_options_;
  std::function<void(int64_t rows)> before_attention_;  // of the engines that are opened from now on
  LettersTokenizer tokenizer_;
  std::mutex log_mutex_;
  std::vector<std::string> log_;
  std::unique_ptr<Engine> engine_;
  ChatSettings chat_settings_;
  std::function<void(const GrammarSpec&)> check_grammar_;  // empty: there are no grammars
  std::unique_ptr<Chat> chat_;
  std::unique_ptr<serve::Server> server_;
};

}  // namespace stoch::test
