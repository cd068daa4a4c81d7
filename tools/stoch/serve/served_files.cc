// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/serve/served_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "app/draft.h"
#include "app/version.h"
#include "kernels/base/error.h"
#include "loader/checkpoint/gguf/header.h"
#include "loader/sha256.h"

namespace stoch::cli {
namespace {

constexpr std::chrono::seconds kLook{1};
constexpr std::chrono::seconds kFarewell{1};

// Of everything in front of a GGUF file's data: config and tokenizer are in there.
std::string DigestHeader(const std::filesystem::path& path) {
  const MappedFile file(path);
  size_t end = file.bytes().size();
  for (const gguf::Tensor& tensor : gguf::ParseHeader(file.bytes(), path.string()).tensors) {
    end = std::min(end, static_cast<size_t>(tensor.begin_bytes));
  }
  Sha256 hash;
  hash.Add(file.bytes().first(end));
  return hash.Hex();
}

// Of files as they were read, by their names without folders: copies of a model have one digest.
std::string DigestNotes(std::span<const FileNote> notes) {
  Sha256 all;
  for (const FileNote& note : notes) all.Add(note.stamp.path.filename().string() + " " + note.sha256 + "\n");
  return all.Hex();
}

bool IsConfig(const FileNote& note) {
  const std::string name = note.stamp.path.filename().string();
  return name == "config.json" || name == "generation_config.json";
}

// Of a folder's or a GGUF file's notes.
std::string DigestFiles(const std::filesystem::path& folder, std::span<const FileNote> notes) {
  std::error_code ignored;
  return std::filesystem::is_directory(folder, ignored) ? DigestNotes(notes) : DigestHeader(folder);
}

void OpenWeights(const ServedEngine& options, ServedModelFiles* served) {
  const FileRecord record;
  served->files = OpenModelFiles(options.model.model);
  std::vector<FileNote> configs;
  for (const FileNote& note : record.notes()) {
    served->notes.push_back(note);
    if (IsConfig(note)) {
      configs.push_back(note);
    } else {
      served->weights += fmt::format("{} {} {}\n", note.stamp.size_bytes, note.stamp.changed_ns, note.sha256);
    }
  }
  if (!served->files.folder.empty()) served->identity.config = DigestFiles(served->files.folder, configs);
}

// Returns: whether its file had no note. Errors: DeviceError where it had another one.
bool AddNote(const FileNote& note, ServedModelFiles* served) {
  const auto same = [&note](const FileNote& other) { return other.stamp.path == note.stamp.path; };
  const auto known = std::find_if(served->notes.begin(), served->notes.end(), same);
  if (known == served->notes.end()) {
    served->notes.push_back(note);
    return true;
  }
  if (known->Digest() != note.Digest()) throw DeviceError(note.stamp.path.string() + " was changed while it was read");
  return false;
}

void OpenServedTokenizer(const ServedEngine& options, ServedModelFiles* served) {
  const FileRecord record;
  served->tokenizer = OpenTokenizer(options.model, served->files);
  if (served->tokenizer == nullptr) return;
  for (const FileNote& note : record.notes()) {
    if (AddNote(note, served)) served->gateway_only.push_back(note.stamp.path.string());
  }
  const std::string& own = options.model.tokenizer;
  served->identity.tokenizer =
      DigestFiles(own.empty() ? served->files.folder : std::filesystem::path(own), record.notes());
}

void ReadSettings(const ServedEngine& options, ServedModelFiles* served) {
  const FileRecord record;
  served->engine = EngineOptionsFrom(options, served->files);
  Sha256 all;
  for (const FileNote& note : record.notes()) {
    served->notes.push_back(note);
    all.Add(note.sha256 + "\n");
  }
  if (!record.notes().empty()) served->identity.sc_files = all.Hex();
  const std::string& map = options.device.device_map;  // changes no bit, so it is no part of the identity
  if (map.ends_with(".json")) served->notes.push_back(NoteOf(map));
}

// The draft model makes no answer, so it is no part of the identity; but its files are mapped.
void OpenServedDraft(const ServedEngine& options, ServedModelFiles* served) {
  const FileRecord record;
  served->draft = OpenDraft(options.speculation, served->files, served->engine, options.arithmetic.sc);
  if (served->draft == nullptr) return;
  for (const FileNote& note : record.notes()) AddNote(note, served);
  const size_t opened = record.notes().size();
  RequireSameTokens(served->files, served->tokenizer.get(), *served->draft);
  const std::vector<FileNote>& notes = record.notes();
  for (size_t i = opened; i < notes.size(); ++i) {
    if (AddNote(notes[i], served)) served->gateway_only.push_back(notes[i].stamp.path.string());
  }
}

}  // namespace

ServedModelFiles OpenServed(const ServedEngine& options) {
  ServedModelFiles served;
  OpenWeights(options, &served);
  OpenServedTokenizer(options, &served);
  ReadSettings(options, &served);
  OpenServedDraft(options, &served);
  return served;
}

std::string ServedText(const ServedEngine& options, const ServedModelFiles& served) {
  const EngineOptions& engine = served.engine;
  const serve::IdentityParts& identity = served.identity;
  std::string text = fmt::format("{}|{}|{}|{}|{}|{}", VersionText(), identity.config, identity.tokenizer,
                                 identity.sc_files, options.model.context, options.arithmetic.precision);
  if (engine.precision == Precision::kSc) text += "|" + Describe(engine.sc);
  return text + "|" + (served.weights.empty() ? options.model.model : served.weights);
}

serve::ModelParts PartsOf(std::span<const FileNote> notes) {
  serve::ModelParts parts = {{"version", VersionText()}};
  for (const FileNote& note : notes) parts[note.stamp.path.string()] = note.Digest();
  return parts;
}

struct FileWatch::State {
  State(std::vector<FileNote> of, serve::LogSink sink) : log(std::move(sink)), notes(std::move(of)) {}

