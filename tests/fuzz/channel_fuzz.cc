// SPDX-License-Identifier: Apache-2.0
// Any bytes that a worker sends are either refused with one sentence before anything of them is used, or make values
// that their readers may rely on, and that are the same after another trip. The same bytes are tried as what a gateway
// sends, and as rows of a journal.
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/util/delimited_message_util.h>

#include <cmath>
#include <cstdint>

#include "engine/ipc/convert.h"
#include "tests/fuzz/try.h"

namespace {

using namespace stoch;
using test::Check;
using test::Try;

bool IsAnError(int status) { return status >= 400 && status < 600; }

void CheckUpdate(const ipc::Update& message) {
  const serve::JobUpdate update = ipc::FromMessage(message);
  for (const int32_t id : update.ids) Check(id >= 0);
  Check(!FinishReasonName(update.finish).empty() || update.finish == FinishReason::kNone);
  Check(update.error_status == 0 || IsAnError(update.error_status));
  Check(update.queue_seconds >= 0 && std::isfinite(update.queue_seconds));
  const ipc::Update again = ipc::ToMessage(message.job(), update);
  Check(ipc::ToMessage(message.job(), ipc::FromMessage(again)).SerializeAsString() == again.SerializeAsString());
}

void CheckHello(const ipc::Hello& hello) {
  const serve::ServedModel model = ipc::FromMessage(hello);
  Check(model.vocab_size > 0 && model.context > 0 && model.kv_tokens >= 0);
  Check(static_cast<size_t>(hello.max_sequences()) + 2 > 2);
  const serve::ModelParts parts = ipc::PartsOf(hello);
  Check(parts.size() == static_cast<size_t>(hello.parts_size()));
  Check(serve::ChangedPart(parts, parts, false).empty());
  ipc::Hello again;
  ipc::SetParts(parts, &again);
  Check(ipc::PartsOf(again) == parts);
  serve::ModelParts more = parts;
  more["\n"] = "another";
  if (!parts.contains("\n")) Check(serve::ChangedPart(parts, more, false) == "\n");
  if (!parts.contains("\n")) Check(serve::ChangedPart(parts, more, true).empty());
}

// As Channel's readers take a message.
template <class Message>
bool Read(const uint8_t* data, size_t size, Message* message) {
  google::protobuf::io::ArrayInputStream stream(data, static_cast<int>(size));
  return google::protobuf::util::ParseDelimitedFromZeroCopyStream(message, &stream, nullptr);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ipc::FromWorker from_worker;
  if (Read(data, size, &from_worker)) {
    Try([&] {
      ipc::Check(from_worker);
      // Nothing of a message that has been checked is refused.
      try {
        if (from_worker.has_hello()) CheckHello(from_worker.hello());
        for (const ipc::Update& update : from_worker.updates()) CheckUpdate(update);
      } catch (const InvalidInput&) {
        Check(false);
      }
    });
  }
  ipc::ToWorker to_worker;
  if (Read(data, size, &to_worker)) {
    for (const ipc::Start& start : to_worker.start()) Try([&] { ipc::FromMessage(start); });
  }
  ipc::Update row;
  if (row.ParseFromArray(data, static_cast<int>(size))) Try([&] { CheckUpdate(row); });
  return 0;
}
