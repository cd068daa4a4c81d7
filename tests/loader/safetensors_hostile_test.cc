// SPDX-License-Identifier: Apache-2.0
// Safetensors files that are wrong, one test per way: each is InvalidInput that says what, expected and got.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "loader/checkpoint/safetensors.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"

namespace stoch {
namespace {

using test::ExpectInvalid;
using test::TempDir;

std::string LengthBytes(uint64_t length) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(length >> (8 * i));
  return text;
}

std::string File(const std::string& header, size_t data_bytes) {
  return LengthBytes(header.size()) + header + std::string(data_bytes, 'd');
}

// A header of one tensor "a".
std::string One(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

void ExpectRefused(const std::string& file, std::initializer_list<std::string_view> parts) {
  ExpectInvalid([&] { ParseSafetensorsHeader(std::as_bytes(std::span(file)), "x.safetensors"); }, parts);
  ExpectInvalid([&] { ParseSafetensorsHeader(std::as_bytes(std::span(file)), "x.safetensors"); }, {"x.safetensors: "});
}

TEST(HostileSafetensors, TheFileTheOthersAreMadeFromIsFine) {
  const std::string file = File(One(R"("F32")", "[2,1]", "[0,8]"), 8);
  EXPECT_EQ(ParseSafetensorsHeader(std::as_bytes(std::span(file)), "x").tensors.size(), 1u);
}

TEST(HostileSafetensors, EmptyFile) { ExpectRefused("", {"at least 8 bytes", "got 0"}); }

TEST(HostileSafetensors, TruncatedLength) { ExpectRefused("1234567", {"at least 8 bytes", "got 7"}); }

TEST(HostileSafetensors, TruncatedHeader) {
  const std::string file = File(One(R"("F32")", "[2,1]", "[0,8]"), 0);
  ExpectRefused(file.substr(0, 30),
                {"header length: expected at most 22 bytes", "got " + std::to_string(file.size() - 8)});
}

TEST(HostileSafetensors, HeaderLengthBeyondTheLimit) {
  std::string file = LengthBytes(100'000'001);
  file.resize(8 + 100'000'001, '{');
  ExpectRefused(file, {"header length: expected at most 100000000 bytes", "got 100000001"});
}

TEST(HostileSafetensors, HeaderLengthNearTheEndOfU64) {
  ExpectRefused(LengthBytes(UINT64_MAX) + "{}", {"header length", "got 18446744073709551615"});
  ExpectRefused(LengthBytes(UINT64_MAX - 7) + "{}", {"header length", "got 18446744073709551608"});
}

TEST(HostileSafetensors, HeaderLengthOneShortOrLong) {
  const std::string header = One(R"("F32")", "[2,1]", "[0,8]");
  ExpectRefused(LengthBytes(header.size() - 1) + header + "dddddddd", {"UTF-8 JSON"});
  ExpectRefused(LengthBytes(header.size() + 1) + header + "dddddddd", {"UTF-8 JSON"});
}

TEST(HostileSafetensors, TruncatedData) {
  ExpectRefused(File(One(R"("F32")", "[2,1]", "[0,8]"), 7), {"\"a\"", "up to byte 8", "got 7", "truncated"});
}

TEST(HostileSafetensors, DataLeftOver) {
  ExpectRefused(File(One(R"("F32")", "[2,1]", "[0,8]"), 9), {"expected 8 bytes of data", "got 9"});
}

TEST(HostileSafetensors, HeaderThatIsNotJson) {
  ExpectRefused(File("", 0), {"begins with {"});
  ExpectRefused(File("hello", 0), {"begins with {", "got \"hello\""});
  ExpectRefused(File("\xef\xbb\xbf{}", 0), {"begins with {"});
  ExpectRefused(File("{} {}", 0), {"UTF-8 JSON"});
  ExpectRefused(File("{\"a\":", 0), {"UTF-8 JSON"});
  ExpectRefused(File("[]", 0), {"begins with {"});
}

TEST(HostileSafetensors, TextHiddenBehindAZeroByte) {
  ExpectRefused(File(std::string("{}\0{}", 5), 0), {"begins with {", "\\x00"});
}

TEST(HostileSafetensors, NamesThatAreNotUtf8) {
  ExpectRefused(File("{\"\xff\xfe\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0),
                {"UTF-8 JSON", "byte"});
  ExpectRefused(File("{\"\xc3\":{}}", 0), {"UTF-8 JSON"});
  ExpectRefused(File("{\"__metadata__\":{\"k\":\"\xed\xa0\x80\"}}", 0), {"UTF-8 JSON"});  // half a surrogate pair
}

TEST(HostileSafetensors, NamesInMessagesAreShortAndPrintable) {
  const std::string name(100'000, 'n');
  const std::string message = test::InvalidMessage([&] {
    const std::string file = File("{\"\\n\\u0007" + name + "\":[]}", 0);
    ParseSafetensorsHeader(std::as_bytes(std::span(file)), "x");
  });
  EXPECT_NE(message.find("\\x0a\\x07nnn"), std::string::npos) << message;
  EXPECT_LT(message.size(), 200u);
}

TEST(HostileSafetensors, DeepNesting) {
  ExpectRefused(File("{\"a\":" + std::string(1'000'000, '['), 0), {"\"a\"", "expected an object", "got an array"});
  std::string deep = "{\"__metadata__\":";
  for (int i = 0; i < 200'000; ++i) deep += "{\"k\":";
  ExpectRefused(File(deep, 0), {"metadata \"k\"", "expected a string", "got an object"});
  ExpectRefused(File(One(R"("F32")", std::string(100'000, '['), "[0,8]"), 8), {"\"a\"", "shape", "got an array"});
}

TEST(HostileSafetensors, WrongDType) {
  ExpectRefused(File(One(R"("F33")", "[2]", "[0,8]"), 8), {"\"a\"", "dtype", "F32, F16, BF16", "got \"F33\""});
  ExpectRefused(File(One(R"("F64")", "[2]", "[0,8]"), 8), {"\"a\"", "expected 16 bytes for F64[2]"});
  ExpectRefused(File(One(R"("f32")", "[2]", "[0,8]"), 8), {"\"a\"", "got \"f32\""});
  ExpectRefused(File(One(R"("")", "[2]", "[0,8]"), 8), {"\"a\"", "got \"\""});
  ExpectRefused(File(One("32", "[2]", "[0,8]"), 8), {"\"a\"", "dtype", "expected a string", "got a number"});
}

TEST(HostileSafetensors, WrongShapeType) {
  ExpectRefused(File(One(R"("F32")", "2", "[0,8]"), 8), {"\"a\"", "shape", "expected an array", "got a number"});
  ExpectRefused(File(One(R"("F32")", "[2.0]", "[0,8]"), 8), {"\"a\"", "shape", "got a number that is no integer"});
  ExpectRefused(File(One(R"("F32")", "[-2]", "[0,8]"), 8), {"\"a\"", "shape", "got a negative number"});
  ExpectRefused(File(One(R"("F32")", R"(["2"])", "[0,8]"), 8), {"\"a\"", "shape", "got a string"});
  ExpectRefused(File(One(R"("F32")", "[null]", "[0,8]"), 8), {"\"a\"", "shape", "got null"});
  ExpectRefused(File(One(R"("F32")", "[true]", "[0,8]"), 8), {"\"a\"", "shape", "got a boolean"});
  ExpectRefused(File(One(R"("F32")", "[1e999]", "[0,8]"), 8), {"expected", "got"});
}

TEST(HostileSafetensors, ShapeThatOverflows) {
  ExpectRefused(File(One(R"("F32")", "[4294967296,4294967296]", "[0,0]"), 0),
                {"\"a\"", "2^63", "[4294967296, 4294967296]"});
  ExpectRefused(File(One(R"("F32")", "[2305843009213693952]", "[0,0]"), 0), {"\"a\"", "2^63"});
  // 2^62 * 2^2 elements of one byte are 0 modulo 2^64: an unchecked product would agree with the empty data.
  ExpectRefused(File(One(R"("U8")", "[4611686018427387904,4]", "[0,0]"), 0), {"\"a\"", "2^63"});
  ExpectRefused(File(One(R"("U8")", "[9223372036854775808]", "[0,0]"), 0), {"\"a\"", "below 2^63"});
  ExpectRefused(File(One(R"("U8")", "[99999999999999999999]", "[0,0]"), 0), {"\"a\"", "below 2^64"});
}

TEST(HostileSafetensors, TooManyDimensions) {
  EXPECT_NO_THROW({
    const std::string file = File(One(R"("U8")", "[1,1,1,1,1,1,1,1]", "[0,1]"), 1);
    ParseSafetensorsHeader(std::as_bytes(std::span(file)), "x");
  });
  ExpectRefused(File(One(R"("U8")", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1), {"\"a\"", "at most 8 numbers"});
}

TEST(HostileSafetensors, OffsetsThatDisagreeWithTheShape) {
  ExpectRefused(File(One(R"("F32")", "[2,1]", "[0,4]"), 4), {"\"a\"", "expected 8 bytes for F32[2, 1]", "[0, 4]"});
  ExpectRefused(File(One(R"("F16")", "[2,1]", "[0,8]"), 8), {"\"a\"", "expected 4 bytes for F16[2, 1]", "[0, 8]"});
  ExpectRefused(File(One(R"("F32")", "[2,1]", "[8,0]"), 8), {"\"a\"", "[8, 0]"});
  ExpectRefused(File(One(R"("U8")", "[]", "[0,0]"), 0), {"\"a\"", "expected 1 bytes for U8[]"});
}

TEST(HostileSafetensors, OffsetsOutsideTheFile) {
  ExpectRefused(File(One(R"("F32")", "[2,1]", "[8,16]"), 8), {"\"a\"", "up to byte 16", "got 8"});
  ExpectRefused(File(One(R"("U8")", "[8]", "[9223372036854775799,9223372036854775807]"), 8), {"\"a\"", "got 8"});
  ExpectRefused(File(One(R"("U8")", "[8]", "[18446744073709551608,18446744073709551616]"), 8), {"\"a\"", "below"});
}

TEST(HostileSafetensors, OffsetsThatAreNoPair) {
  ExpectRefused(File(One(R"("F32")", "[2]", "[8]"), 8), {"\"a\"", "data_offsets", "two numbers", "got 1"});
  ExpectRefused(File(One(R"("F32")", "[2]", "[0,8,8]"), 8), {"\"a\"", "data_offsets", "two numbers", "got 3"});
  ExpectRefused(File(One(R"("F32")", "[2]", "[]"), 8), {"\"a\"", "data_offsets", "two numbers", "got 0"});
}

std::string Two(const std::string& offsets_a, const std::string& offsets_b) {
  return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + offsets_a +
         R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + offsets_b + "}}";
}

TEST(HostileSafetensors, OverlappingTensors) {
  ExpectRefused(File(Two("[0,4]", "[3,7]"), 7), {"\"a\" and \"b\" overlap", "from byte 4", "got 3"});
  ExpectRefused(File(Two("[3,7]", "[0,4]"), 7), {"\"b\" and \"a\" overlap"});
  ExpectRefused(File(Two("[0,4]", "[0,4]"), 4), {"\"a\" and \"b\" overlap"});
}

TEST(HostileSafetensors, GapBetweenTensors) {
  ExpectRefused(File(Two("[0,4]", "[5,9]"), 9), {"\"b\"", "from byte 4", "got 5", "gap"});
  ExpectRefused(File(One(R"("U8")", "[4]", "[1,5]"), 5), {"\"a\"", "from byte 0", "got 1", "gap"});
}

TEST(HostileSafetensors, NameGivenTwice) {
  const std::string entry = R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  ExpectRefused(File("{" + entry + "," + entry + "}", 0), {"\"a\"", "given twice"});
  // The same name once escaped.
  ExpectRefused(File("{" + entry + R"(,"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
                {"given twice"});
}

TEST(HostileSafetensors, KeyGivenTwice) {
  ExpectRefused(File(R"({"a":{"dtype":"U8","dtype":"F32","shape":[0],"data_offsets":[0,0]}})", 0), {"dtype", "twice"});
  ExpectRefused(File(R"({"a":{"dtype":"U8","shape":[0],"shape":[4],"data_offsets":[0,0]}})", 0), {"shape", "twice"});
  ExpectRefused(File(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"data_offsets":[0,0]}})", 0),
                {"data_offsets", "twice"});
  ExpectRefused(File(R"({"__metadata__":{"k":"1","k":"2"}})", 0), {"metadata key \"k\"", "twice"});
  ExpectRefused(File(R"({"__metadata__":{},"__metadata__":{}})", 0), {"__metadata__", "twice"});
}

TEST(HostileSafetensors, KeyMissingOrUnknown) {
  ExpectRefused(File(R"({"a":{"dtype":"U8","shape":[0]}})", 0), {"\"a\"", "expected dtype, shape and data_offsets"});
  ExpectRefused(File(R"({"a":{}})", 0), {"\"a\"", "expected dtype, shape and data_offsets"});
  ExpectRefused(File(R"({"a":{"strides":[1]}})", 0), {"\"a\"", "got \"strides\""});
  // Found by safetensors_fuzz: the key stood in the message as it was, line break and all.
  ExpectRefused(File(R"({"a":{"x\ny":[1]}})", 0), {"tensor \"a\": expected the keys", "got \"x\\x0ay\""});
}

TEST(HostileSafetensors, EntryThatIsNoObject) {
  for (const char* value : {"null", "1", "-1", "1.5", "true", "\"s\"", "[]"}) {
    ExpectRefused(File(std::string("{\"a\":") + value + "}", 0), {"\"a\"", "expected an object"});
  }
}

TEST(HostileSafetensors, MetadataThatIsNoMapOfStrings) {
  ExpectRefused(File(R"({"__metadata__":[]})", 0), {"__metadata__", "expected an object", "got an array"});
  ExpectRefused(File(R"({"__metadata__":{"k":1}})", 0), {"metadata \"k\"", "expected a string", "got a number"});
  ExpectRefused(File(R"({"__metadata__":{"k":{}}})", 0), {"metadata \"k\"", "expected a string", "got an object"});
}

TEST(HostileSafetensors, PathsThatAreNoFile) {
  const TempDir folder;
  ExpectInvalid([&] { SafetensorsFile(folder / "none"); }, {"none: cannot open", "No such file"});
  ExpectInvalid([&] { SafetensorsFile(folder.path()); }, {"expected a regular file", "got a directory"});
  std::filesystem::create_symlink("loop", folder / "loop");
  ExpectInvalid([&] { SafetensorsFile(folder / "loop"); }, {"loop: cannot open", "symbolic links"});
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);  // must not wait for a writer
  ExpectInvalid([&] { SafetensorsFile(folder / "pipe"); }, {"expected a regular file", "pipe"});
  test::WriteFile(folder / "empty", "");
  ExpectInvalid([&] { SafetensorsFile(folder / "empty"); }, {"empty: expected", "got 0"});
}

TEST(HostileSafetensors, EveryTruncationAndEveryChangedByteOfAFileIsSurvived) {
  const std::string good = File(Two("[0,4]", "[4,8]"), 8);
  for (size_t size = 0; size < good.size(); ++size) {
    const std::string cut = good.substr(0, size);
    EXPECT_THROW(ParseSafetensorsHeader(std::as_bytes(std::span(cut)), "x"), InvalidInput) << size;
  }
  for (size_t at = 0; at < good.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = good;
      changed[at] = static_cast<char>(value);
      try {
        for (const SafetensorsTensor& tensor : ParseSafetensorsHeader(std::as_bytes(std::span(changed)), "x").tensors) {
          EXPECT_LE(tensor.begin_bytes + tensor.size_bytes, static_cast<int64_t>(changed.size()));
        }
      } catch (const InvalidInput&) {
      }
    }
  }
}

}  // namespace
}  // namespace stoch
