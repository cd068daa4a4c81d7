// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/fabric/ring/window.h"
#include "kernels/cuda/runtime/stripe_view.h"
#include "kernels/math/elementary.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 256;

struct DealArgs {
  PassView pass;
  StripeView stripe;
  DealtPass dealt;
  int32_t pages = 0;
  int32_t page_shift = 0;
};

// Fills args.dealt with the rows of the pass that the device owns. Grid: y is a sequence; a thread writes one of the
// sequence's rows, one of its tiles, and one page number of a window.
__global__ void __launch_bounds__(kThreads) DealKernel(const DealArgs args) {
  __shared__ int32_t shared_first;
  const StripeView& stripe = args.stripe;
  const auto s = static_cast<int32_t>(blockIdx.y);
  const int32_t i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (threadIdx.x == 0) {
    int32_t first = 0;
    for (int32_t before = 0; before < s; ++before) {
      const PassSequence& other = args.pass.sequences[before];
      first += stripe.Below(other.length) - stripe.Below(other.start_position);
    }
    shared_first = first;
  }
  __syncthreads();
  if (s == 0 && i < args.pages) args.dealt.pages[i] = i;
  const PassSequence sequence = args.pass.sequences[s];
  const int32_t first = shared_first;
  const int32_t begin = stripe.Below(sequence.start_position);
  const int32_t count = stripe.Below(sequence.length) - begin;
  if (i == 0) args.dealt.sequences[s] = {0, count, 0, sequence.length, args.pages, 0};
  const int32_t tiles = (count + kQueryTile - 1) / kQueryTile;
  if (i < tiles) {
    const int32_t at = (tiles - 1 - i) * kQueryTile;
    args.dealt.tiles[FirstDealtTile(s, first) + i] = {
        0, at, min(kQueryTile, count - at), begin + at, stripe.width_shift, stripe.begin};
  }
  if (i >= count) return;
  const int32_t local = begin + i;
  const int32_t position = stripe.Absolute(local);
  const int32_t row = first + i;
  args.dealt.positions[row] = position;
  args.dealt.row_sequence[row] = 0;
  args.dealt.rows[row] = {0, position, position, i};
  const int32_t per_page_shift = args.page_shift - stripe.count_shift;
  const int32_t page = args.pass.pages[static_cast<int64_t>(s) * args.pass.max_pages + (local >> per_page_shift)];
  const int32_t share = page & ((1 << stripe.count_shift) - 1);
  args.dealt.slots[row] = (page >> stripe.count_shift << args.page_shift) + (share << per_page_shift) +
                          (local & ((1 << per_page_shift) - 1));
}

struct BlockArgs {
  KvView kv;  // the striped cache, or a window
  StripeView stripe;
  const int32_t* page_list = nullptr;
  int32_t first_page = 0;
  uint32_t* slab = nullptr;
  int32_t first_head = 0;
  int32_t count = 0;  // positions of the stripe in a page
};

