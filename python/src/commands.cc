// SPDX-License-Identifier: Apache-2.0
// The commands of the command line, in process; and the log of C++ as Python's.

#include "tools/stoch/commands.h"

#include <nanobind/stl/function.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "python/src/base/bind.h"
#include "python/src/base/devices.h"
#include "python/src/model.h"

namespace nb = nanobind;

namespace stoch::python {
namespace {

// Levels of Python's logging.
int PythonLevel(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::trace:
    case spdlog::level::debug: return 10;
    case spdlog::level::info: return 20;
    case spdlog::level::warn: return 30;
    case spdlog::level::err: return 40;
    default: return 50;
  }
}

// Without a lock of its own: one thread would hold it and wait for the GIL, another hold the GIL and wait for it.
class PythonSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (Py_IsInitialized() == 0 || WasForked()) return;
    const nb::gil_scoped_acquire gil;
    try {
      const nb::object log = nb::module_::import_("logging").attr("getLogger")("stoch");
      log.attr("log")(PythonLevel(message.level), "%s", nb::str(message.payload.data(), message.payload.size()));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("stoch: logging");
    }
  }
  void flush_() override {}
};

// What the command printed, and whether every check passed.
std::pair<std::string, bool> RunCommand(const std::vector<std::string>& arguments, const Progress& progress) {
  RequireNotForked();
  WatchForFork();
  std::string printed;
  cli::Host host;
  host.print = [&printed](std::string_view text) { printed += text; };
  host.check = CheckSignals;
  if (progress) {
    host.progress = [&progress](int64_t done, int64_t total, const std::string& label) {
      const nb::gil_scoped_acquire gil;
      progress(done, total, label);
    };
  }
  const bool passed = cli::RunInProcess(arguments, host) == cli::kDone;
  return {std::move(printed), passed};
}

}  // namespace

void BindCommands(nb::module_& m) {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("stoch", std::make_shared<PythonSink>()));
  m.def("run_command", &RunCommand, nb::arg("arguments"), nb::arg("progress").none(),
        nb::call_guard<nb::gil_scoped_release>(), "(what `stoch ARGUMENTS` prints, whether all of its checks passed)");
}

}  // namespace stoch::python
