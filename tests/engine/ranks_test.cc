// SPDX-License-Identifier: Apache-2.0
// A model whose layers are divided over ranks gives the bits of one process: ranks are threads here, each with a backend
// of its own, and messages go through queues.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <thread>

#include "engine/ranks/job.h"
#include "kernels/registry.h"
#include "kernels/wrappers/forwarding_backend.h"
#include "models/decoder/decoder_model.h"
#include "models/decoder/remote_stage.h"
#include "tests/engine/logits_cases.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"
#include "tests/support/thread_link.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

namespace fs = std::filesystem;

// One rank: how many layers it has, on which devices, and whether these share each layer.
struct RankSetup {
  int layers = 0;
  const char* device = "cpu";
  bool by_rows = false;
};

std::unique_ptr<Backend> OneThread(const char* device) {
  return OpenBackend(device, {.threads = 1, .cpu_variant = ""}, nullptr);
}

DecoderPlacement PlaceRank(const DecoderConfig& config, const Backend& backend, const std::vector<RankSetup>& ranks,
                           size_t rank) {
  const std::span<const Device> devices = backend.devices();
  DecoderPlacement placement = ranks[rank].by_rows ? RowSplit(config, devices) : SingleDevice(config, devices.front());
  placement.ranks = static_cast<int>(ranks.size());
  for (size_t before = 0; before < rank; ++before) placement.local.begin += ranks[before].layers;
  placement.local.end = placement.local.begin + ranks[rank].layers;
  if (ranks[rank].by_rows) return placement;
  for (int64_t i = placement.local.begin; i < placement.local.end; ++i) {  // whole layers, one device after another
    const auto at =
        static_cast<size_t>((i - placement.local.begin) * static_cast<int64_t>(devices.size()) / ranks[rank].layers);
    placement.layers[static_cast<size_t>(i)] = devices[at];
  }
  return placement;
}

// A rank in a thread of its own, which is awaited. One that loses another rank tells all that wait; whatever else it throws is a failure of
// the test, and no end of the process.
class FollowerThread {
 public:
  FollowerThread(ThreadLinks* links, std::function<void()> body)
      : thread_([links, body = std::move(body)] {
          try {
            body();
          } catch (const LostRank&) {
            links->Break();
          } catch (const std::exception& error) {
            ADD_FAILURE() << "a rank ends with " << error.what();
            links->Break();
          }
        }) {}

 private:
  std::jthread thread_;
};

// Rank 0 in this thread, the others in threads of their own.
class RankJob {
 public:
  RankJob(const fs::path& folder, EngineOptions options, const std::vector<RankSetup>& ranks,
          std::chrono::milliseconds limit = std::chrono::seconds(60))
      : links(static_cast<int>(ranks.size()), limit) {
    const std::shared_ptr<Backend> backend = OneThread(ranks[0].device);
    ModelFiles files = OpenModelFiles(folder.string());
    options.placement = PlaceRank(files.config, *backend, ranks, 0);
    options.ranks = &links.link(0);
    const PassShape shape = ShapeOf(files.config, FillDefaults(files.config, options));
    for (size_t rank = 1; rank < ranks.size(); ++rank) {
      followers_.emplace_back(&links, [this, folder, options, ranks, rank, shape] {
        const std::unique_ptr<Backend> own = OneThread(ranks[rank].device);
        const ModelFiles own_files = OpenModelFiles(folder.string());
        DecoderOptions follower;
        follower.precision = options.precision;
        follower.sc = options.sc;
        follower.shape = shape;
        follower.placement = PlaceRank(own_files.config, *own, ranks, rank);
        follower.ranks = &links.link(static_cast<int>(rank));
        DecoderModel model(*own, own_files, follower);
        model.Follow();
      });
    }
    try {
      engine = Engine::Open(backend, std::move(files), options);
    } catch (...) {
      links.Break();
      throw;
    }
  }
  ~RankJob() {
    engine.reset();
    SendClose(links.link(0));
  }
  RankJob(const RankJob&) = delete;
  RankJob& operator=(const RankJob&) = delete;

