// SPDX-License-Identifier: Apache-2.0
// Memory for one pending handler of Asio, so that posting it cannot fail. Internal to the HTTP front.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstddef>
#include <new>
#include <utility>

namespace stoch::serve {

// Asio gives the memory of a handler back before it calls the handler, which may then be posted again.
class HandlerMemory {
 public:
  HandlerMemory() = default;
  HandlerMemory(const HandlerMemory&) = delete;
  HandlerMemory& operator=(const HandlerMemory&) = delete;

  void* Allocate(size_t bytes) {
    if (is_used_ || bytes > bytes_.size()) return ::operator new(bytes);
    is_used_ = true;
    return bytes_.data();
  }
  void Free(void* memory) noexcept {
    if (memory == bytes_.data()) {
      is_used_ = false;
    } else {
      ::operator delete(memory);
    }
  }

 private:
  alignas(std::max_align_t) std::array<std::byte, 256> bytes_;
  bool is_used_ = false;
};

template <class Value>
class HandlerAllocator {
 public:
  using value_type = Value;
  explicit HandlerAllocator(HandlerMemory& memory) : memory_(&memory) {}
  template <class Other>
  // NOLINTNEXTLINE(google-explicit-constructor): allocators convert
  HandlerAllocator(const HandlerAllocator<Other>& other) : memory_(other.memory()) {}

  Value* allocate(size_t count) { return static_cast<Value*>(memory_->Allocate(count * sizeof(Value))); }
  void deallocate(Value* values, size_t) noexcept { memory_->Free(values); }
  HandlerMemory* memory() const { return memory_; }
  template <class Other>
  bool operator==(const HandlerAllocator<Other>& other) const {
    return memory_ == other.memory();
  }

 private:
  HandlerMemory* memory_;
};

// Runs `body` on a thread of the context. memory: of nothing else until then; outlives the handler.
template <class Body>
void PostFrom(HandlerMemory& memory, boost::asio::io_context& context, Body body) noexcept {
  struct Handler {
    using allocator_type = HandlerAllocator<std::byte>;
    allocator_type get_allocator() const noexcept { return allocator_type{*memory}; }
    void operator()() { body(); }
    HandlerMemory* memory;
    Body body;
  };
  boost::asio::post(context, Handler{&memory, std::move(body)});
}

}  // namespace stoch::serve
