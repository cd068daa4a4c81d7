#include "kernels/cpu/pass.h"

#include "kernels/cpu/views.h"

namespace stoch::cpu {

void CpuPass::Upload(const PassLayout& layout) {
  const auto limit = [](const char* what, size_t got, int64_t most) {
    if (static_cast<int64_t>(got) > most) {
      Reject("pass", std::to_string(got) + " " + what + ", expected at most " + std::to_string(most));
    }
  };
  limit("rows", layout.ids.size(), limits_.max_rows);
  limit("sequences", layout.sequences.size(), limits_.max_sequences);
  int64_t next_row = 0;
  size_t num_pages = 0;
  for (const PassLayout::Sequence& sequence : layout.sequences) {
    limit("pages in a sequence", sequence.pages.size(), limits_.max_pages_per_sequence);
    if (sequence.first_row != next_row || sequence.num_rows < 1 || sequence.start_position < 0) {
      Reject("pass", "a sequence of " + std::to_string(sequence.num_rows) + " rows starts at row " +
                         std::to_string(sequence.first_row) + ", expected at least one row from row " +
                         std::to_string(next_row));
    }
    next_row += sequence.num_rows;
    num_pages += sequence.pages.size();
  }
  if (next_row != static_cast<int64_t>(layout.ids.size())) {
    Reject("pass", "sequences cover " + std::to_string(next_row) + " rows of " + std::to_string(layout.ids.size()));
  }
  for (const int32_t row : layout.output_rows) {
    if (row < 0 || row >= next_row) Reject("pass", "output row " + std::to_string(row) + " is not a row of the pass");
  }
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
