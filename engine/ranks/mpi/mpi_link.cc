// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/mpi/mpi_link.h"

#include <dlfcn.h>

#include <array>
#include <thread>
#include <utility>

#include "engine/ranks/mpi/module.h"
#include "kernels/base/check.h"
#include "kernels/base/error.h"

namespace stoch {
namespace {

constexpr const char* kName = "libstoch_mpi.so";
constexpr const char* kCannotSend = "MPI cannot send";

const StochMpiModule* LoadModule(std::span<const std::filesystem::path> folders) {
  std::string reasons;
  for (const std::filesystem::path& folder : folders) {
    const std::filesystem::path path = folder / kName;
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    // Global: Open MPI opens modules of its own, which look for its symbols.
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    using Entry = const StochMpiModule*();
    auto* entry = handle == nullptr ? nullptr : reinterpret_cast<Entry*>(dlsym(handle, "stoch_mpi_module"));
    if (entry == nullptr) {
      const char* why = dlerror();
      throw InvalidInput(path.string() + ": cannot be loaded: " + (why != nullptr ? why : "no reason was given"));
    }
    const StochMpiModule* module = entry();
    if (module->version == STOCH_MPI_MODULE_VERSION) return module;
    throw InvalidInput(path.string() + ": has version " + std::to_string(module->version) + ", expected " +
                       std::to_string(STOCH_MPI_MODULE_VERSION));
  }
  std::string looked;
  for (const std::filesystem::path& folder : folders) looked += (looked.empty() ? "" : ", ") + folder.string();
  throw InvalidInput(std::string(kName) + " is not in " + looked +
                     ": it is built where CMake finds MPI (libopenmpi-dev or libmpich-dev)");
}

// A decode step answers within microseconds, an idle rank takes no core.
void Nap(int asked, std::chrono::steady_clock::duration without_message) {
  constexpr int kSpins = 200;
  if (asked < kSpins) return;
  const bool is_idle = without_message > std::chrono::seconds(1);
  std::this_thread::sleep_for(is_idle ? std::chrono::microseconds(1000) : std::chrono::microseconds(20));
}

}  // namespace

MpiLink::MpiLink(std::span<const std::filesystem::path> folders, const Limits& limits)
    : mpi_(LoadModule(folders)), limits_(limits) {
  std::array<char, 256> host{};
  if (const int code = mpi_->open(&rank_, &count_, host.data(), host.size()); code != 0) {
    throw DeviceError(std::string("MPI does not begin: ") + mpi_->error(code));
  }
  host_ = host.data();
  sender_ = std::jthread([this](const std::stop_token& stop) { SendOn(stop); });
}

MpiLink::~MpiLink() {
  sender_ = {};
  if (!is_lost_) mpi_->close();
}

std::chrono::milliseconds MpiLink::limit(Wait wait) const {
  if (wait == Wait::kLimit) return limits_.rows;
  return wait == Wait::kOpening ? limits_.opening : limits_.idle;
}

void MpiLink::Check(int code, int rank, const char* what) {
  if (code == 0) return;
  is_lost_ = true;
  throw LostRank(rank, std::string(what) + ": " + mpi_->error(code));
}

void MpiLink::Send(int to, std::span<const std::byte> message) {
  const std::lock_guard lock(mutex_);
  const Call call(calls_);
  Check(std::exchange(send_error_, 0), to, kCannotSend);
  Check(mpi_->send(to, message.data(), message.size()), to, kCannotSend);
  Check(mpi_->progress(&unsent_), to, kCannotSend);  // a small one is on its way by now
  if (unsent_ > 0) has_unsent_.notify_one();
}

void MpiLink::SendOn(const std::stop_token& stop) {
  constexpr std::chrono::microseconds kNap(20);
  std::unique_lock lock(mutex_);
  while (has_unsent_.wait(lock, stop, [this] { return unsent_ > 0; })) {
    {
      const Call call(calls_);
      send_error_ = mpi_->progress(&unsent_);
    }
    if (send_error_ != 0) return;
    lock.unlock();
    std::this_thread::sleep_for(kNap);
    lock.lock();
  }
}

bool MpiLink::HasArrived(int from, size_t max_bytes) {
  constexpr const char* kWhat = "MPI cannot receive";
  const std::lock_guard lock(mutex_);
  Check(std::exchange(send_error_, 0), from, kCannotSend);
  if (arrived_.contains(from)) return true;
  const Call call(calls_);
  int is_there = 0;
  if (arriving_from_ < 0) {
    size_t bytes = 0;
    Check(mpi_->probe(from, &is_there, &bytes), from, kWhat);
    if (is_there == 0) return false;
    if (bytes > max_bytes) {
      is_lost_ = true;
      throw LostRank(from, "sent " + std::to_string(bytes) + " bytes where at most " + std::to_string(max_bytes) +
                               " were to come");
    }
    arriving_.resize(bytes);
    arriving_from_ = from;
    Check(mpi_->receive(from, arriving_.data(), bytes), from, kWhat);
  }
  // Of a large message the head comes alone: where a network was cut, what follows never does.
  Check(mpi_->received(&is_there), arriving_from_, kWhat);
  if (is_there == 0) return false;
  arrived_[arriving_from_] = std::exchange(arriving_, {});
  return std::exchange(arriving_from_, -1) == from;
}

bool MpiLink::WaitFor(int from, size_t max_bytes, std::chrono::milliseconds most) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  for (int asked = 0;; ++asked) {
    if (HasArrived(from, max_bytes)) return true;
    const Clock::time_point now = Clock::now();
    if (now - begin >= most) return false;
    Nap(asked, now - last_message_);
  }
}

std::vector<std::byte> MpiLink::Take(int from) {
  const auto found = arrived_.find(from);
  STOCH_CHECK(found != arrived_.end());
  std::vector<std::byte> message = std::move(found->second);
  arrived_.erase(found);
  // Rank 0 says once a second that it lives: who hears nothing else is idle.
  if (message.size() > kMessageHeadBytes) last_message_ = std::chrono::steady_clock::now();
  return message;
}

void MpiLink::Abort(int exit_code) {
  is_lost_ = true;
  const std::lock_guard lock(mutex_);
  mpi_->end_all(exit_code);
}

}  // namespace stoch
