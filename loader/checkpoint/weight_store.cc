// SPDX-License-Identifier: Apache-2.0
#include "loader/checkpoint/weight_store.h"

#include <charconv>
#include <system_error>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "loader/checkpoint/checkpoint_store.h"
#include "loader/checkpoint/gguf_store.h"
#include "loader/checkpoint/indexed_store.h"
#include "loader/config/decoder_tensors.h"
#include "loader/quote.h"

namespace stoch {
namespace {

constexpr std::string_view kRandomPrefix = "random:";
constexpr float kRandomStddev = 0.02f;

class RandomStore final : public IndexedStore {
 public:
  RandomStore(const std::string& model, const DecoderConfig& config, uint64_t seed) : IndexedStore(model), seed_(seed) {
    // RandomWeight rounds to F16, so that is what these tensors would be in a file.
    for (DecoderTensor& tensor : DecoderTensors(config)) Add({tensor.name, DType::kF16, std::move(tensor.shape), ""});
    if (config.tie_word_embeddings) AddAlias(kLmHeadName, kEmbeddingName);
  }

 private:
  WeightSource Source(size_t i) const override {
    const TensorInfo& info = tensors()[i];
    const bool norm = info.shape.size() == 1 && !info.name.ends_with(".bias");
    WeightSource source;
    source.seed = seed_;
    source.stream = TensorStream(info.name);
    source.stddev = norm ? 0.0f : kRandomStddev;
    source.constant = norm ? 1.0f : 0.0f;
    return source;
  }

  uint64_t seed_;
};

ModelFiles OpenRandom(const std::string& model) {
  std::string_view shape = std::string_view{model}.substr(kRandomPrefix.size());
  uint64_t seed = 0;
  if (const size_t colon = shape.find(':'); colon != std::string_view::npos) {
    const std::string_view text = shape.substr(colon + 1);
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, seed);
    if (error != std::errc() || stop != end) {
      throw InvalidInput(Quoted(model) + ": seed: expected an integer from 0 to 2^64 - 1, got " + Quoted(text));
    }
    shape = shape.substr(0, colon);
  }
  const DecoderConfig config = NamedDecoderConfig(shape);
  return RandomModelFiles(model, config, seed);
}

}  // namespace

ModelFiles RandomModelFiles(const std::string& name, const DecoderConfig& config, uint64_t seed) {
  return {name, {}, config, std::make_unique<RandomStore>(name, config, seed)};
}

ModelFiles OpenModelFiles(const std::string& model) {
  if (model.starts_with(kRandomPrefix)) return OpenRandom(model);
  std::error_code ignored;
  const bool gguf = gguf::IsGgufPath(model) && !std::filesystem::is_directory(model, ignored);
  return gguf ? OpenGguf(model) : OpenFolder(model);
}

WeightSource SliceRows(const WeightSource& source, int64_t begin, int64_t count) {
  STOCH_CHECK(begin >= 0 && count >= 0 && begin <= source.rows - count);
  WeightSource slice = source;
  slice.rows = count;
  slice.first += begin * source.cols;
  if (source.host != nullptr) {
    slice.first = 0;
    slice.host =
        static_cast<const char*>(source.host) + begin * source.cols * static_cast<int64_t>(DTypeSize(source.dtype));
  }
  return slice;
}

}  // namespace stoch
