// SPDX-License-Identifier: Apache-2.0
// JSON documents that can be destroyed where there is no memory, which those of nlohmann::json cannot: for everything that
// a server reads and writes. They begin as array() or object(): a null that becomes one of them where there is no memory says
// that it is one and has none (nlohmann 3.11), so that its destructor ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace stoch {

// Memory of the documents themselves: makes their types our own.
template <class Value>
class JsonAllocator {
 public:
  using value_type = Value;
  JsonAllocator() = default;
  template <class Other>
  JsonAllocator(const JsonAllocator<Other>&) {}  // NOLINT(google-explicit-constructor): as allocators convert

  Value* allocate(size_t count) { return static_cast<Value*>(::operator new(count * sizeof(Value))); }
  void deallocate(Value* values, size_t) noexcept { ::operator delete(values); }
  template <class Other>
  bool operator==(const JsonAllocator<Other>&) const {
    return true;
  }
};

template <template <class, class, class...> class Object>
using JsonWith = nlohmann::basic_json<Object, std::vector, std::string, bool, int64_t, uint64_t, double, JsonAllocator>;
using SortedJson = JsonWith<std::map>;
using OrderedJson = JsonWith<nlohmann::ordered_map>;  // the members of objects in order

// Memory of destructors, which may not fail: where the system has none, from 16 KiB that every thread has for it, and what
// is larger waits until others have given some back.
// Threads: safe; what a thread allocates it frees itself.
void* AllocateToRelease(size_t bytes) noexcept;
void FreeToRelease(void* memory) noexcept;

template <class Value>
struct ReleaseAllocator {
  using value_type = Value;
  Value* allocate(size_t count) noexcept { return static_cast<Value*>(AllocateToRelease(count * sizeof(Value))); }
  void deallocate(Value* values, size_t) noexcept { FreeToRelease(values); }
  bool operator==(const ReleaseAllocator&) const { return true; }
};

}  // namespace stoch

// The destructor of a document, also of each of those that are made and moved while an initializer list becomes one,
// moves its values into a std::vector of them first (json_value::destroy of nlohmann 3.9 to 3.12). No other code has one.
template <>
class std::allocator<stoch::SortedJson> : public stoch::ReleaseAllocator<stoch::SortedJson> {};
template <>
class std::allocator<stoch::OrderedJson> : public stoch::ReleaseAllocator<stoch::OrderedJson> {};
