// SPDX-License-Identifier: Apache-2.0
#include "engine/weights_digest.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "loader/checkpoint/safetensors.h"
#include "loader/file.h"
#include "loader/sha256.h"

namespace stoch {
namespace {

constexpr size_t kPieceBytes = 8 << 20;

std::string Line(const TensorInfo& info, DType dtype, const std::string& hash) {
  return info.name + " " + std::string(DTypeName(dtype)) + " " + ShapeText(info.shape) + " " + hash;
}

// Of the numbers, whatever form the file holds them in.
std::string DecodedLine(const ModelFiles& files, const TensorInfo& info, const WeightSource& source,
                        const std::function<bool()>& stop) {
  const int64_t piece = std::max<int64_t>(1, static_cast<int64_t>(kPieceBytes / sizeof(float)) / source.cols);
  std::vector<float> values(static_cast<size_t>(std::min(piece, source.rows) * source.cols));
  Sha256 hash;
  for (int64_t row = 0; row < source.rows; row += piece) {
    if (stop()) return "";
    const int64_t count = std::min(piece, source.rows - row) * source.cols;
    source.decoder->Decode(source.first + row * source.cols, count, values.data());
    hash.Add(std::as_bytes(std::span(values)).first(static_cast<size_t>(count) * sizeof(float)));
  }
  files.weights->Release(info.name);
  return Line(info, DType::kF32, hash.Hex());
}

std::string TensorLine(const ModelFiles& files, const TensorInfo& info, const std::function<bool()>& stop) {
  const bool vector = info.shape.size() == 1;
  const WeightSource source =
      files.weights->Matrix(info.name, vector ? 1 : info.shape[0], vector ? info.shape[0] : info.shape[1]);
  if (source.decoder != nullptr) return DecodedLine(files, info, source, stop);
  const auto bytes = static_cast<size_t>(source.rows * source.cols) * DTypeSize(source.dtype);
  const std::span<const std::byte> all(static_cast<const std::byte*>(source.host), bytes);
  Sha256 hash;
  for (size_t begin = 0; begin < bytes; begin += kPieceBytes) {
    if (stop()) return "";
    hash.Add(all.subspan(begin, std::min(kPieceBytes, bytes - begin)));
  }
  files.weights->Release(info.name);
  return Line(info, source.dtype, hash.Hex());
}

// "random:SHAPE:SEED", the seed written out where it was not given.
std::string RandomName(const ModelFiles& files) {
  const TensorInfo& first = files.weights->tensors().front();
  const bool vector = first.shape.size() == 1;
  const WeightSource source =
      files.weights->Matrix(first.name, vector ? 1 : first.shape[0], vector ? first.shape[0] : first.shape[1]);
  const size_t shape_end = files.name.find(':', files.name.find(':') + 1);
  return files.name.substr(0, shape_end) + ":" + std::to_string(source.seed);
}

}  // namespace

std::string DigestWeights(const ModelFiles& files, int threads, const std::function<bool()>& stop) {
  if (files.folder.empty()) return Sha256Hex(RandomName(files));
  const std::vector<TensorInfo>& tensors = files.weights->tensors();
  std::vector<std::string> lines(tensors.size());
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (size_t i = next++; i < tensors.size() && !stop(); i = next++) {
        lines[i] = TensorLine(files, tensors[i], stop);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  std::vector<std::jthread> workers;  // joined where one of them finds no memory to begin, too
  for (int i = 1; i < threads; ++i) workers.emplace_back(work);
  work();
  workers.clear();
  if (failure != nullptr) std::rethrow_exception(failure);
  if (stop()) return "";
  if (const std::string changed = ChangedFile(files.weights->files()); !changed.empty()) {
    throw InvalidInput(changed + ": the file was changed while it was in use");
  }
  std::sort(lines.begin(), lines.end());
  Sha256 all;
  for (const std::string& line : lines) all.Add(line + "\n");
  return all.Hex();
}

}  // namespace stoch
