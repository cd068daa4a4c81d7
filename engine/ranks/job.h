// SPDX-License-Identifier: Apache-2.0
// A job of ranks: rank 0 opens models on the others, which run no command and have no settings of their own.
//
//   rank 0              another rank
//   Open  -- text -->   checks, loads its layers
//   Await <-- text --   ready, or why not
//   (pieces of passes, rows: models/decoder/rank_link.h)
//   Close -- close -->  gives the model back, waits for the next one
//   Describe -- text --> <-- text --  checks, says what it would load
//   End   -- text -->   ends
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine_options.h"
#include "kernels/backend.h"
#include "loader/checkpoint/weight_store.h"
#include "models/decoder/rank_link.h"

namespace stoch {

// A rank's description of itself.
struct RankReport {
  int rank = 0;
  std::string host;
  std::string about;  // FollowerOptions::describe; "" of a model that is loaded
  double hop_us = 0;  // of a row of the residual stream to the next rank: half a way there and back
  // Once a model is loaded: weights that a step reads (DecoderWeights::stream_bytes), and the cache of keys and values.
  int64_t stream_bytes = 0, kv_bytes = 0;
};
struct RankPlan {
  RankReport report;
  IndexRange layers;
};

// How many layers each rank has: of as many bytes as they go, embedding and head of rank 0 included, at least one.
// Errors: InvalidInput for more ranks than layers, or than kMaxRanks.
std::vector<int64_t> DivideLayers(const MemoryPlan& plan, int ranks);
// The numbers of "40,43,43". Errors: InvalidInput naming `option` where they are not `ranks` numbers of at least one layer
// that are `num_layers` together.
std::vector<int64_t> ParseRankLayers(const std::string& option, const std::string& text, int ranks, int64_t num_layers);
// Layers of one rank. Requires: as many numbers as ranks.
IndexRange LayersOfRank(std::span<const int64_t> layers, int rank);

// The job as rank 0 leads it. Threads: that of the link. Every Open is followed by Await, whatever happens in between.
class RankJob {
 public:
  // `build`: what must be the same program on all ranks; `host`: where this one runs.
  // From here until End the others are told once a second that rank 0 lives, by a thread of the job.
  // Requires: link outlives the job; its rank is 0.
  RankJob(RankLink& link, std::string build, std::string host);

  RankLink& link() { return link_; }
  // Tells the others to load their layers, and closes what was open. Returns before they have.
  // `model`: as OpenModelFiles takes it, where a rank names none. `options`: those of the engine, with its placement.
  // Errors: InvalidInput for files of SC settings, which ranks are not told of. LostRank.
  void Open(const std::string& model, const ModelFiles& files, const EngineOptions& options,
            std::span<const int64_t> layers);
  // How far the others are, as far as they have said so by now: to be called now and then while rank 0 loads. Never waits.
  // Errors: LostRank.
  LoadedBytes HearOthers() { return HearOthers(std::chrono::milliseconds(0)); }
  // Waits until all have loaded, and tells meanwhile how far the others are; what on_loaded throws ends the wait, which a
  // second call goes on with. Errors: InvalidInput in the words of the first that has not; the model is closed then.
  void Await(const std::function<void(const LoadedBytes& others)>& on_loaded = nullptr);
  // A report of each rank on the model that was awaited last, rank 0 first. Rank 0 leaves its bytes out of its own.
  const std::vector<RankReport>& reports() const { return reports_; }
  void Close();  // what is open
  // All ranks compare what must be the same, and say what Open would have them load; nothing is loaded. Closes what was
  // open. `about`: of rank 0. Errors: InvalidInput naming rank, host and fact; LostRank.
  std::vector<RankReport> Describe(const std::string& model, const ModelFiles& files, const EngineOptions& options,
                                   std::span<const int64_t> layers, const std::string& about);
  void End();  // no model follows
  // Called on another thread, before this process ends, where the thread of the link does not come back from a call.
  // Returns once nothing of what was to be done before runs any more.
  void OnStuck(std::function<void(const std::string& why)> on_stuck);
  void TellStuck(const std::string& why);  // Threads: any
  // " (hostB)", where that rank has said it; else "".
  std::string NameOfHost(int rank) const;

 private:
  void Tell(const std::string& purpose, const std::string& model, const ModelFiles& files, const EngineOptions& options,
            std::span<const int64_t> layers);
  std::vector<RankReport> TakeAnswers(const std::function<void(const LoadedBytes& others)>& on_loaded = nullptr);
  LoadedBytes HearOthers(std::chrono::milliseconds most);

  // Another rank, of the model that it was told of last.
  struct Other {
    LoadedBytes loaded;
    std::optional<std::string> answer;
    std::chrono::steady_clock::time_point heard, got_on;  // anything of it, and more than that it lives
  };

  RankLink& link_;
  std::string build_, host_;
  std::vector<Other> others_;       // ranks 1, 2, ...
  std::vector<std::string> hosts_;  // of those that have answered
  bool is_open_ = false;
  double hop_us_ = 0;  // from here
  std::vector<RankReport> reports_;
  std::mutex stuck_mutex_;
  std::function<void(const std::string&)> on_stuck_;
  std::jthread alive_;  // tells that
};

// Settings that a rank other than 0 takes from its own command line.
struct FollowerOptions {
  std::string model;  // "": that of rank 0
  std::string build, host;
  std::function<std::shared_ptr<Backend>()> open_backend;
  // Where its layers go, with the memory that they need. Errors: InvalidInput.
  std::function<DecoderPlacement(const ModelFiles& files, const Backend& backend, IndexRange local, int ranks,
                                 EngineOptions* engine)>
      place;
  // RankReport::about, of a model with engine.placement.
  std::function<std::string(const ModelFiles& files, const Backend& backend, const EngineOptions& engine)> describe;
};
// The body of every rank but 0: loads and runs what it is told until the job ends. Errors: LostRank, also where rank 0 says nothing
// for limit(kIdle); DeviceError.
void FollowJob(RankLink& link, const FollowerOptions& options);

}  // namespace stoch
