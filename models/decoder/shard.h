// SPDX-License-Identifier: Apache-2.0
// Which rows of every matrix a device has where one model is divided over several by rows (output features).
//
// No sum ever crosses devices: each computes whole outputs from whole inputs, which are gathered in between. So the
// bits are those of one device, whatever the division.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/stripes.h"
#include "loader/config/decoder_config.h"
#include "models/decoder/pass_shape.h"
#include "models/sc_model_config.h"

namespace stoch {

// Devices as keys of sorted containers.
struct DeviceOrder {
  bool operator()(const Device& a, const Device& b) const {
    return a.kind == b.kind ? a.index < b.index : a.kind < b.kind;
  }
};

// [begin, end)
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
};

// Part `index` of `count` contiguous ones of [0, total), as even as whole multiples of `granule` make them (the last
// range ends at `total`). May be empty where there are more parts than granules.
IndexRange EvenPart(int64_t total, int64_t granule, int64_t index, int64_t count);

// The share of one device. Queries stay with the KV head they read.
struct DecoderShard {
  Device device;
  IndexRange heads;                // of q_proj, and of the input of o_proj
  IndexRange kv_heads;             // of k_proj, v_proj and the KV cache
  IndexRange hidden;               // rows of o_proj and down_proj
  IndexRange intermediate;         // rows of gate_proj and up_proj
  IndexRange expert_intermediate;  // those of an expert, where there are any: every device has a share of each
  IndexRange vocab;                // rows of lm_head
  Stripe stripe;                   // positions whose rows it runs, and whose keys and values it holds
};

// The shares of `devices`, in their order; of one device: everything. Requires: at least one device.
std::vector<DecoderShard> DivideRows(const DecoderConfig& config, std::span<const Device> devices);

// The same where positions are dealt: devices[i] run the rows of stripe i and divide every matrix by rows. In order of
// stripes. Only those of the first have rows of lm_head. Requires: IsStripeCount(devices.size()), as many of each.
std::vector<DecoderShard> DealPositions(const DecoderConfig& config, std::span<const std::vector<Device>> devices);

// `shape` with the rows of a pass that the device may have.
PassShape ShapeOn(const PassShape& shape, const DecoderShard& shard);

// The share of a side of a tensor, in features.
IndexRange RangeOf(const DecoderConfig& config, const DecoderShard& shard, Axis axis);

// ---- Matrices of a layer on one device: one list for the memory plan and for loading.

// One tensor [rows, cols], and the output features of it that the device has.
struct DeviceMatrix {
  ScOperatorId id;
  std::string tensor;
  int64_t rows = 0;
  int64_t cols = 0;
  IndexRange wanted;
};

// Those of a group of a layer, or of one expert of it (expert >= 0), in the order of the architecture table.
std::vector<DeviceMatrix> BlockMatrices(const DecoderConfig& config, const DecoderShard& shard, int64_t layer,
                                        std::span<const BlockLinear> linears, int64_t expert);
// Elements of the biases of a group.
int64_t BiasSize(const DecoderConfig& config, const DecoderShard& shard, std::span<const BlockLinear> linears);
// The router: every device has all of it, as which experts a row takes must be known everywhere.
DeviceMatrix RouterMatrix(const DecoderConfig& config, int64_t layer);

}  // namespace stoch