// Calls take(word, i, numbers) for every word i of the block of one page (blockIdx.x) and KV head (blockIdx.y) in the
// slab. A block has `numbers` words of keys [dim / 4][position], as many words of values [position / 4][dim], then
// scales of keys [position] (kBlocks, of MXINT8: [position][key_scales]) and of values [position]. In exact attention it
// has floats of keys [position][dim] and of values [position][dim]. Called by all threads.
template <bool kBlocks, typename Take>
__device__ __forceinline__ void ForWords(const BlockArgs& args, const Take& take) {
  const KvView& kv = args.kv;
  const bool exact = kv.k_words == nullptr;
  const int numbers = args.count * (exact ? kv.head_dim : kv.head_dim / 4);
  const int words = 2 * (exact ? numbers : numbers + args.count) + (kBlocks ? (kv.key_scales - 1) * args.count : 0);
  uint32_t* const slab = args.slab + (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * words;
  for (int i = static_cast<int>(threadIdx.x); i < words; i += kThreads) take(slab[i], i, numbers);
}

// Scale number i of a block in the cache or a window. slot_of(j): the place of position j of the block in the page.
template <bool kBlocks, typename SlotOf>
__device__ __forceinline__ float* ScaleAt(const BlockArgs& args, int32_t page, int head, int i, const SlotOf& slot_of) {
  const KvView& kv = args.kv;
  const int blocks = kBlocks ? kv.key_scales : 1;
  const int keys = args.count * blocks;
  if (i >= keys) return kv.v_scales + kv.Scale(page, head, slot_of(i - keys));
  return kv.k_scales + kv.Scale(page, head, slot_of(i / blocks)) * blocks + i % blocks;
}

// Copies a device's own positions from its cache to a slab. Grid: x is a page, y a KV head of the block.
template <bool kBlocks>
__global__ void __launch_bounds__(kThreads) PackKernel(const BlockArgs args) {
  const KvView& kv = args.kv;
  const int32_t page_number = args.page_list[args.first_page + static_cast<int32_t>(blockIdx.x)];
  const int32_t page = page_number >> args.stripe.count_shift;
  const int head = args.first_head + static_cast<int>(blockIdx.y);
  const int first = (page_number & ((1 << args.stripe.count_shift) - 1)) * args.count;
  ForWords<kBlocks>(args, [&](uint32_t& word, int i, int numbers) {
    const bool is_k = i < numbers;
    if (!is_k) i -= numbers;
    if (kv.k_words == nullptr) {
      word = FloatToBits((is_k ? kv.k : kv.v)[kv.Value(page, head, first) + i]);
    } else if (is_k) {
      word = kv.k_words[kv.KWord(page, head, i / args.count, first + i % args.count)];
    } else if (i < numbers) {
      word = kv.v_words[kv.VWord(page, head, (first >> 2) + i / kv.head_dim, i % kv.head_dim)];
    } else {
      word = FloatToBits(*ScaleAt<kBlocks>(args, page, head, i - numbers, [&](int j) { return first + j; }));
    }
  });
}

// Copies the positions of a slab to their places in a window. Grid: x is a page, y a KV head of the block.
template <bool kBlocks>
__global__ void __launch_bounds__(kThreads) UnpackKernel(const BlockArgs args) {
  const KvView& kv = args.kv;
  const int32_t page = args.first_page + static_cast<int32_t>(blockIdx.x);
  const auto head = static_cast<int>(blockIdx.y);
  const auto slot_of = [&](int j) { return args.stripe.Absolute(j); };  // pages hold whole stripe periods
  ForWords<kBlocks>(args, [&](uint32_t& word, int i, int numbers) {
    const bool is_k = i < numbers;
    if (!is_k) i -= numbers;
    if (kv.k_words == nullptr) {
      (is_k ? kv.k : kv.v)[kv.Value(page, head, slot_of(i / kv.head_dim)) + i % kv.head_dim] = BitsToFloat(word);
    } else if (is_k) {
      kv.k_words[kv.KWord(page, head, i / args.count, slot_of(i % args.count))] = word;
    } else if (i < numbers) {
      const int j = i / kv.head_dim * 4;
      const int dim = i % kv.head_dim;
      if (args.stripe.width_shift >= 2) {
        kv.v_words[kv.VWord(page, head, slot_of(j) >> 2, dim)] = word;
        return;
      }
      // A stripe of two positions: the halves of a word belong to different words of the window.
      for (int half = 0; half < 2; ++half) {
        const int slot = slot_of(j + 2 * half);
        auto* to = reinterpret_cast<uint16_t*>(kv.v_words + kv.VWord(page, head, slot >> 2, dim)) + (slot >> 1 & 1);
        *to = static_cast<uint16_t>(word >> 16 * half);
      }
    } else {
      *ScaleAt<kBlocks>(args, page, head, i - numbers, slot_of) = BitsToFloat(word);
    }
  });
}

BlockArgs ArgsOf(const KvView& kv, const RingBlock& block, uint8_t* slab) {
  BlockArgs args{kv, StripeView(block.stripe)};
  args.page_list = block.page_list;
  args.first_page = static_cast<int32_t>(block.first_page);
  args.slab = reinterpret_cast<uint32_t*>(slab);
  args.first_head = block.first_head;
  args.count = kv.page_tokens / block.stripe.count;
  return args;
}

dim3 GridOf(const RingBlock& block) {
  return dim3(static_cast<unsigned>(block.pages), static_cast<unsigned>(block.heads));
}

}  // namespace

void LaunchDeal(DeviceContext& ctx, const PassView& pass, int64_t sequences, int64_t max_rows, int64_t pages,
                int32_t page_tokens, const Stripe& stripe, const DealtPass& dealt) {
  DealArgs args{pass, StripeView(stripe), dealt};
  args.pages = static_cast<int32_t>(pages);
  args.page_shift = std::countr_zero(static_cast<uint32_t>(page_tokens));
  const int64_t blocks = (std::max(max_rows, pages) + kThreads - 1) / kThreads;
  DealKernel<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(sequences)), kThreads, 0, ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("DealKernel");
}

void LaunchPackBlock(cudaStream_t stream, const KvView& cache, const RingBlock& block, uint8_t* slab) {
  const auto kernel = cache.key_scales > 1 ? PackKernel<true> : PackKernel<false>;
  kernel<<<GridOf(block), kThreads, 0, stream>>>(ArgsOf(cache, block, slab));
  STOCH_CUDA_LAUNCH("PackKernel");
}

void LaunchUnpackBlock(cudaStream_t stream, const uint8_t* slab, const RingBlock& block, const KvView& window) {
  const auto kernel = window.key_scales > 1 ? UnpackKernel<true> : UnpackKernel<false>;
  kernel<<<GridOf(block), kThreads, 0, stream>>>(ArgsOf(window, block, const_cast<uint8_t*>(slab)));
  STOCH_CUDA_LAUNCH("UnpackKernel");
}

}  // namespace stoch::cuda