  void Look();
  void Run();

  const serve::LogSink log;
  std::mutex look_mutex;  // of what follows
  std::vector<FileNote> notes;
  std::set<std::filesystem::path> missing;

  std::mutex mutex;  // of what follows
  std::condition_variable ended;
  bool ends = false;
  bool has_ended = false;
  std::string changed;
};

void FileWatch::State::Look() {
  const std::lock_guard look(look_mutex);
  for (FileNote& note : notes) {
    const std::filesystem::path& path = note.stamp.path;
    const std::optional<FileStamp> now = StampOf(path);
    if (now == note.stamp) {
      missing.erase(path);
      continue;
    }
    bool is_same = false;
    try {
      if (now && note.whole) {
        FileNote read = NoteOf(path);
        is_same = read.sha256 == note.sha256;
        if (is_same) note = std::move(read);
      }
    } catch (const std::exception&) {  // gone again, or no memory to read it: the next look tells
      continue;
    }
    if (is_same) {
      missing.erase(path);
    } else if (now) {
      const std::lock_guard lock(mutex);
      if (changed.empty()) changed = path.string();
    } else if (missing.insert(path).second) {
      log({serve::LogLevel::kWarning, "model_file_missing", {{"file", path.string()}}});
    }
  }
}

void FileWatch::State::Run() {
  std::unique_lock lock(mutex);
  while (!ended.wait_for(lock, kLook, [this] { return ends; })) {
    lock.unlock();
    try {
      Look();
    } catch (const std::exception&) {  // no memory: the next look may have some
    }
    lock.lock();
  }
  has_ended = true;
  ended.notify_all();
}

FileWatch::FileWatch(std::vector<FileNote> notes, serve::LogSink log)
    : state_(std::make_shared<State>(std::move(notes), std::move(log))) {
  // Detached: the end of this process is not to wait for a file system.
  std::thread([state = state_] { state->Run(); }).detach();
}

FileWatch::~FileWatch() {
  std::unique_lock lock(state_->mutex);
  state_->ends = true;
  state_->ended.notify_all();
  state_->ended.wait_for(lock, kFarewell, [this] { return state_->has_ended; });
}

std::string FileWatch::Changed(bool now) const {
  if (now) state_->Look();
  const std::lock_guard lock(state_->mutex);
  return state_->changed;
}

}  // namespace stoch::cli
