// SPDX-License-Identifier: Apache-2.0
// What `stoch serve` knows of the files it serves: digests of them, and whether they are still the same.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/draft_model/draft_files.h"
#include "engine/request/model_parts.h"
#include "engine/serve/identity.h"
#include "engine/serve/log.h"
#include "loader/checkpoint/weight_store.h"
#include "loader/file.h"
#include "loader/tokenizer/tokenizer.h"
#include "tools/stoch/serve/engine_options.h"

namespace stoch::cli {

// A model with all that makes its answers, and the files as they were when they were read.
struct ServedModelFiles {
  ModelFiles files;
  std::unique_ptr<Tokenizer> tokenizer;  // null: none
  EngineOptions engine;
  std::shared_ptr<DraftFiles> draft;  // null: none
  serve::IdentityParts identity;
  std::vector<FileNote> notes;            // of all files
  std::vector<std::string> gateway_only;  // those of them that an engine does not read
  std::string weights;                    // digests, sizes and times of the weights' files
};

// Errors: InvalidInput; DeviceError where a file is changed meanwhile.
ServedModelFiles OpenServed(const ServedEngine& options);

// What streams were made with, as text that differs where answers may: they do not go on with anything else. No path is
// part of it, the name of a random model is.
std::string ServedText(const ServedEngine& options, const ServedModelFiles& served);

// The files, and the program that reads them, as a worker and its gateway compare them.
serve::ModelParts PartsOf(std::span<const FileNote> notes);

// Looks at files once a second, on a thread of its own: a file system that does not answer holds nothing else up. A file
// is changed where it holds other bytes; where reading it for that would take long, where it is another one or was
// written to. One that is not there is only missing.
class FileWatch {
 public:
  FileWatch(std::vector<FileNote> notes, serve::LogSink log);
  ~FileWatch();
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

  // The first one that is changed, "" if none is. now: looks first.
  std::string Changed(bool now = false) const;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace stoch::cli
