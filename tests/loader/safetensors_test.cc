// SPDX-License-Identifier: Apache-2.0
// Safetensors files that are as they should be: reading, writing, and what reading back gives.

#include "loader/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "loader/checkpoint/safetensors_writer.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/shared_folder.h"
#include "tests/support/temp_dir.h"

namespace stoch {
namespace {

using test::ExpectInvalid;
using test::TempDir;

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(Safetensors, FileWrittenByteByByteIsUnderstood) {
  // Not made by our writer: the format as its README gives it, tensors out of data order, padded with spaces.
  const std::string header =
      R"({"b":{"dtype":"I32","shape":[2],"data_offsets":[4,12]},"__metadata__":{"format":"pt"},)"
      R"("a":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]},"c":{"dtype":"F32","shape":[],"data_offsets":[12,16]}}  )";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  file += header + std::string("\x00\x3c\x00\xc0", 4) + std::string("\x05\0\0\0\xff\xff\xff\xff", 8) +
          std::string("\0\0\x80\x3f", 4);
  const TempDir folder;
  test::WriteFile(folder / "x.safetensors", file);
  const SafetensorsFile opened(folder / "x.safetensors");
  ASSERT_EQ(opened.tensors().size(), 3u);
  EXPECT_EQ(opened.tensors()[0].name, "a");
  EXPECT_EQ(opened.tensors()[0].dtype, DType::kF16);
  EXPECT_EQ(opened.tensors()[0].shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(std::memcmp(opened.Data(opened.tensors()[0]).data(), "\x00\x3c\x00\xc0", 4), 0);
  EXPECT_EQ(opened.CopyI32(opened.Require("b")), (std::vector<int32_t>{5, -1}));
  EXPECT_EQ(opened.CopyF32(opened.Require("c")), std::vector<float>{1.0f});
  EXPECT_TRUE(opened.Require("c").shape.empty());
  EXPECT_EQ(opened.metadata().at("format"), "pt");
  EXPECT_EQ(opened.Find("d"), nullptr);
  ExpectInvalid([&] { opened.Require("d"); }, {"x.safetensors", "\"d\"", "missing"});
  ExpectInvalid([&] { (void)opened.CopyF32(opened.Require("b")); }, {"\"b\"", "expected F32", "got I32"});
  ExpectInvalid([&] { (void)opened.CopyI32(opened.Require("a")); }, {"\"a\"", "expected I32", "got F16"});
}

TEST(Safetensors, NoTensorsAtAllIsAFile) {
  std::string file(8, '\0');
  file[0] = 2;
  file += "{}";
  EXPECT_TRUE(ParseSafetensorsHeader(Bytes(file), "x").tensors.empty());
}

class EveryDType : public testing::TestWithParam<DType> {};

TEST_P(EveryDType, WrittenFilesReadBack) {
  const TempDir folder;
  const std::filesystem::path path = folder / "x.safetensors";
  const size_t size = DTypeSize(GetParam());
  std::string data;
  for (size_t i = 0; i < 6 * size; ++i) data += static_cast<char>(17 * i + 3);
  const SafetensorsSpec specs[] = {
      {"first", GetParam(), {2, 3}}, {"empty", GetParam(), {0, 7}}, {"é", DType::kU8, {1}}};
  {
    SafetensorsWriter writer(path, specs, {{"made by", "a \"test\"\n"}});
    writer.Append(Bytes(data).first(1));  // pieces of any size
    writer.Append(Bytes(data).subspan(1));
    writer.Append(Bytes("z"));
    EXPECT_FALSE(std::filesystem::exists(path)) << "an unfinished file must not look finished";
    writer.Finish();
  }
  const SafetensorsFile opened(path);
  EXPECT_EQ(opened.metadata().at("made by"), "a \"test\"\n");
  const SafetensorsTensor& first = opened.Require("first");
  EXPECT_EQ(first.dtype, GetParam());
  EXPECT_EQ(first.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(first.begin_bytes % 8, 0) << "data begins aligned";
  ASSERT_EQ(opened.Data(first).size(), data.size());
  EXPECT_EQ(std::memcmp(opened.Data(first).data(), data.data(), data.size()), 0);
  EXPECT_EQ(opened.Require("empty").size_bytes, 0);
  EXPECT_EQ(opened.Data(opened.Require("é"))[0], std::byte{'z'});
  EXPECT_FALSE(std::filesystem::exists(path.string() + ".partial"));
}

INSTANTIATE_TEST_SUITE_P(Safetensors, EveryDType,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kU8, DType::kI8, DType::kI32,
                                         DType::kI64));

TEST(SafetensorsWriter, UnfinishedFilesDisappear) {
  const TempDir folder;
  const SafetensorsSpec spec{"a", DType::kU8, {2}};
  {
    SafetensorsWriter writer(folder / "x", {&spec, 1}, {});
    writer.Append(Bytes("1"));
    ExpectInvalid([&] { writer.Finish(); }, {"expected 2 bytes", "got 1"});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsWriter, RefusesMoreBytesThanTheSpecsNeed) {
  const TempDir folder;
  const SafetensorsSpec spec{"a", DType::kU8, {2}};
  SafetensorsWriter writer(folder / "x", {&spec, 1}, {});
  writer.Append(Bytes("12"));
  ExpectInvalid([&] { writer.Append(Bytes("3")); }, {"expected 2 bytes", "got 1 more after 2"});
}

TEST(SafetensorsWriter, RefusesSpecsNoFileCanHave) {
  const TempDir folder;
  const auto write = [&](const std::vector<SafetensorsSpec>& specs,
                         const std::map<std::string, std::string>& metadata = {}) {
    return [=, &folder] { SafetensorsWriter(folder / "x", specs, metadata); };
  };
  ExpectInvalid(write({{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}), {"\"a\"", "given twice"});
  ExpectInvalid(write({{"a", DType::kU8, {-1}}}), {"\"a\"", "-1"});
  ExpectInvalid(write({{"a", DType::kF32, {int64_t{1} << 61, 4}}}), {"\"a\"", "2^63"});
  ExpectInvalid(write({{"a", DType::kU8, {int64_t{1} << 62}}, {"b", DType::kU8, {int64_t{1} << 62}}}),
                {"\"b\"", "2^63"});
  ExpectInvalid(write({{"\xff", DType::kU8, {1}}}), {"UTF-8"});
  ExpectInvalid(write({}, {{"k", "\xff"}}), {"UTF-8"});
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsWriter, NamesTheFileThatCannotBeCreated) {
  const TempDir folder;
  ExpectInvalid([&] { SafetensorsWriter(folder / "none/x", {}, {}); }, {"none/x", "cannot create"});
}

TEST(SafetensorsWriter, FullDiskIsInvalidInput) {
  // The partial file is a link to the device that is always full.
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const TempDir folder;
  std::filesystem::create_symlink("/dev/full", folder / "x.partial");
  ExpectInvalid([&] { SafetensorsWriter(folder / "x", {}, {}); }, {"x.partial", "cannot write", "No space left"});
}

TEST(Safetensors, RecordedProductsOpen) {
  STOCH_REQUIRE_SHARED();
  const SafetensorsFile golden(test::SharedFolder() / "goldens" / "sc_matmul_golden.safetensors");
  const auto cases = nlohmann::json::parse(golden.metadata().at("cases"));
  ASSERT_FALSE(cases.empty());
  for (const auto& entry : cases) {
    const std::string name = entry.at("case").get<std::string>();
    for (const char* part : {".a", ".b", ".y"}) {
      EXPECT_FALSE(golden.CopyF32(golden.Require(name + part)).empty()) << name << part;
    }
  }
  const std::vector<int32_t> sobol = golden.CopyI32(golden.Require("sobol.prec3.a"));
  EXPECT_EQ(sobol, (std::vector<int32_t>{0, 4, 6, 2, 3, 7, 5, 1}));
}

// Types that nothing computes with, as safetensors (the package, 0.8.0) reads them, and no metadata written as null.
TEST(Safetensors, OtherTypesAndNoMetadata) {
  const std::string header =
      R"({"__metadata__":null,"a":{"dtype":"F64","shape":[2],"data_offsets":[0,16]},)"
      R"("b":{"dtype":"BOOL","shape":[3],"data_offsets":[16,19]},"c":{"dtype":"F8_E5M2","shape":[1],"data_offsets":[19,20]},)"
      R"("d":{"dtype":"U16","shape":[1],"data_offsets":[20,22]},"e":{"dtype":"F32","shape":[1],"data_offsets":[22,26]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  file[1] = static_cast<char>(header.size() >> 8);
  file += header + std::string(26, 'd');
  const SafetensorsHeader read = ParseSafetensorsHeader(std::as_bytes(std::span(file)), "x");
  EXPECT_TRUE(read.metadata.empty());
  ASSERT_EQ(read.tensors.size(), 5u);
  EXPECT_EQ(read.tensors[0].dtype_name(), "F64");
  EXPECT_EQ(read.tensors[0].size_bytes, 16);
  EXPECT_EQ(read.tensors[1].dtype_name(), "BOOL");
  EXPECT_EQ(read.tensors[4].dtype_name(), "F32");
  const test::TempDir folder;
  test::WriteFile(folder / "x.safetensors", file);
  const SafetensorsFile opened(folder / "x.safetensors");
  test::ExpectInvalid([&] { (void)opened.CopyF32(opened.Require("a")); }, {"\"a\": expected F32, got F64"});
}

}  // namespace
}  // namespace stoch