  ThreadLinks links;
  std::unique_ptr<Engine> engine;

 private:
  std::deque<FollowerThread> followers_;  // last: they use the links
};

class RanksTest : public testing::Test {
 protected:
  static std::string Recorded(const LogitsModel& model, const LogitsConfig& config) {
    static const std::map<std::string, std::string> hashes = ReadRecordedHashes();
    const auto found = hashes.find(model.name + ' ' + config.name);
    return found == hashes.end() ? "not recorded" : found->second;
  }
  // A model of five layers, and what one process makes of it.
  fs::path FiveLayers(const std::function<void(std::vector<StoredTensor>&)>& edit = nullptr) const {
    TinyModel model;
    model.config.num_hidden_layers = 5;
    WriteTinyModel(scratch_ / "five", model, edit);
    return scratch_ / "five";
  }
  static EngineOptions Halved() { return OptionsOf(LogitsConfigs()[1]); }
  static std::vector<int32_t> Prompt(int64_t length) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < length; ++i) ids.push_back(static_cast<int32_t>((i * 37 + 11) % 96));
    return ids;
  }
  static std::string Alone(const fs::path& folder, const EngineOptions& options, const std::vector<int32_t>& prompt) {
    const auto engine = Engine::Open(OneThread("cpu"), OpenModelFiles(folder.string()), options);
    return HashRun(*engine, prompt, {});
  }

  const TempDir scratch_;
};

TEST_F(RanksTest, TwoRanksMeetTheConstantsInEveryConfiguration) {
  const LogitsModel model = TinyLogitsModel(scratch_.path());
  for (const LogitsConfig& config : LogitsConfigs()) {
    SCOPED_TRACE(config.name);
    const RankJob job(model.folder, OptionsOf(config), {{1}, {1}});
    const std::string expected = Recorded(model, config);
    EXPECT_EQ(HashRun(*job.engine, model.prompt, {}), expected);
    if (job.engine->chunk_invariant()) {
      EXPECT_EQ(HashRun(*job.engine, model.prompt, {Cut::kChunks, true}), expected) << "in chunks, next to others";
    }
  }
}

TEST_F(RanksTest, TwoRanksMeetTheConstantsOfEveryFamily) {
  for (const LogitsModel& model : RandomFamilyModels(scratch_.path())) {
    for (const LogitsConfig& config : LogitsConfigs()) {
      if (!IsFamilyConfig(config)) continue;
      SCOPED_TRACE(model.name + " " + config.name);
      const auto layers = static_cast<int>(OpenModelFiles(model.folder.string()).config.num_hidden_layers);
      const RankJob job(model.folder, OptionsOf(config), {{layers - 1}, {1}});
      EXPECT_EQ(HashRun(*job.engine, model.prompt, {}), Recorded(model, config));
    }
  }
}

TEST_F(RanksTest, AnyDivisionOverAnyDevices) {
  const fs::path folder = FiveLayers();
  for (const int64_t length : {1, 63, 64, 65, 110}) {
    EngineOptions options = Halved();
    options.min_piece_rows = 16;  // prompts in pieces
    const std::string expected = Alone(folder, options, Prompt(length));
    const std::vector<std::vector<RankSetup>> divisions = {
        {{4}, {1}},
        {{1}, {1}, {3}},
        {{1}, {1}, {1}, {1}, {1}},
        {{2, "cpu:2"}, {3, "cpu:3"}},
        {{1, "cpu:2", true}, {2, "cpu:2", true}, {2, "cpu:2"}},
    };
    for (const auto& division : divisions) {
      SCOPED_TRACE(std::to_string(division.size()) + " ranks, prompt of " + std::to_string(length));
      const RankJob job(folder, options, division);
      EXPECT_EQ(HashRun(*job.engine, Prompt(length), {}), expected);
    }
  }
}

