// SPDX-License-Identifier: Apache-2.0
#include "loader/bounded_json.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "loader/quote.h"

namespace stoch {
namespace {

// What things take in memory besides text that is too long to lie in its string: a value with the room that its array
// grows into, a string, a container, a member of an object.
constexpr int64_t kValueBytes = 24;
constexpr int64_t kStringBytes = 48;
constexpr int64_t kContainerBytes = 64;
constexpr int64_t kMemberBytes = 96;

int64_t TextBytes(const std::string& text) {
  constexpr size_t kInPlace = 15;
  return text.size() <= kInPlace ? 0 : static_cast<int64_t>(text.size()) + 16;
}

[[noreturn]] void Refuse(const std::string& what) { throw InvalidInput(what); }

// Builds the document from parser events and refuses on the way what nlohmann's own builder lets pass: it keeps the
// last of two equal keys. Its parser callback could see the same, but costs 5 times the parse of a 17 MB
// tokenizer.json.
template <class Json>
class BoundedBuilder final : public nlohmann::json_sax<Json> {
  using Base = nlohmann::json_sax<Json>;
  using typename Base::binary_t;
  using typename Base::number_float_t;
  using typename Base::number_integer_t;
  using typename Base::number_unsigned_t;
  using typename Base::string_t;

 public:
  BoundedBuilder(const std::string& where, size_t max_depth, int64_t max_values, int64_t max_bytes,
                 const JsonEntryCheck& check)
      : where_(where), max_depth_(max_depth), max_values_(max_values), max_bytes_(max_bytes), check_(check) {}

  ~BoundedBuilder() override { ReleaseJson(&document_); }
  BoundedBuilder(const BoundedBuilder&) = delete;
  BoundedBuilder& operator=(const BoundedBuilder&) = delete;

  Json TakeDocument() { return std::move(document_); }

  bool null() override { return Place(nullptr); }
  bool boolean(bool value) override { return Place(value); }
  bool number_integer(number_integer_t value) override { return Place(value); }
  bool number_unsigned(number_unsigned_t value) override { return Place(value); }
  bool number_float(number_float_t value, const string_t&) override { return Place(value); }
  bool string(string_t& value) override {
    Take(kStringBytes + TextBytes(value));
    return Place(std::move(value));
  }
  bool binary(binary_t&) override { return false; }  // not part of JSON text
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    CheckEntry();
    Take(kMemberBytes + TextBytes(name));
    AddMember(open_.back()->template get_ref<typename Json::object_t&>(), std::move(name));
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    if (dynamic_cast<const typename Json::out_of_range*>(&error) != nullptr) {
      Refuse(where_ + ": expected JSON with numbers a double can hold, got a larger one");
    }
    Refuse(where_ + ": expected JSON, got something else at byte " + std::to_string(position));
  }

 private:
  void Take(int64_t bytes) {
    bytes_ += bytes;
    if (bytes_ <= max_bytes_) return;
    Refuse(where_ + ": expected JSON that takes at most " + std::to_string(max_bytes_ >> 20) +
           " MiB of memory, got more values");
  }

  void CheckEntry() const {
    if (!check_ || open_.size() != 2 || outermost_member_.empty()) return;
    const Json& container = *open_.back();
    const bool is_list = container.is_array();
    check_(outermost_member_, {container.size(), is_list, is_list && !container.empty() && container[0].is_number()});
  }

  [[noreturn]] void RefuseTwice(const std::string& name) const {
    Refuse(where_ + ": key " + Quoted(name) + " is given twice");
  }
  template <class Map>
  void AddMember(Map& object, std::string name) {
    const auto [member, inserted] = object.emplace(std::move(name), nullptr);
    if (!inserted) RefuseTwice(member->first);
    member_ = &member->second;
    if (open_.size() == 1) outermost_member_ = member->first;
  }
  // Its own emplace looks at every member, which takes a square of their number, and its growth copies what members hold.
  void AddMember(OrderedJson::object_t& object, std::string name) {
    if (!names_.back().insert(name).second) RefuseTwice(name);
    if (open_.size() == 1) outermost_member_ = name;
    using Members = OrderedJson::object_t::Container;
    Members& members = object;
    if (members.size() == members.capacity()) {
      Members more;
      more.reserve(std::max<size_t>(4, 2 * members.size()));
      for (auto& [known, value] : members) more.emplace_back(known, std::move(value));
      members.swap(more);
    }
    members.emplace_back(std::move(name), nullptr);
    member_ = &members.back().second;
  }

  bool Place(Json value) {
    if (!open_.empty() && open_.back()->is_array()) CheckEntry();
    Take(kValueBytes);
    if (++values_ > max_values_) {
      Refuse(where_ + ": expected JSON of at most " + std::to_string(max_values_) + " values, got more");
    }
    if (open_.empty()) {
      last_ = &(document_ = std::move(value));
    } else if (open_.back()->is_array()) {
      last_ = &open_.back()->template get_ref<typename Json::array_t&>().emplace_back(std::move(value));
    } else {
      last_ = &(*member_ = std::move(value));
    }
    return true;
  }

  bool Open(Json container) {
    if (open_.size() >= max_depth_) {
      Refuse(where_ + ": expected JSON nested at most " + std::to_string(max_depth_) + " deep, got more");
    }
    Take(kContainerBytes);
    Place(std::move(container));
    open_.push_back(last_);
    names_.emplace_back();
    return true;
  }

  bool Close() {
    open_.pop_back();
    names_.pop_back();
    return true;
  }

