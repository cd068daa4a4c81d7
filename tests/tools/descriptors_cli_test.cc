// SPDX-License-Identifier: Apache-2.0
// Every standard descriptor closed, full, non-blocking or abandoned, under every kind of command.

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <regex>
#include <sstream>

#include "tests/serve/http_client.h"
#include "tests/support/chat_python.h"
#include "tests/support/temp_dir.h"
#include "tests/tools/child.h"
#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

constexpr int kReaderGone = 0;  // who went away has what was asked
constexpr size_t kPage = 4096;

struct Command {
  const char* name;
  std::vector<std::string> arguments;
  std::string input;   // "": it reads none
  bool prints = true;  // on standard output
  size_t page_bytes = 0;
};

std::string Story(int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += "Once upon a time, there was a little girl named Lily. ";
  return text;
}

// More than a pipe holds, of each.
std::vector<Command> Commands() {
  return {
      {"generate", WithDemo("generate", {"--max-tokens", "6"}), "Once upon a time\n"},
      {"perplexity",
       WithDemo("perplexity", {"--file", "-", "--ctx", "16", "--max-windows", "1", "--precision", "fp32", "--json"}),
       Story(3)},
      {"tokenize", {"tokenize", "--model", DemoModel()}, Story(1000)},
      {"inspect", WithDemo("inspect"), ""},
      {"worker", WithDemo("worker", {"--socket-fd", "3", "--page-fd", "4"}), "", false, kPage},
  };
}

// Without what no two runs have in common.
std::string Timeless(const std::string& text) {
  static const std::regex kVarying("\"elapsed_ms\":[0-9.e+-]+|[0-9.]+ [kMG]?B free of");
  return std::regex_replace(text, kVarying, "");
}

ProcessResult RunOn(const Command& command, const Ends& ends) {
  Child child(command.arguments, ends, command.input, command.page_bytes);
  ProcessResult result = child.Wait();
  result.out = Timeless(result.out);
  return result;
}

class DescriptorsCli : public testing::TestWithParam<Command> {
 protected:
  void SetUp() override { reference_ = RunOn(GetParam(), {}); }

  void ExpectSame(const ProcessResult& result, const std::string& what) const {
    EXPECT_EQ(result.exit_code, reference_.exit_code) << what << ": " << result.err;
    EXPECT_EQ(result.out, reference_.out) << what;
  }

  ProcessResult reference_;
};

// An unwritable, full or closed standard error changes nothing; a slow reader gets every byte.
TEST_P(DescriptorsCli, StandardErrorChangesNothing) {
  for (const End end : {End::kClosed, End::kFull, End::kNonBlocking, End::kGone}) {
    const ProcessResult result = RunOn(GetParam(), {.err = end});
    ExpectSame(result, EndName(end));
    if (end != End::kNonBlocking || GetParam().name == std::string("generate")) continue;  // which tells times
    EXPECT_EQ(result.err, reference_.err);
  }
}

TEST_P(DescriptorsCli, StandardOutputIsWrittenWholeOrSaysWhyNot) {
  const bool prints = GetParam().prints;
  ExpectSame(RunOn(GetParam(), {.out = End::kNonBlocking}), "nonblocking");
  for (const End end : {End::kClosed, End::kFull, End::kGone}) {
    const ProcessResult result = RunOn(GetParam(), {.out = end});
    if (!prints) {
      ExpectSame(result, EndName(end));
      continue;
    }
    EXPECT_EQ(result.exit_code, end == End::kGone ? kReaderGone : 2) << EndName(end);
    const bool told = result.err.find("standard output: cannot be written") != std::string::npos;
    EXPECT_EQ(told, end != End::kGone) << EndName(end) << ": " << result.err;
    EXPECT_EQ(result.err.find("internal"), std::string::npos) << result.err;
  }
}

TEST_P(DescriptorsCli, StandardInputIsReadWholeOrSaysWhyNot) {
  ExpectSame(RunOn(GetParam(), {.in = End::kNonBlocking}), "nonblocking");
  for (const End end : {End::kClosed, End::kFull, End::kGone}) {
    const ProcessResult result = RunOn(GetParam(), {.in = end});
    if (GetParam().input.empty()) {
      ExpectSame(result, EndName(end));
      continue;
    }
    if (end == End::kGone) {  // an empty text, which some commands take
      EXPECT_TRUE(result.exit_code == 0 || result.exit_code == 2) << result.err;
      continue;
    }
    ExpectRefused(result, end == End::kClosed ? "standard input: cannot be read" : "standard input: has more than");
  }
}

TEST_P(DescriptorsCli, AllOfThemWithoutBlocking) {
  const ProcessResult result =
      RunOn(GetParam(), {.in = End::kNonBlocking, .out = End::kNonBlocking, .err = End::kNonBlocking});
  ExpectSame(result, "nonblocking");
}

// No file or socket of the program gets a number below 3.
TEST_P(DescriptorsCli, AllOfThemClosed) {
  const ProcessResult result = RunOn(GetParam(), {.in = End::kClosed, .out = End::kClosed, .err = End::kClosed});
  EXPECT_EQ(result.exit_code, GetParam().prints ? 2 : reference_.exit_code);
}

INSTANTIATE_TEST_SUITE_P(Commands, DescriptorsCli, testing::ValuesIn(Commands()),
                         [](const auto& of) { return std::string(of.param.name); });

// A server that may have every descriptor closed or full but standard output, where it says its address.
class DescriptorsServe : public testing::TestWithParam<Ends> {
 protected:
  static std::vector<std::string> Arguments() { return WithDemo("serve", {"--port", "0"}); }

