// SPDX-License-Identifier: Apache-2.0
// Requests and updates to messages and back.
//
// Errors: InvalidInput for a message that no worker, gateway or journal of ours writes.
// Bits:   every number is carried as it is.
#pragma once

#include <cstdint>

#include "engine/ipc/messages.pb.h"
#include "engine/request/job_runner.h"
#include "engine/request/model_parts.h"

namespace stoch::ipc {

Start ToMessage(uint64_t job, const GenerateRequest& request);
GenerateRequest FromMessage(const Start& start);

Update ToMessage(uint64_t job, const serve::JobUpdate& update);
serve::JobUpdate FromMessage(const Update& update);

Hello ToMessage(const serve::ServedModel& model);
serve::ServedModel FromMessage(const Hello& hello);
void SetParts(const serve::ModelParts& parts, Hello* hello);
serve::ModelParts PartsOf(const Hello& hello);

// All of a message, before any of it is used.
void Check(const FromWorker& message);

}  // namespace stoch::ipc
