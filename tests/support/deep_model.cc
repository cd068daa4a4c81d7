// SPDX-License-Identifier: Apache-2.0
#include "tests/support/deep_model.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "loader/checkpoint/safetensors.h"
#include "loader/checkpoint/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {

void WriteDeepModel(const std::filesystem::path& from, const std::filesystem::path& folder, int layers) {
  std::filesystem::create_directories(folder);
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (name == "config.json" || name == "model.safetensors") continue;
    std::filesystem::copy(entry.path(), folder / name);
  }
  nlohmann::json config = nlohmann::json::parse(ReadFile(from / "config.json"));
  const int own = config["num_hidden_layers"].get<int>();
  config["num_hidden_layers"] = own + layers;
  WriteFile(folder / "config.json", config.dump());

  const SafetensorsFile file(from / "model.safetensors");
  const std::string first = "model.layers.0.";
  std::vector<SafetensorsSpec> specs;
  std::vector<const SafetensorsTensor*> sources;
  for (const SafetensorsTensor& tensor : file.tensors()) {
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
    sources.push_back(&tensor);
    if (!tensor.name.starts_with(first)) continue;
    for (int layer = own; layer < own + layers; ++layer) {
      const std::string name = "model.layers." + std::to_string(layer) + "." + tensor.name.substr(first.size());
      specs.push_back({name, tensor.dtype, tensor.shape});
      sources.push_back(&tensor);
    }
  }
  SafetensorsWriter writer(folder / "model.safetensors", specs, {});
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string_view name = specs[i].name;
    const bool adds = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
    const bool is_new = name != sources[i]->name;
    if (adds && is_new) {
      writer.Append(std::vector<std::byte>(static_cast<size_t>(sources[i]->size_bytes)));
    } else {
      writer.Append(file.Data(*sources[i]));
    }
  }
  writer.Finish();
}

}  // namespace stoch::test
