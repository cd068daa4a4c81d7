// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/pass.h"

#include "kernels/call_check.h"

namespace stoch::cpu {

CpuPass::CpuPass(Device device, const PassLimits& limits) : device_(device), limits_(limits) {
  CheckPassLimits(limits);
}

void CpuPass::Upload(const PassLayout& layout) {
  CheckPass(layout, limits_);
  size_t num_pages = 0;
  for (const PassLayout::Sequence& sequence : layout.sequences) num_pages += sequence.pages.size();
  layout_ = layout;
  pages_.clear();
  pages_.reserve(num_pages);
  for (PassLayout::Sequence& sequence : layout_.sequences) {
    const size_t begin = pages_.size();
    pages_.insert(pages_.end(), sequence.pages.begin(), sequence.pages.end());
    sequence.pages = {pages_.data() + begin, sequence.pages.size()};
  }
}

}  // namespace stoch::cpu