// The likeliest tokens of several sequences, as many steps in flight as the engine has.
std::vector<std::vector<int32_t>> Generate(Engine& engine, int64_t in_flight) {
  constexpr int kSequences = 3, kTokens = 12;
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<std::vector<int32_t>> tokens(kSequences);
  for (int s = 0; s < kSequences; ++s) {
    sequences.push_back(engine.NewSequence(100));
    std::vector<int32_t> prompt;
    for (int i = 0; i < 20 + 13 * s; ++i) prompt.push_back((i * 7 + s) % 96);
    sequences.back()->Append(prompt);
  }
  std::deque<size_t> begun;
  const auto finish = [&] {
    engine.Finish();
    const size_t s = begun.front();
    begun.pop_front();
    tokens[s].push_back(engine.PickedToken(0));
    sequences[s]->Append({&tokens[s].back(), 1});
  };
  for (int step = 0; step < kTokens; ++step) {
    for (size_t s = 0; s < kSequences; ++s) {
      if (static_cast<int64_t>(begun.size()) == in_flight) finish();
      engine.Begin(std::vector<StepItem>{{sequences[s].get(), sequences[s]->pending()}});
      begun.push_back(s);
    }
    while (!begun.empty() && in_flight < kSequences) finish();
  }
  while (!begun.empty()) finish();
  return tokens;
}

TEST_F(RanksTest, SeveralStepsAreInFlight) {
  const fs::path folder = FiveLayers();
  RankJob job(folder, Halved(), {{2}, {2}, {1}});
  ASSERT_EQ(job.engine->max_steps(), 3);
  // All of them are on their way before anybody waits for the first.
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int32_t i = 0; i < 3; ++i) {
    sequences.push_back(job.engine->NewSequence(4));
    sequences.back()->Append(std::vector<int32_t>{i});
    job.engine->Begin(std::vector<StepItem>{{sequences.back().get(), 1}});
  }
  EXPECT_EQ(job.links.Sent(0, 1), 6) << "a piece and its rows each";
  for (int i = 0; i < 3; ++i) job.engine->Finish();
  sequences.clear();
  const auto alone = Engine::Open(OneThread("cpu"), OpenModelFiles(folder.string()), Halved());
  EXPECT_EQ(Generate(*job.engine, 3), Generate(*alone, 1));
}

// Weights of one layer that only a token of its own meets, and that make its activations overflow there.
void PlantPoison(std::vector<StoredTensor>& tensors, const std::string& layer) {
  for (StoredTensor& tensor : tensors) {
    const auto set = [&tensor](size_t row, size_t col, float value) {
      const auto cols = static_cast<size_t>(tensor.shape[1]);
      std::memcpy(tensor.bytes.data() + (row * cols + col) * sizeof(float), &value, sizeof(float));
    };
    const bool writes = tensor.name.ends_with("o_proj.weight") || tensor.name.ends_with("down_proj.weight");
    if (tensor.name == "model.embed_tokens.weight") {
      for (size_t id = 0; id < 96; ++id) set(id, 0, id == 77 ? 1000.0f : 0.0f);
    } else if (writes) {  // nobody else writes column 0 of the residual stream
      for (size_t col = 0; col < static_cast<size_t>(tensor.shape[1]); ++col) set(0, col, 0);
    } else if (tensor.name == "model.layers." + layer + ".mlp.gate_proj.weight" ||
               tensor.name == "model.layers." + layer + ".mlp.up_proj.weight") {
      for (size_t row = 0; row < static_cast<size_t>(tensor.shape[0]); ++row) set(row, 0, 1e25f);
    }
  }
}