  // Waits for the address, and until requests are answered.
  static std::optional<uint16_t> PortOf(const Child& server) {
    const std::string before = "listening on http://127.0.0.1:";
    for (int i = 0; i < 4000; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      const std::string out = server.Out();
      if (out.find('\n') == std::string::npos) continue;
      const auto port = static_cast<uint16_t>(std::stoi(out.substr(out.find(before) + before.size())));
      if (Call(port, "GET", "/health").status == 200) return port;
    }
    return std::nullopt;
  }

  static std::vector<pid_t> WorkersOf(uint16_t port) {
    std::vector<pid_t> workers;
    const nlohmann::json health = Call(port, "GET", "/health").Json();
    for (const auto& worker : health["workers"]) workers.push_back(worker["pid"]);
    return workers;
  }

  static std::string FileOf(pid_t pid, int fd) {
    return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd)).string();
  }
};

TEST_P(DescriptorsServe, ServesAndEndsAsAlways) {
  Child server(Arguments(), GetParam());
  const std::optional<uint16_t> port = PortOf(server);
  ASSERT_TRUE(port.has_value()) << server.Err();
  const std::vector<pid_t> workers = WorkersOf(*port);
  ASSERT_EQ(workers.size(), 1u);
  const End ends[] = {GetParam().in, GetParam().out, GetParam().err};
  for (const pid_t pid : {server.pid(), workers[0]}) {
    for (int fd = 0; fd < 3; ++fd) {
      if (ends[fd] != End::kClosed) continue;
      EXPECT_EQ(FileOf(pid, fd), "/dev/null") << fd;
    }
  }
  const Reply reply = Call(*port, "POST", "/v1/completions", R"({"prompt": "Once", "max_tokens": 3})");
  EXPECT_EQ(reply.status, 200) << reply.body;
  kill(server.pid(), SIGTERM);
  EXPECT_EQ(server.Wait(std::chrono::seconds(30)).exit_code, 0);
}

INSTANTIATE_TEST_SUITE_P(Serve, DescriptorsServe,
                         testing::Values(Ends{.in = End::kClosed}, Ends{.in = End::kFull},
                                         Ends{.in = End::kNonBlocking}, Ends{.in = End::kGone},
                                         Ends{.out = End::kNonBlocking}, Ends{.err = End::kClosed},
                                         Ends{.err = End::kFull}, Ends{.err = End::kNonBlocking},
                                         Ends{.err = End::kGone}, Ends{.in = End::kClosed, .err = End::kClosed}),
                         [](const auto& of) {
                           return "in_" + EndName(of.param.in) + "_out_" + EndName(of.param.out) + "_err_" +
                                  EndName(of.param.err);
                         });

TEST(DescriptorsServeOutput, AnAddressThatNobodyCanReadIsAnError) {
  for (const End end : {End::kClosed, End::kFull, End::kGone}) {
    Child server(WithDemo("serve", {"--port", "0"}), {.out = end});
    const ProcessResult result = server.Wait(std::chrono::seconds(30));
    EXPECT_EQ(result.exit_code, end == End::kGone ? kReaderGone : 2) << EndName(end) << ": " << result.err;
  }
}

// The demo model with a chat format.
class ChatCli : public testing::Test {
 protected:
  void SetUp() override {
    STOCH_REQUIRE_JINJA();
    for (const auto& file : std::filesystem::directory_iterator(DemoModel())) {
      std::filesystem::copy(file.path(), folder_ / file.path().filename().string());
    }
    std::filesystem::remove(folder_ / "chat_template.jinja");
    std::filesystem::copy_file(STOCH_SOURCE_DIR "/tests/serve/clients/chat_tokenizer_config.json",
                               folder_ / "tokenizer_config.json", std::filesystem::copy_options::overwrite_existing);
  }

  ProcessResult Talk(const std::string& input, const Ends& ends = {}, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"generate",  "--model", folder_.path(), "--chat", "--device", "cpu",
                                          "--threads", "1",       "--max-tokens", "6",      "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Child(arguments, ends, input).Wait();
  }

  TempDir folder_;
};

TEST_F(ChatCli, ALineThatCannotBeTakenIsLeftOut) {
  const std::string hello = "Hello there.\n", tom = "Where is Tom?\n";
  const ProcessResult good = Talk(hello + tom);
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(good.err, "");
  EXPECT_EQ(std::count(good.out.begin(), good.out.end(), '\n'), 2) << good.out;
  const std::string far_too_long(size_t{17} << 20, 'a');
  for (const auto& [bad, words] : std::vector<std::pair<std::string, std::string>>{
           {"a\xff\xfe", "UTF-8"}, {Story(100), "context"}, {far_too_long, "bytes"}}) {
    const ProcessResult result = Talk(hello + bad + "\n" + tom);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, good.out) << words;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.err.rfind("error: ", 0), 0u) << result.err;
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
  }
}

TEST_F(ChatCli, DoesNotNeedDescriptorsThatBlock) {
  const std::string lines = "Hello there.\n\nWhere is Tom?";
  const ProcessResult good = Talk(lines);
  ASSERT_EQ(good.exit_code, 0) << good.err;
  const ProcessResult result =
      Talk(lines, {.in = End::kNonBlocking, .out = End::kNonBlocking, .err = End::kNonBlocking});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, good.out);
}

TEST_F(ChatCli, EndsWithItsDescriptors) {
  ExpectRefused(Talk("", {.in = End::kClosed}), "standard input: cannot be read");
  EXPECT_EQ(Talk("Hello.\n", {.out = End::kFull}).exit_code, 2);
  const ProcessResult gone = Talk("Hello.\n", {.out = End::kGone});
  EXPECT_EQ(gone.exit_code, kReaderGone);
  EXPECT_EQ(gone.err, "");
  ExpectRefused(Talk("Hello.\n", {}, {"--system", "a\xff"}), "UTF-8");
}

}  // namespace
}  // namespace stoch::test
