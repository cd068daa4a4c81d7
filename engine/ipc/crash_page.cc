// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/crash_page.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "kernels/base/error.h"

namespace stoch::ipc {

namespace {

// An operator, written one word at a time.
struct OpPlace {
  std::atomic<int64_t> layer;
  std::array<std::atomic<char>, 64> op;

  void Write(int of_layer, std::string_view name) {
    layer.store(of_layer, std::memory_order_relaxed);
    const size_t count = std::min(name.size(), op.size());
    for (size_t i = 0; i < count; ++i) op[i].store(name[i], std::memory_order_relaxed);
    if (count < op.size()) op[count].store('\0', std::memory_order_relaxed);
  }
  void Read(int* of_layer, std::string* name) const {
    *of_layer = static_cast<int>(layer.load());
    name->clear();
    for (const std::atomic<char>& c : op) {
      if (c == '\0') break;
      *name += c;
    }
  }
};

}  // namespace

// Words that both processes read and write one at a time; a new page is all zeros.
struct CrashPage::Layout {
  std::atomic<uint64_t> alive;
  std::atomic<uint64_t> progress;
  std::atomic<uint64_t> pass;
  OpPlace issued;
  OpPlace running;
  std::atomic<int64_t> exact;
  std::atomic<int64_t> signal;
  std::atomic<int64_t> sender;
  std::atomic<uint64_t> num_jobs;
  std::array<std::atomic<uint64_t>, kMaxJobs> jobs;
};

namespace {

[[noreturn]] void Throw(const char* call) {
  throw DeviceError(std::string("no crash page: ") + call + ": " + std::strerror(errno));
}

}  // namespace

CrashPage::CrashPage() : fd_(memfd_create("stoch-crash-page", MFD_CLOEXEC)) {
  if (fd_ < 0) Throw("memfd_create");
  if (ftruncate(fd_, kBytes) != 0) {
    close(fd_);
    Throw("ftruncate");
  }
  Map();
}

CrashPage::CrashPage(int fd) : fd_(fd) { Map(); }

void CrashPage::Map() {
  static_assert(sizeof(Layout) <= kBytes && std::atomic<uint64_t>::is_always_lock_free);
  void* page = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (page == MAP_FAILED) {
    close(fd_);
    Throw("mmap");
  }
  page_ = static_cast<Layout*>(page);
}

CrashPage::~CrashPage() {
  munmap(page_, kBytes);
  close(fd_);
}

void CrashPage::SetJobs(std::span<const uint64_t> jobs) {
  const size_t count = std::min(jobs.size(), kMaxJobs);
  page_->num_jobs.store(0);  // never names half of them
  for (size_t i = 0; i < count; ++i) page_->jobs[i].store(jobs[i], std::memory_order_relaxed);
  page_->num_jobs.store(count);
  page_->pass.fetch_add(1, std::memory_order_relaxed);
  page_->progress.fetch_add(1, std::memory_order_relaxed);
}

void CrashPage::Mark(int layer, std::string_view op) {
  page_->issued.Write(layer, op);
  page_->progress.fetch_add(1, std::memory_order_relaxed);
}

void CrashPage::MarkRunning(int layer, std::string_view op) { page_->running.Write(layer, op); }

void CrashPage::SetExact(bool is_exact) { page_->exact.store(is_exact ? 1 : 0); }

void CrashPage::Beat() { page_->alive.fetch_add(1, std::memory_order_relaxed); }

void CrashPage::MarkSignal(int number, int64_t sender) {
  page_->sender.store(sender);
  page_->signal.store(number);
}

CrashReport CrashPage::Read() const {
  CrashReport report;
  report.signal = static_cast<int>(page_->signal.load());
  report.sender = page_->sender.load();
  report.pass = page_->pass.load();
  report.alive = page_->alive.load();
  report.progress = page_->progress.load();
  report.is_exact = page_->exact.load() != 0;
  page_->issued.Read(&report.layer, &report.op);
  page_->running.Read(&report.running_layer, &report.running_op);
  const uint64_t count = std::min<uint64_t>(page_->num_jobs.load(), kMaxJobs);
  for (uint64_t i = 0; i < count; ++i) report.jobs.push_back(page_->jobs[i].load());
  report.in_pass = count > 0;
  return report;
}

}  // namespace stoch::ipc