TEST_F(RanksTest, ARefusalHasTheWordsOfOneProcessAndEndsNothingElse) {
  for (const char* layer : {"0", "1", "2", "3", "4"}) {
    SCOPED_TRACE(std::string("layer ") + layer);
    const fs::path folder = FiveLayers([&](std::vector<StoredTensor>& tensors) { PlantPoison(tensors, layer); });
    const auto alone = Engine::Open(OneThread("cpu"), OpenModelFiles(folder.string()), Halved());
    const std::string expected = HashRun(*alone, Prompt(30), {});
    std::string words;
    const auto poison = [](Engine& engine) {
      const auto sequence = engine.NewSequence(10);
      sequence->Append(std::vector<int32_t>{5, 6, 77});
      engine.Step(std::vector<StepItem>{{sequence.get(), 3}});
    };
    try {
      poison(*alone);
    } catch (const InvalidInput& error) {
      words = error.what();
    }
    ASSERT_NE(words, "");
    const RankJob job(folder, Halved(), {{1}, {2}, {2}});
    for (int i = 0; i < 2; ++i) {
      ExpectInvalid([&] { poison(*job.engine); }, {words});
      if (std::string(layer) == "4") {  // nobody computes the last layer of rows without an output
        const auto sequence = job.engine->NewSequence(10);
        sequence->Append(std::vector<int32_t>{77, 6});
        EXPECT_NO_THROW(job.engine->Step(std::vector<StepItem>{{sequence.get(), 2}}));
      }
      EXPECT_EQ(HashRun(*job.engine, Prompt(30), {}), expected);
    }
  }
}

// Expects a LostRank of that rank whose sentence has these words, of a job whose messages `change` changes.
void ExpectLost(const fs::path& folder, const EngineOptions& options, ThreadLinks::OnMessage change, int rank,
                const std::string& words, std::chrono::milliseconds limit = std::chrono::seconds(60)) {
  RankJob job(folder, options, {{2}, {3}}, limit);
  job.links.Change(std::move(change));
  const auto sequence = job.engine->NewSequence(10);
  sequence->Append(std::vector<int32_t>{5, 6, 7});
  try {
    job.engine->Step(std::vector<StepItem>{{sequence.get(), 3}});
    ADD_FAILURE() << "no rank is lost: " << words;
  } catch (const LostRank& lost) {
    EXPECT_EQ(lost.rank(), rank);
    EXPECT_NE(std::string(lost.what()).find(words), std::string::npos) << lost.what();
  }
}

TEST_F(RanksTest, AnythingButTheRowsIsALostRank) {
  const fs::path folder = FiveLayers();
  // Rows of the follower, and no word that it waits for rank 0 for longer than a second: the machine may be busy.
  constexpr size_t kRowBytes = 16 + 64 * sizeof(float);  // a head and a row
  const auto from_follower = [](auto change) {
    return [change](int from, int, int index, std::vector<std::byte>& message) {
      return from == 0 || message.size() < kRowBytes || change(index, message);
    };
  };
  for (const size_t place : {size_t{0}, size_t{16}, size_t{100}, kRowBytes - 1}) {
    const auto flip = from_follower([place](int, std::vector<std::byte>& message) {
      message.at(place) ^= std::byte{1};
      return true;
    });
    ExpectLost(folder, Halved(), flip, 1, "checksum");
  }
  const auto renumber = from_follower([](int, std::vector<std::byte>& message) {
    message[8] ^= std::byte{3};
    return true;
  });
  ExpectLost(folder, Halved(), renumber, 1, "sent piece 3 where piece 0");
  ExpectLost(folder, Halved(), from_follower([](int, std::vector<std::byte>&) { return false; }), 1,
             "sent nothing for 2000 ms", std::chrono::milliseconds(2000));
  const auto shorten = from_follower([](int, std::vector<std::byte>& message) {
    message.resize(8);
    return true;
  });
  ExpectLost(folder, Halved(), shorten, 1, "without a head");
  // A follower that was told something else says so, and nothing more.
  const auto drop_piece = [](int from, int, int index, std::vector<std::byte>&) { return from != 0 || index != 0; };
  ExpectLost(folder, Halved(), drop_piece, 0, "sent something else than a piece of a pass");
}

