// SPDX-License-Identifier: Apache-2.0
// A worker of a model folder that crashes in every pass with a certain token: --model DIR --poison ID --socket-fd N
// --page-fd M. With --kills FILE it kills itself there instead, once for every byte of the file, of which it takes one;
// with --code N too, the device fails there instead with that CUDA error; with --sent N another process sends that signal;
// with --hangs yes the pass goes on for ever; with --lingers yes it takes long to end where its device failed. With
// --late FILE the device is ahead of its host, and an op of such a pass fails on it (--op N, from 1); its name is added
// to FILE. With --told yes the worker can ask which op runs; with --hangs yes the op never ends.

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "engine/worker/worker.h"
#include "kernels/base/device_fault.h"
#include "kernels/call_check.h"
#include "kernels/registry.h"
#include "tests/support/failing_backend.h"
#include "tests/support/late_backend.h"

namespace {

// Another process does it; this one waits for its end.
[[noreturn]] void HaveSent(int signal_number) {
  const pid_t child = fork();
  if (child == 0) {
    kill(getppid(), signal_number);
    _exit(0);
  }
  for (;;) pause();
}

[[noreturn]] void Hang() {
  for (;;) pause();
}

}  // namespace

int main(int argc, char** argv) {
  using namespace stoch;  // NOLINT(google-build-using-namespace): the whole program is this function
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::map<std::string, std::string> given;
  for (int i = 1; i + 1 < argc; i += 2) given[argv[i]] = argv[i + 1];
  serve::Worker worker(std::stoi(given["--socket-fd"]), std::stoi(given["--page-fd"]));
  const auto late = std::make_shared<test::LateBackend>(OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr));
  late->on_failure = [file = given["--late"]](const OpSite& site) {
    std::ofstream(file, std::ios::app) << SiteName(site) << "\n";
  };
  late->is_told = !given["--told"].empty();
  late->hangs = !given["--hangs"].empty();
  auto backend = std::make_shared<test::FailingBackend>(late);
  const int32_t poison = std::stoi(given["--poison"]);
  const int code = given["--code"].empty() ? 0 : std::stoi(given["--code"]);
  const int sent = given["--sent"].empty() ? 0 : std::stoi(given["--sent"]);
  const bool hangs = !given["--hangs"].empty();
  const bool is_late = !given["--late"].empty();
  const int op = given["--op"].empty() ? 0 : std::stoi(given["--op"]);
  backend->before_pass = [=, kills = given["--kills"]](const PassLayout& layout) {
    if (std::find(layout.ids.begin(), layout.ids.end(), poison) == layout.ids.end()) return;
    if (is_late) {
      late->fail_at = late->ops + op;
      return;
    }
    if (kills.empty()) raise(SIGSEGV);
    const uintmax_t left = std::filesystem::file_size(kills);
    if (left == 0) return;
    std::filesystem::resize_file(kills, left - 1);
    if (sent != 0) HaveSent(sent);
    if (hangs) Hang();
    if (code == 0) raise(SIGKILL);
    if (!IsSticky(code)) throw DeviceRefusal("refused");
    throw DeviceError("sticky");
  };
  EngineOptions options;
  options.context = 128;
  options.max_sequences = 8;
  options.max_pass_rows = 48;
  const std::unique_ptr<Engine> engine =
      Engine::Open(worker.Marked(std::move(backend), is_late), OpenModelFiles(given["--model"]), options);
  try {
    worker.Serve(*engine, {});
  } catch (const DeviceError& error) {
    worker.Fail(error.what(), 3);
    if (!given["--lingers"].empty()) sleep(60);
    return 3;
  }
  return 0;
}
