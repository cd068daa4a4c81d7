// SPDX-License-Identifier: Apache-2.0
// write_loader_seeds FOLDER: starting points for safetensors_fuzz, config_fuzz and gguf_fuzz, in FOLDER/safetensors,
// FOLDER/config and FOLDER/gguf, made from tiny models.

#include <cstdio>
#include <filesystem>
#include <string>

#include "tests/loader/gguf_samples.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

namespace fs = std::filesystem;

DecoderConfig SmallestConfig() {
  DecoderConfig config = TinyLlamaConfig();
  config.hidden_size = 4;
  config.intermediate_size = 6;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 2;
  config.vocab_size = 5;
  return config;
}

void WriteSafetensorsSeeds(const fs::path& folder) {
  const TempDir model_folder;
  int number = 0;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    TinyModel model;
    model.config = SmallestConfig();
    model.dtype = dtype;
    WriteTinyModel(model_folder.path(), model);
    const std::string file = ReadFile(model_folder / "model.safetensors");
    WriteFile(folder / ("file" + std::to_string(number)), file);
    // The fuzz target's other reading of its input: data size, then the header text.
    size_t header_bytes = 0;
    for (size_t i = 0; i < 8; ++i) header_bytes |= static_cast<size_t>(static_cast<unsigned char>(file[i])) << (8 * i);
    const size_t data_bytes = file.size() - 8 - header_bytes;
    std::string text = {static_cast<char>(data_bytes & 0xff), static_cast<char>(data_bytes >> 8)};
    WriteFile(folder / ("header" + std::to_string(number++)), text + file.substr(8, header_bytes));
  }
  using namespace std::string_literals;
  WriteFile(folder / "small0", "\4\0{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"s);
  WriteFile(folder / "small1",
            "\0\0{\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"U8\",\"shape\":[0,3],"s +
                "\"data_offsets\":[0,0]},\"b\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[0,0]}}");
}

// The sample's header with one block of every type.
void WriteGgufSeeds(const fs::path& folder) {
  GgufBuilder file = SampleGguf();
  GgufBuilder no_tensors = file;
  no_tensors.tensors.clear();
  WriteFile(folder / "metadata", no_tensors.Bytes());
  for (GgufBuilder::Tensor& tensor : file.tensors) {
    if (tensor.dims.size() == 2) tensor.data.resize(tensor.data.size() / tensor.dims[1]);
    tensor.dims.resize(1);
  }
  WriteFile(folder / "blocks", file.Bytes());
}

void WriteConfigSeeds(const fs::path& folder) {
  DecoderConfig config = SmallestConfig();
  WriteFile(folder / "llama2", ConfigJson(config));
  config.rope_scaling = Llama3RopeScaling{};
  config.eos_token_ids = {1, 2, 3};
  WriteFile(folder / "llama3", ConfigJson(config));
  config = SmallestConfig();
  config.architecture = FindArchitecture("qwen3_moe");
  config.num_experts = 3;
  config.num_experts_per_tok = 2;
  config.moe_intermediate_size = 4;
  config.sparse_layers = {true};
  WriteFile(folder / "qwen3_moe", ConfigJson(config));
  config = SmallestConfig();
  config.architecture = FindArchitecture("mistral");
  config.windows = {3};
  WriteFile(folder / "mistral", ConfigJson(config));
  WriteFile(folder / "yarn", R"({"model_type":"qwen2","hidden_size":8,"intermediate_size":8,"num_hidden_layers":1,
    "num_attention_heads":2,"num_key_value_heads":1,"vocab_size":16,"max_position_embeddings":64,
    "use_sliding_window":true,"sliding_window":4,"max_window_layers":0,"layer_types":["sliding_attention"],
    "rope_scaling":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":16,"mscale":1.0,
    "mscale_all_dim":1.0,"beta_fast":16,"truncate":false}})");
  WriteFile(folder / "parameters", R"({"architectures":["LlamaForCausalLM"],"hidden_size":8,"intermediate_size":8,
    "num_hidden_layers":1,"num_attention_heads":2,"vocab_size":16,"max_position_embeddings":4,
    "rope_parameters":{"rope_theta":5e5,"rope_type":"default"},"partial_rotary_factor":1.0,"eos_token_id":null})");
  WriteFile(folder / "generation", R"({"bos_token_id": 1, "eos_token_id": [1, 2]})");
  WriteFile(folder / "index",
            R"({"metadata": {"total_size": 8}, "weight_map": {"a": "m-1.safetensors", "b": "../m"}})");
}

}  // namespace
}  // namespace stoch::test

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: write_loader_seeds FOLDER\n", stderr);
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  std::filesystem::create_directories(folder / "safetensors");
  std::filesystem::create_directories(folder / "config");
  stoch::test::WriteSafetensorsSeeds(folder / "safetensors");
  std::filesystem::create_directories(folder / "gguf");
  stoch::test::WriteGgufSeeds(folder / "gguf");
  stoch::test::WriteConfigSeeds(folder / "config");
  return 0;
}
