// SPDX-License-Identifier: Apache-2.0
// Operands of one operator of a model in one window of a text, as test vectors want them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/engine.h"
#include "research/vectors/stream_vectors.h"

namespace stoch {

// Which products: rows are positions of the window; outputs are output features, key positions of qk, channels of av.
struct VectorChoice {
  int layer = 0;
  ScOperatorId op = ScOperatorId::kQProj;
  int64_t head = 0;  // qk, av: query head
  int64_t first_row = 0, last_row = 0;
  int64_t first_output = 0, last_output = 0;
  int64_t window = 0;  // index of the window of the text, whose faults are drawn
  int64_t ctx = 512;   // tokens of a window
};

// "0.q_proj". Errors: InvalidInput for what names no layer and linear, qk or av.
void ParseVectorOperator(const std::string& text, VectorChoice* choice);

// Checks the choice against config.json before a model is loaded; CaptureVectors calls it first. tokens: of the text.
// Errors: InvalidInput, one sentence, for rows, outputs, heads and windows that are not there, keys that a row does not
//         see, more than one row of av, no streams, adders of gates, mixed lengths, protected channels, other scopes than
//         rows, attention other than per_token, sliding windows and experts.
void CheckVectors(const ScModelConfig& sc, const DecoderConfig& config, size_t tokens, const VectorChoice& choice);

// Runs the window `choice.window` of `ids` on `engine`, which is on a CPU and in SC, and takes the operands that the
// operator gets there; the model's files are read for weights.
// Errors: InvalidInput as CheckVectors, and for a backend that shows no operands.
VectorOperands CaptureVectors(Engine& engine, const ModelFiles& files, std::span<const int32_t> ids,
                              const VectorChoice& choice);

}  // namespace stoch
