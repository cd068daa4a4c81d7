// SPDX-License-Identifier: Apache-2.0
// The process that renders chat templates, from C++: goldens of transformers, refusals, and a process that is lost.
#include "engine/chat/chat_renderer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/chat_python.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

using json = OrderedJson;  // in the order of the file

ChatRenderer::Settings Command() { return {.pythons = {ChatPython()}}; }

class ChatRendering : public testing::Test {
 protected:
  void SetUp() override { STOCH_REQUIRE_JINJA(); }
  const json hello_ = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}};
};

TEST_F(ChatRendering, IsThatOfTransformers) {
  const json golden = json::parse(ReadFile(std::string(STOCH_SOURCE_DIR) + "/tests/golden/chat_templates.json"));
  int compared = 0;
  for (const char* name : {"tiny-mistral", "tiny-qwen2", "tiny-qwen3", "macros", "tools", "date", "white_space"}) {
    const json& expected = golden["templates"][name];
    ChatRenderer renderer(Command(), expected["source"]);
    for (size_t i = 0; i < golden["requests"].size(); ++i) {
      json request = golden["requests"][i];
      json kwargs = golden["special"];
      if (request.contains("kwargs")) kwargs.update(request["kwargs"]);
      request["kwargs"] = kwargs;
      request["now"] = golden["now"];
      if (expected["rendered"][i].is_null()) {
        EXPECT_THROW((void)renderer.Render(request), InvalidInput) << name << i;
      } else {
        EXPECT_EQ(renderer.Render(request), expected["rendered"][i].get<std::string>()) << name << i;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 50);
}

TEST_F(ChatRendering, RefusesInTheWordsOfTheTemplate) {
  ChatRenderer renderer(
      Command(),
      "{% if messages|length > 1 %}{{ raise_exception('one message only') }}{% endif %}{{ 1 / (messages|length) }}");
  json two = hello_;
  two["messages"].push_back(two["messages"][0]);
  ExpectInvalid([&] { (void)renderer.Render(two); }, {"one message only"});
  ExpectInvalid(
      [&] {
        (void)renderer.Render({{"messages", json::array()}});
      },
      {"the chat template fails: ZeroDivisionError"});
  EXPECT_EQ(renderer.Render(hello_), "1.0");
}

TEST_F(ChatRendering, TemplatesThatAreNoneNameTheLine) {
  ExpectInvalid([] { ChatRenderer(Command(), "a\n{% if %}"); }, {"the chat template cannot be read: line 2"});
}

TEST_F(ChatRendering, EndlessTemplatesAreStoppedAndTheNextRequestRuns) {
  auto settings = Command();
  settings.render_limit = std::chrono::milliseconds(300);
  ChatRenderer renderer(settings,
                        "{% if messages[0].content == 'loop' %}{% for i in range(99999) %}{% for k in range(99999) %}"
                        "{% endfor %}{% endfor %}{% endif %}done");
  EXPECT_EQ(renderer.Render(hello_), "done");
  for (int i = 0; i < 3; ++i) {
    ExpectInvalid(
        [&] {
          (void)renderer.Render({{"messages", {{{"role", "user"}, {"content", "loop"}}}}});
        },
        {"the chat template takes too long"});
    EXPECT_EQ(renderer.Render(hello_), "done");
  }
}

// A machine on which it has no turn for longer than a render may take.
TEST_F(ChatRendering, ABusyMachineEndsNoTemplate) {
  auto settings = Command();
  settings.render_limit = std::chrono::milliseconds(200);
  ChatRenderer renderer(settings, "done");
  std::ifstream children("/proc/self/task/" + std::to_string(gettid()) + "/children");
  pid_t pid = 0;
  ASSERT_TRUE(children >> pid);
  kill(pid, SIGSTOP);
  std::thread turn([pid] {
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    kill(pid, SIGCONT);
  });
  EXPECT_NO_THROW(EXPECT_EQ(renderer.Render(hello_), "done"));
  turn.join();
  kill(pid, SIGSTOP);
  ExpectInvalid([&] { (void)renderer.Render(hello_); }, {"the chat template takes too long"});  // for good
  EXPECT_EQ(renderer.Render(hello_), "done");
}

TEST_F(ChatRendering, ManyThreadsMayShareOne) {
  ChatRenderer renderer(Command(), "{{ messages[0].content }}");
  std::vector<std::thread> threads;
  std::vector<int> right(4);
  for (size_t t = 0; t < right.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string text = std::to_string(t) + std::string(static_cast<size_t>(i) * 1000, 'x');
        right[t] += renderer.Render({{"messages", {{{"role", "user"}, {"content", text}}}}}) == text ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, std::vector<int>(4, 50));
}

TEST(ChatRenderingWithout, JinjaNamesWhatInstallsIt) {
  ExpectInvalid([] { ChatRenderer({.pythons = {"/bin/false"}}, "x"); }, {"apt-get install python3-jinja2"});
  ExpectInvalid([] { ChatRenderer({.pythons = {"/nowhere/python3"}}, "x"); }, {"/nowhere/python3", "No such file"});
}

// As under a service manager whose filter of system calls does not know of it.
TEST(ChatRenderingWithout, SeccompSaysSo) {
  const TempDir folder;
  const std::string python = folder / "python3";
  WriteFile(python, "#!/bin/sh\nkill -SYS $$\n");
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  ExpectInvalid([&] { ChatRenderer({.pythons = {python}}, "x"); }, {"has to allow seccomp"});
}

}  // namespace
}  // namespace stoch::test
