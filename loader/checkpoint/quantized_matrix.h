// SPDX-License-Identifier: Apache-2.0
// The tensors that a quantized matrix is made of, found in a checkpoint and checked.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "loader/checkpoint/checkpoint.h"
#include "loader/config/quantization.h"

namespace stoch::quantized {

struct Matrix {
  std::unique_ptr<WeightDecoder> decoder;        // null: the checkpoint has no such matrix
  std::vector<const CheckpointTensor*> tensors;  // that it reads
  std::string stored;                            // for people: "F8_E4M3, blocks of 128 x 128"
};

// The matrix `module`.weight of [rows, cols]. What the decoder reads stays in the mapped files of the checkpoint.
// Errors: InvalidInput naming file, tensor, expected and got: a tensor of it that is missing, has another type or a shape
//         that the method does not give a matrix of this size, sizes that are no whole words, a g_idx that names no group.
Matrix OpenMatrix(const Checkpoint& checkpoint, const Quantization& quantization, const std::string& module,
                  int64_t rows, int64_t cols);

// The tensor of the method that stands for module.weight, for errors: "x.qweight".
std::string MainTensor(const Quantization& quantization, const std::string& module);

// Whether a tensor changes no weight: scales of activations and of caches, and a bias of zeros next to a matrix of GPTQ,
// which early writers gave every linear.
bool IsIgnored(const Checkpoint& checkpoint, const Quantization& quantization, std::string_view name);

}  // namespace stoch::quantized
