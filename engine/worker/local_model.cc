// SPDX-License-Identifier: Apache-2.0
#include "engine/worker/local_model.h"

#include <algorithm>

namespace stoch::serve {

ServedModel Describe(Engine& engine) {
  ServedModel model;
  model.name = engine.model_name();
  model.vocab_size = engine.config().vocab_size;
  model.kv_tokens = NumPages(engine.shape()) * kKvPageTokens;
  // The longest sequence that both the context and the whole KV cache have room for.
  model.context = std::min(engine.shape().context, model.kv_tokens);
  model.precision = PrecisionName(engine.options().precision);
  model.sc = engine.sc_description();
  for (const Device& device : engine.backend().devices()) {
    model.device += (model.device.empty() ? "" : ",") + DeviceName(device);
  }
  return model;
}

}  // namespace stoch::serve
