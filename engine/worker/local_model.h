// SPDX-License-Identifier: Apache-2.0
// What an engine of this process tells a server.
#pragma once

#include "engine/engine.h"
#include "engine/request/job_runner.h"

namespace stoch::serve {

ServedModel Describe(Engine& engine);

}  // namespace stoch::serve
