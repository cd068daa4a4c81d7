// SPDX-License-Identifier: Apache-2.0
// The chunked transfer coding (RFC 9112, section 7.1), byte by byte. Keeps nothing but numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

namespace stoch::serve {

class ChunkDecoder {
 public:
  // max_overhead_bytes: of sizes and extensions beyond what chunks of a reasonable length have, and of trailers.
  explicit ChunkDecoder(size_t max_overhead_bytes) : max_overhead_(max_overhead_bytes) {}

  bool done() const { return state_ == State::kDone; }
  // Reads `bytes` up to the end of the body and hands its data to `data` piece by piece. Returns: how many it read.
  // Errors: RequestError with status 400 for what is no chunked coding, 431 for trailers that are too long; what `data`
  // throws. It is of no use afterwards.
  size_t Read(std::string_view bytes, const std::function<void(std::string_view)>& data);

 private:
  enum class State {
    kSize,  // of a chunk
    kSpace,
    kExtension,
    kSizeEnd,  // the LF after it
    kData,
    kDataCr,
    kDataLf,
    kTrailer,  // the first byte of a line
    kTrailerName,
    kTrailerValue,
    kTrailerEnd,  // the LF after it
    kEnd,         // the LF of the empty line
    kDone
  };

  void Step(char byte);
  void StepSize(char byte);
  void StepTrailer(char byte);
  void EndSize();

  const size_t max_overhead_;
  State state_ = State::kSize;
  uint64_t left_ = 0;    // of the chunk
  int digits_ = 0;       // of its size
  size_t line_ = 0;      // bytes of the line of its size
  size_t overhead_ = 0;  // of lines so far
  size_t trailers_ = 0;  // bytes
};

}  // namespace stoch::serve
