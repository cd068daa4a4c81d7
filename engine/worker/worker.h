// SPDX-License-Identifier: Apache-2.0
// The engine's side of a gateway: requests come as messages, tokens go back as one message for each pass.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/request/job_runner.h"
#include "engine/request/model_parts.h"

namespace stoch::serve {

class Worker {
 public:
  // socket_fd: one end of a pair of local sockets; page_fd: the crash page, or -1 for none to share. Owns both. From now
  // on the page shows that the process runs, whatever its other threads wait for, and which signal ends it. One of them
  // in a process.
  Worker(int socket_fd, int page_fd);
  ~Worker();

  // The same backend, telling the crash page every operator that it begins. issues_ahead: its calls return before
  // they are done, as those of GPUs do; it then waits after each of them in passes of requests that ended a worker.
  std::shared_ptr<Backend> Marked(std::shared_ptr<Backend> backend, bool issues_ahead);
  // Where another process of this job is, while this one waits for it. On the thread that waits.
  void MarkRank(const std::string& where);

  // What serves besides the engine: what it was made of, which the gateway compares with what other workers say, and a
  // check that comes between a pass and the gateway's hearing of it (null: none), whose errors end the worker.
  struct Model {
    ModelParts parts;
    std::function<void()> check;
    // On ranks: seconds of a hop from each rank to the next, and those that rank 0 has waited for rows, so far.
    std::vector<double> hop_seconds;
    std::function<double()> rank_waited_seconds;
  };
  // Serves the engine until the gateway is gone. Nobody else uses it meanwhile.
  // Errors: what ended the engine, or the check's; the gateway has been told of no job's end by it.
  void Serve(Engine& engine, const RunnerOptions& options, const Model& model = {});
  // Tells the gateway why this process is about to end, and waits a moment for it to leave. The first cause counts: later
  // ones are not told. lost_rank: another process of the job is gone.
  void Fail(const std::string& message, int exit_code, bool lost_rank = false);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stoch::serve
