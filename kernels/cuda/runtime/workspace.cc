// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/workspace.h"

#include <algorithm>

#include "kernels/cuda/base/memory.h"

namespace stoch::cuda {
namespace {

constexpr size_t kMinBlockBytes = size_t{32} << 20;

}  // namespace

size_t Workspace::BlockBytes(size_t bytes) { return std::max(bytes, kMinBlockBytes); }

void Workspace::AddBlock(size_t bytes) {
  blocks_.push_back(AllocateDevice(device_, BlockBytes(bytes)));
  places_.AddBlock(blocks_.back().bytes());
}

void Workspace::Reserve(size_t bytes) {
  if (bytes > 0 && places_.largest_free() < bytes) AddBlock(bytes);
}

void* Workspace::Take(size_t bytes) {
  std::optional<BlockStack::Place> place = places_.Take(bytes);
  if (!place) {
    AddBlock((bytes + kAlignment - 1) / kAlignment * kAlignment);
    place = places_.Take(bytes);
  }
  return static_cast<char*>(blocks_[place->block].data()) + place->offset;
}

}  // namespace stoch::cuda
