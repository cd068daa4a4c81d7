// SPDX-License-Identifier: Apache-2.0
// Writes tests/golden/logits_sha256.txt to standard output from the scalar reference:
//     record_logits_sha256 > tests/golden/logits_sha256.txt
// or only the lines of models that are given by name.
// Only for a deliberate change of the arithmetic or of the cases; needs the reference data.

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "kernels/registry.h"
#include "tests/engine/logits_cases.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

void Record(const std::vector<std::string>& wanted) {
  std::printf(
      "# sha256 of logits, version 1: MODEL CONFIG HASH. Cases: tests/engine/logits_cases.cc (tiny model: seed 1 of\n"
      "# tests/support/tiny_model.h). Written by tests/engine/record_logits_sha256.cc on the scalar CPU backend.\n");
  BackendOptions options;
  options.threads = 1;
  options.cpu_variant = "scalar";
  const std::shared_ptr<Backend> backend = OpenBackend("cpu", options, nullptr);
  const TempDir scratch;
  std::vector<LogitsModel> models = {TinyLogitsModel(scratch.path())};
  for (const std::string& name : SharedLogitsModels()) models.push_back(SharedLogitsModel(name));
  const size_t llamas = models.size();
  for (LogitsModel& model : RandomFamilyModels(scratch.path())) models.push_back(std::move(model));
  for (const std::string& name : SharedFamilyNames()) models.push_back(SharedFamilyModel(name));
  for (size_t i = 0; i < models.size(); ++i) {
    const LogitsModel& model = models[i];
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), model.name) == wanted.end()) continue;
    for (const LogitsConfig& config : LogitsConfigs()) {
      if (i >= llamas && !IsFamilyConfig(config)) continue;
      const auto engine = OpenCase(backend, model.folder, config);
      const std::string hash = HashRun(*engine, model.prompt, {});
      std::printf("%s %s %s\n", model.name.c_str(), config.name, hash.c_str());
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace stoch::test

int main(int argc, char** argv) {
  stoch::test::Record({argv + 1, argv + argc});
  return 0;
}