  const std::string& where_;
  const size_t max_depth_;
  const int64_t max_values_;
  const int64_t max_bytes_;
  const JsonEntryCheck& check_;
  int64_t values_ = 0;
  int64_t bytes_ = 0;
  Json document_;
  std::vector<Json*> open_;       // the containers around the current place; none moves while one inside it is open
  Json* member_ = nullptr;        // where the value of the key just read goes
  Json* last_ = nullptr;          // where the last value went
  std::string outermost_member_;  // the last key of the outermost object
  std::vector<std::unordered_set<std::string>> names_;  // of the open objects' members, where those are in order
};

// Goes over a text once, and gives its whole pages back to the system when they have been passed.
class Consumer {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  explicit Consumer(char* at) : at_(at), kept_(at + (kPageBytes - Address(at) % kPageBytes) % kPageBytes) {}

  reference operator*() const { return *at_; }
  Consumer& operator++() {
    ++at_;
    if (at_ - kept_ == kStepBytes) {
      madvise(kept_, kStepBytes, MADV_DONTNEED);  // where it fails the pages stay
      kept_ += kStepBytes;
    }
    return *this;
  }
  bool operator==(const Consumer& other) const { return at_ == other.at_; }
  bool operator!=(const Consumer& other) const { return at_ != other.at_; }

 private:
  static constexpr size_t kPageBytes = 64 << 10;  // or smaller pages
  static constexpr std::ptrdiff_t kStepBytes = 256 << 10;

  static size_t Address(const char* at) { return reinterpret_cast<size_t>(at); }

  char* at_;
  char* kept_;  // the first page that is not given back
};

// From text.data() to its end.
template <class Json, class Iterator>
Json Build(std::string_view text, Iterator begin, Iterator end, BoundedBuilder<Json>& builder,
           const std::string& where) {
  if (text.empty()) Refuse(where + ": expected JSON, got nothing: it is empty");
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {  // the parser would stop there
    Refuse(where + ": expected JSON, got a zero byte at byte " + std::to_string(zero));
  }
  Json::sax_parse(begin, end, &builder);
  return builder.TakeDocument();
}

template <class Json>
Json Consume(std::string text, const std::string& where, int max_depth, int64_t max_values, int64_t max_bytes,
             const JsonEntryCheck& check) {
  BoundedBuilder<Json> builder(where, static_cast<size_t>(max_depth), max_values, max_bytes, check);
  return Build(text, Consumer(text.data()), Consumer(text.data() + text.size()), builder, where);
}

template <class Json>
void Release(Json* document) {
  if (auto* array = document->template get_ptr<typename Json::array_t*>()) {
    for (Json& entry : *array) Release(&entry);
    *array = {};
  } else if (auto* object = document->template get_ptr<typename Json::object_t*>()) {
    for (auto& [name, member] : *object) Release(&member);
    object->clear();
  }
}

std::string_view TypeName(nlohmann::detail::value_t type) {
  using Type = nlohmann::detail::value_t;
  switch (type) {
    case Type::null: return "null";
    case Type::object: return "an object";
    case Type::array: return "an array";
    case Type::string: return "a string";
    case Type::boolean: return "a boolean";
    case Type::number_integer:
    case Type::number_unsigned: return "an integer";
    case Type::number_float: return "a fraction";
    default: return "something else";
  }
}

}  // namespace

nlohmann::json ParseBoundedJson(std::string_view text, const std::string& where, int max_depth, int64_t max_values,
                                int64_t max_bytes, const JsonEntryCheck& check) {
  BoundedBuilder<nlohmann::json> builder(where, static_cast<size_t>(max_depth), max_values, max_bytes, check);
  return Build(text, text.data(), text.data() + text.size(), builder, where);
}

SortedJson ConsumeBoundedJson(std::string text, const std::string& where, int max_depth, int64_t max_values,
                              int64_t max_bytes, const JsonEntryCheck& check) {
  return Consume<SortedJson>(std::move(text), where, max_depth, max_values, max_bytes, check);
}

OrderedJson ConsumeOrderedJson(std::string text, const std::string& where, int max_depth, int64_t max_values,
                               int64_t max_bytes, const JsonEntryCheck& check) {
  return Consume<OrderedJson>(std::move(text), where, max_depth, max_values, max_bytes, check);
}

int64_t JsonBytes(const OrderedJson& document) {
  int64_t bytes = kValueBytes;
  if (const auto* text = document.get_ptr<const OrderedJson::string_t*>()) {
    bytes += kStringBytes + TextBytes(*text);
  } else if (const auto* object = document.get_ptr<const OrderedJson::object_t*>()) {
    bytes += kContainerBytes;
    for (const auto& [name, member] : *object) bytes += kMemberBytes + TextBytes(name) + JsonBytes(member);
  } else if (const auto* array = document.get_ptr<const OrderedJson::array_t*>()) {
    bytes += kContainerBytes;
    for (const OrderedJson& entry : *array) bytes += JsonBytes(entry);
  }
  return bytes;
}

void ReleaseJson(nlohmann::json* document) { Release(document); }
void ReleaseJson(SortedJson* document) { Release(document); }
void ReleaseJson(OrderedJson* document) { Release(document); }

std::string JsonText(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', true);
}

std::string_view JsonTypeName(const nlohmann::json& value) { return TypeName(value.type()); }
std::string_view JsonTypeName(const SortedJson& value) { return TypeName(value.type()); }

}  // namespace stoch