void FollowToTheEnd(RankLink& link, const FollowerOptions& options) {
  try {
    FollowJob(link, options);
  } catch (const LostRank& lost) {
    ADD_FAILURE() << "rank " << link.rank() << " loses " << lost.what();
    throw;
  }
}

TEST_F(RanksTest, AProgramOfAnotherCommitIsRefusedByName) {
  ThreadLinks links(2);
  const FollowerThread follower(&links, [&links] {
    FollowerOptions options;
    options.build = "9310e4d";
    options.host = "hostB";
    FollowToTheEnd(links.link(1), options);
  });
  const fs::path folder = FiveLayers();
  const ModelFiles files = OpenModelFiles(folder.string());
  EngineOptions options = Halved();
  options.placement = SingleDevice(files.config, Device{});
  stoch::RankJob job(links.link(0), "8af3053", "hostA");
  const std::vector<int64_t> layers = {2, 3};
  job.Open(folder.string(), files, options, layers);
  ExpectInvalid([&job] { job.Await(); }, {"rank 1 (hostB): commit: 9310e4d, rank 0 has 8af3053"});
  job.End();
}

// Rank 1 takes 6 s to open a model for rank 0, and then says a limit of 77 s. Returns: why rank 0 has lost it, "" if it has not.
std::string OpenSlowly(ThreadLinks& links, const fs::path& folder, EngineOptions options) {
  const FollowerThread follower(&links, [&links] {
    FollowerOptions follows;
    follows.open_backend = [&links]() -> std::shared_ptr<Backend> {
      std::this_thread::sleep_for(std::chrono::seconds(6));
      links.link(1).LimitRows(std::chrono::seconds(77));
      return OneThread("cpu");
    };
    follows.place = [](const ModelFiles& files, const Backend& backend, IndexRange, int, EngineOptions*) {
      return PlaceRank(files.config, backend, {{2}, {3}}, 1);
    };
    FollowJob(links.link(1), follows);
  });
  const ModelFiles files = OpenModelFiles(folder.string());
  options.placement = SingleDevice(files.config, Device{});
  stoch::RankJob job(links.link(0), "", "");
  try {
    job.Open(folder.string(), files, options, std::vector<int64_t>{2, 3});
    job.Await();
    job.End();
    return "";
  } catch (const LostRank& lost) {
    links.Break();
    return lost.what();
  }
}

TEST_F(RanksTest, AnOpeningRankSaysThatItLivesAndHowLongItMayBeSilent) {
  constexpr std::chrono::seconds kLong(60), kShort(4);
  ThreadLinks patient(2, kLong, kShort), hasty(2, kShort, kLong), stopped(2, kLong, kShort);
  EXPECT_EQ(OpenSlowly(patient, FiveLayers(), Halved()), "");
  EXPECT_EQ(patient.link(0).LimitOf(1, RankLink::Wait::kLimit), std::chrono::seconds(77));
  EXPECT_EQ(OpenSlowly(hasty, FiveLayers(), Halved()), "rank 1: lives, and loads nothing for 4000 ms");
  stopped.Change([](int from, int, int, std::vector<std::byte>&) { return from == 0; });
  EXPECT_EQ(OpenSlowly(stopped, FiveLayers(), Halved()), "rank 1: sent nothing for 4000 ms");
}

