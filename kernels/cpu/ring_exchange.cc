// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/ring_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/ring_hop.h"

namespace stoch::cpu {

RingExchange::RingExchange(RankThreads& threads, const RingRounds& rounds, std::vector<Device> devices,
                           std::vector<std::array<uint8_t*, 2>> slabs, RingProbe* probe)
    : threads_(threads),
      rounds_(rounds),
      devices_(std::move(devices)),
      slabs_(std::move(slabs)),
      probe_(probe),
      limit_(probe == nullptr ? RingProbe::kRingLimitMs : probe->limit_ms()),
      mailboxes_(devices_.size()) {
  threads_.Start(static_cast<int>(devices_.size()), [this](int rank) { Main(rank); });
}

RingExchange::~RingExchange() {
  Fail(nullptr);
  threads_.Wait();
}

void RingExchange::Fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    if (!failed_) error_ = std::move(error);
    failed_ = true;
  }
  changed_.notify_all();
}

void RingExchange::Release() {
  {
    const std::lock_guard lock(mutex_);
    ++released_;
  }
  changed_.notify_all();
}

void RingExchange::Wait(int64_t round) {
  Lock lock(mutex_);
  changed_.wait(lock, [&] {
    return failed_ || std::all_of(mailboxes_.begin(), mailboxes_.end(),
                                  [round](const Mailbox& mailbox) { return mailbox.done > round; });
  });
  if (error_ != nullptr) std::rethrow_exception(error_);
}

template <typename Done>
bool RingExchange::WaitFor(Lock& lock, const RingHop& hop, const char* what, const Done& done) {
  if (changed_.wait_for(lock, limit_, [&] { return failed_ || done(); })) return !failed_;
  lock.unlock();
  Fail(std::make_exception_ptr(MakeLostHop(hop, what, limit_.count())));
  return false;
}

void RingExchange::Main(int rank) {
  try {
    for (int64_t round = 0; round < rounds_.count; ++round) {
      {
        Lock lock(mutex_);
        changed_.wait(lock, [&] { return failed_ || released_ > round; });
        if (failed_) return;
      }
      if (!RunRound(rank, round)) return;
      {
        const std::lock_guard lock(mutex_);
        mailboxes_[static_cast<size_t>(rank)].done = round + 1;
      }
      changed_.notify_all();
    }
  } catch (...) {
    Fail(std::current_exception());
  }
}

bool RingExchange::RunRound(int rank, int64_t round) {
  const auto ranks = static_cast<int>(devices_.size());
  const int hops = ranks - 1;
  const int next = (rank + 1) % ranks;
  const int before = (rank + ranks - 1) % ranks;
  const auto& slabs = slabs_[static_cast<size_t>(rank)];
  Mailbox& own = mailboxes_[static_cast<size_t>(rank)];
  Mailbox& other = mailboxes_[static_cast<size_t>(next)];
  int64_t bytes = rounds_.pack(rank, round, slabs[0]);
  rounds_.unpack(rank, round, rank, slabs[0]);
  for (int hop = 1; hop <= hops; ++hop) {
    const int64_t number = round * hops + hop;
    const uint8_t* send = slabs[static_cast<size_t>((hop - 1) % 2)];
    const uint8_t* received = slabs[static_cast<size_t>(hop % 2)];
    RingHop sent = rounds_.name(round);
    sent.hop = hop;
    sent.hops = hops;
    sent.origin = (rank - hop + 1 + ranks) % ranks;
    sent.from = devices_[static_cast<size_t>(rank)];
    sent.to = devices_[static_cast<size_t>(next)];
    RingHop expected = sent;
    expected.origin = (before - hop + 1 + ranks) % ranks;
    expected.from = devices_[static_cast<size_t>(before)];
    expected.to = sent.from;
    {
      Lock lock(mutex_);
      own.free = number;
      changed_.notify_all();
      if (!WaitFor(lock, sent, "found no room", [&] { return other.free >= number; })) return false;
    }
    if (probe_ == nullptr || probe_->OnSend(sent)) {
      memcpy(slabs_[static_cast<size_t>(next)][static_cast<size_t>(hop % 2)], send, static_cast<size_t>(bytes));
      {
        const std::lock_guard lock(mutex_);
        other.hop = sent;
        other.round = round;
        other.bytes = bytes;
        other.arrived = number;
      }
      changed_.notify_all();
    }
    {
      Lock lock(mutex_);
      if (!WaitFor(lock, expected, "did not arrive", [&] { return own.arrived >= number; })) return false;
      STOCH_CHECK(own.arrived == number && own.round == round && own.hop.origin == expected.origin &&
                  own.hop.hop == hop && own.hop.from == expected.from);
      bytes = own.bytes;
    }
    if (probe_ != nullptr) probe_->OnArrive(expected, {received, static_cast<size_t>(bytes)});
    rounds_.unpack(rank, round, expected.origin, received);
  }
  return true;
}

}  // namespace stoch::cpu
