// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/http/chunk_decoder.h"

#include <algorithm>

#include "engine/serve/http/request_error.h"
#include "engine/serve/http/tokens.h"

namespace stoch::serve {
namespace {

constexpr int kBadRequest = 400;
constexpr int kTooLong = 431;
constexpr int kMaxDigits = 16;
// What a chunk may spend on its framing, as in Go's net/http: a chunk of one byte has five bytes around it.
constexpr size_t kFreeBytes = 16;
constexpr uint64_t kFreePerByte = 2;

[[noreturn]] void Fail(const char* what) {
  throw RequestError(kBadRequest, "", std::string("this is not HTTP: chunked body: ") + what);
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

size_t ChunkDecoder::Read(std::string_view bytes, const std::function<void(std::string_view)>& data) {
  size_t at = 0;
  while (at < bytes.size() && !done()) {
    if (state_ != State::kData) {
      Step(bytes[at++]);
      continue;
    }
    const std::string_view piece = bytes.substr(at, static_cast<size_t>(std::min<uint64_t>(left_, bytes.size() - at)));
    data(piece);
    at += piece.size();
    left_ -= piece.size();
    if (left_ == 0) state_ = State::kDataCr;
  }
  return at;
}

void ChunkDecoder::Step(char byte) {
  switch (state_) {
    case State::kSize:
    case State::kSpace:
    case State::kExtension: return StepSize(byte);
    case State::kSizeEnd:
      if (byte != '\n') Fail("a CR without its LF");
      return EndSize();
    case State::kDataCr:
      if (byte != '\r') Fail("a chunk is longer than its size");
      state_ = State::kDataLf;
      return;
    case State::kDataLf:
      if (byte != '\n') Fail("a CR without its LF");
      state_ = State::kSize;
      return;
    case State::kTrailer:
    case State::kTrailerName:
    case State::kTrailerValue:
    case State::kTrailerEnd:
    case State::kEnd: return StepTrailer(byte);
    case State::kData:
    case State::kDone: return;
  }
}

void ChunkDecoder::StepSize(char byte) {
  if (++line_ > max_overhead_) Fail("too many bytes around the chunks");
  const int digit = state_ == State::kSize ? HexDigit(byte) : -1;
  if (digit >= 0) {
    if (++digits_ > kMaxDigits) Fail("the size of a chunk has too many digits");
    left_ = left_ * 16 + static_cast<uint64_t>(digit);
    return;
  }
  if (digits_ == 0) Fail("expected the size of a chunk");
  if (byte == '\r' && state_ != State::kSpace) {
    state_ = State::kSizeEnd;
  } else if (byte == ';' && state_ != State::kExtension) {
    state_ = State::kExtension;
  } else if (state_ != State::kExtension) {
    if (!IsBlank(byte)) Fail("the size of a chunk is no hexadecimal number");
    state_ = State::kSpace;
  } else if (IsControl(byte)) {
    Fail("a control character in an extension");
  }
}

void ChunkDecoder::EndSize() {
  overhead_ += line_;
  const uint64_t free = kFreeBytes + std::min(left_, uint64_t{1} << 40) * kFreePerByte;
  overhead_ -= static_cast<size_t>(std::min<uint64_t>(overhead_, free));
  if (overhead_ > max_overhead_) Fail("too many bytes around the chunks");
  state_ = left_ == 0 ? State::kTrailer : State::kData;
  digits_ = 0;
  line_ = 0;
}

void ChunkDecoder::StepTrailer(char byte) {
  if (++trailers_ > max_overhead_) throw RequestError(kTooLong, "", "the trailers are too long");
  switch (state_) {
    case State::kTrailer:
      if (byte == '\r') {
        state_ = State::kEnd;
        return;
      }
      if (!IsTokenCharacter(byte)) Fail("a trailer begins with no name");
      state_ = State::kTrailerName;
      return;
    case State::kTrailerName:
      if (byte == ':') {
        state_ = State::kTrailerValue;
      } else if (!IsTokenCharacter(byte)) {
        Fail("a trailer has no name");
      }
      return;
    case State::kTrailerValue:
      if (byte == '\r') {
        state_ = State::kTrailerEnd;
      } else if (IsControl(byte)) {
        Fail("a control character in a trailer");
      }
      return;
    case State::kTrailerEnd:
    case State::kEnd:
      if (byte != '\n') Fail("a CR without its LF");
      state_ = state_ == State::kEnd ? State::kDone : State::kTrailer;
      return;
    case State::kSize:
    case State::kSpace:
    case State::kExtension:
    case State::kSizeEnd:
    case State::kData:
    case State::kDataCr:
    case State::kDataLf:
    case State::kDone: return;  // not of trailers
  }
}

}  // namespace stoch::serve