// Reads one vector in 300 ms, and the last one when rank 0 has heard of bytes that are loaded.
class SlowlyLoading final : public ForwardingBackend {
 public:
  SlowlyLoading(std::shared_ptr<Backend> inner, const std::atomic<bool>& is_heard)
      : ForwardingBackend(std::move(inner)), is_heard_(is_heard) {}
  Buffer MakeVector(Device device, const WeightSource& source) override {
    constexpr int kVectors = 4;  // norms of two layers
    constexpr std::chrono::milliseconds kNap(300);
    std::this_thread::sleep_for(kNap);
    ++vectors_;
    for (int naps = 0; vectors_ == kVectors && !is_heard_ && naps < 100; ++naps) std::this_thread::sleep_for(kNap);
    return inner().MakeVector(device, source);
  }

 private:
  const std::atomic<bool>& is_heard_;
  int vectors_ = 0;
};

TEST_F(RanksTest, RankZeroHearsHowFarAllHaveLoaded) {
  const fs::path folder = FiveLayers();
  ThreadLinks links(3);
  std::atomic<bool> is_heard = false;
  std::deque<FollowerThread> followers;
  for (const int rank : {1, 2}) {
    followers.emplace_back(&links, [&links, &is_heard, rank] {
      FollowerOptions options;
      options.open_backend = [&is_heard, rank]() -> std::shared_ptr<Backend> {
        std::shared_ptr<Backend> backend = OneThread("cpu");
        return rank == 1 ? backend : std::make_shared<SlowlyLoading>(backend, is_heard);
      };
      options.place = [rank](const ModelFiles& files, const Backend& backend, IndexRange, int, EngineOptions*) {
        return PlaceRank(files.config, backend, {{1}, {2}, {2}}, static_cast<size_t>(rank));
      };
      FollowToTheEnd(links.link(rank), options);
    });
  }
  // What one process reads, and what rank 0 does.
  LoadProgress whole, own;
  EngineOptions options = Halved();
  options.on_progress = [&whole](const LoadProgress& progress) { whole = progress; };
  Engine::Open(OneThread("cpu"), OpenModelFiles(folder.string()), options);

  stoch::RankJob job(links.link(0), "", "");
  const std::shared_ptr<Backend> backend = OneThread("cpu");
  ModelFiles files = OpenModelFiles(folder.string());
  options.placement = PlaceRank(files.config, *backend, {{1}, {2}, {2}}, 0);
  options.ranks = &links.link(0);
  const std::vector<int64_t> layers = {1, 2, 2};
  job.Open(folder.string(), files, options, layers);
  std::vector<LoadedBytes> heard;
  const auto hear = [&](const LoadedBytes& others) {
    heard.push_back(others);
    if (others.done > 0) is_heard = true;
  };
  options.on_progress = [&](const LoadProgress& progress) {
    own = progress;
    hear(job.HearOthers());
  };
  const auto engine = Engine::Open(backend, std::move(files), options);
  job.Await(hear);
  job.End();
  ASSERT_FALSE(heard.empty());
  EXPECT_EQ(heard.back().done, heard.back().total);
  EXPECT_EQ(own.total_bytes + heard.back().total, whole.total_bytes);
  bool is_partial = false;
  for (size_t i = 1; i < heard.size(); ++i) {
    EXPECT_GE(heard[i].done, heard[i - 1].done);
    is_partial = is_partial || (heard[i - 1].done > 0 && heard[i - 1].done < heard[i].done);
  }
  EXPECT_TRUE(is_partial);
}

TEST_F(RanksTest, HiddenStatesOfOtherRanksAreRefused) {
  const RankJob job(FiveLayers(), Halved(), {{2}, {3}});
  const auto sequence = job.engine->NewSequence(10);
  sequence->Append(std::vector<int32_t>{5});
  std::vector<float> hidden(64);
  job.engine->StepWithHidden(std::vector<StepItem>{{sequence.get(), 1}}, 2, hidden);
  sequence->Append(std::vector<int32_t>{6});
  ExpectInvalid(
      [&] {
        job.engine->StepWithHidden(std::vector<StepItem>{{sequence.get(), 1}}, 3, hidden);
      },
      {"layer 3", "another rank"});
}

}  // namespace
}  // namespace stoch::test
