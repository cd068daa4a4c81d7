// SPDX-License-Identifier: Apache-2.0
// Sequences that Python steps by hand.

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "python/src/base/arrays.h"
#include "python/src/base/bind.h"
#include "python/src/base/devices.h"
#include "python/src/model.h"

namespace nb = nanobind;

namespace stoch::python {
namespace {

using NoGil = nb::call_guard<nb::gil_scoped_release>;

// A sequence that Python steps by hand.
class HandSequence {
 public:
  HandSequence(ModelPtr model, std::unique_ptr<Sequence> sequence)
      : model_(std::move(model)), sequence_(std::move(sequence)) {}
  ~HandSequence() { Remove(); }
  HandSequence(const HandSequence&) = delete;
  HandSequence& operator=(const HandSequence&) = delete;

  const ModelPtr& model() const { return model_; }
  // Errors: InvalidInput once it was removed.
  Sequence& get() const {
    if (sequence_ == nullptr) throw InvalidInput("this sequence was removed");
    return *sequence_;
  }
  void Remove() {
    if (WasForked()) {
      (void)sequence_.release();
      return;
    }
    const std::lock_guard lock(model_->mutex);
    sequence_.reset();
  }

 private:
  ModelPtr model_;
  std::unique_ptr<Sequence> sequence_;
};
using HandPtr = std::shared_ptr<HandSequence>;

HandPtr AddSequence(const ModelPtr& model, const Ids& ids, int64_t capacity) {
  return Alone(model, [&](LoadedModel& loaded) {
    Engine& engine = *loaded.engine;
    const int64_t most = capacity > 0 ? capacity : engine.options().context;
    std::unique_ptr<Sequence> sequence = engine.NewSequence(most);
    if (sequence == nullptr) {
      throw InvalidInput("the KV cache has no room for " + std::to_string(most) +
                         " positions: " + std::to_string(engine.free_tokens()) + " are free");
    }
    sequence->Append(ids);
    return std::make_shared<HandSequence>(model, std::move(sequence));
  });
}

// The same tokens again, whole pages of computed ones shared.
HandPtr ForkSequence(const HandPtr& from) {
  return Alone(from->model(), [&](LoadedModel& loaded) {
    const Sequence& original = from->get();
    std::vector<KvPage> pages;
    if (loaded.engine->chunk_invariant() && !original.ids().empty()) {
      // At least one token is left to compute, so that there are logits.
      const int64_t known = std::min(original.computed(), static_cast<int64_t>(original.ids().size()) - 1);
      for (int64_t i = 0; i < known / kKvPageTokens; ++i) pages.push_back(original.page(i));
    }
    std::unique_ptr<Sequence> sequence = loaded.engine->NewSequence(original.capacity(), original.ids(), pages);
    if (sequence == nullptr) throw InvalidInput("the KV cache has no room for another sequence");
    return std::make_shared<HandSequence>(from->model(), std::move(sequence));
  });
}

struct HandStep {
  Sequence* sequence;
  size_t row;
};

// Runs every pending token of the sequences, in as few passes as the engine takes.
void StepSequences(const ModelPtr& model, const std::vector<HandPtr>& sequences, std::span<float> logits) {
  Alone(model, [&](LoadedModel& loaded) {
    Engine& engine = *loaded.engine;
    const auto vocab_size = static_cast<size_t>(engine.config().vocab_size);
    if (logits.size() != sequences.size() * vocab_size) throw InvalidInput("logits: wrong size");
    std::vector<HandStep> waiting;
    for (size_t i = 0; i < sequences.size(); ++i) {
      Sequence& sequence = sequences[i]->get();
      if (sequences[i]->model() != model) throw InvalidInput("a sequence is of another model");
      if (sequence.pending() == 0) throw InvalidInput("sequence " + std::to_string(i) + " has no token to run");
      for (const HandStep& other : waiting) {
        if (other.sequence == &sequence) throw InvalidInput("sequence " + std::to_string(i) + " is given twice");
      }
      waiting.push_back({&sequence, i});
    }
    const size_t most = engine.batch_invariant() ? static_cast<size_t>(engine.shape().max_sequences) : 1;
    while (!waiting.empty()) {
      CheckSignals();
      std::vector<StepItem> items;
      std::vector<size_t> rows;
      int64_t budget = engine.shape().max_rows;
      for (const HandStep& each : waiting) {
        if (items.size() == most) break;
        const int64_t tokens = engine.NextTokens(*each.sequence, budget);
        if (tokens == 0) continue;
        const bool last = tokens == each.sequence->pending();
        items.push_back({each.sequence, tokens, last ? StepOutput::kLast : StepOutput::kNone});
        if (last) rows.push_back(each.row);
        budget -= tokens;
        if (budget == 0) break;
      }
      engine.Step(items);
      for (size_t i = 0; i < rows.size(); ++i) {
        engine.ReadLogits(static_cast<int64_t>(i), 1, logits.data() + rows[i] * vocab_size);
      }
      std::erase_if(waiting, [](const HandStep& each) { return each.sequence->pending() == 0; });
    }
  });
}

}  // namespace

void BindSequences(nb::module_& m) {
  nb::class_<HandSequence>(m, "Sequence", "Tokens of one sequence by hand.")
      .def(
          "append",
          [](const HandPtr& self, const Ids& ids) {
            Alone(self->model(), [&](LoadedModel&) { self->get().Append(ids); });
          },
          nb::arg("ids"), NoGil())
      .def_prop_ro("ids", [](const HandPtr& self) { return self->get().ids(); })
      .def_prop_ro("computed", [](const HandPtr& self) { return self->get().computed(); })
      .def_prop_ro("pending", [](const HandPtr& self) { return self->get().pending(); })
      .def_prop_ro("capacity", [](const HandPtr& self) { return self->get().capacity(); })
      .def("fork", &ForkSequence, NoGil())
      .def("remove", &HandSequence::Remove, NoGil());
  m.def("add_sequence", &AddSequence, nb::arg("model"), nb::arg("ids"), nb::arg("capacity"), NoGil());
  m.def(
      "step",
      [](const ModelPtr& model, const std::vector<HandPtr>& sequences, nb::handle out) {
        const Array array = Array::Import(out, "out", true);
        const nb::gil_scoped_release release;
        StepSequences(model, sequences, array.floats());
      },
      nb::arg("model"), nb::arg("sequences"), nb::arg("out"));
}

}  // namespace stoch::python
