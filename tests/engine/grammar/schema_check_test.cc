// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/schema_check.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "tests/support/expect_invalid.h"

namespace stoch {
namespace {

struct Refused {
  std::string schema;
  std::vector<std::string> words;
};

void ExpectRefused(const Refused& one) {
  try {
    CheckSchema(one.schema);
  } catch (const InvalidInput& error) {
    const std::string message = error.what();
    for (const std::string& word : one.words) {
      EXPECT_NE(message.find(word), std::string::npos) << one.schema << "\n" << message;
    }
    return;
  }
  ADD_FAILURE() << one.schema << " is not refused";
}

// Each is a constraint that xgrammar 0.2.8 drops without a word.
TEST(Schemas, AreRefusedForWhatWouldBeDropped) {
  const Refused refused[] = {
      {R"({"not": {"type": "string"}})", {"at \"#\"", "\"not\""}},
      {R"({"type": "object", "properties": {"a": {"type": "string"}}, "if": {}, "then": {}})", {"\"if\""}},
      {R"({"type": "object", "dependentRequired": {"a": ["b"]}})", {"\"dependentRequired\""}},
      {R"({"type": "array", "contains": {"type": "integer"}})", {"\"contains\""}},
      {R"({"type": "array", "uniqueItems": true})", {"\"uniqueItems\""}},
      {R"({"type": "string", "maxLength": -1})", {"maxLength", "below 0"}},
      {R"({"type": "string", "minLength": -2.0})", {"minLength", "below 0"}},
      {R"({"maxLength": 3})", {"\"maxLength\" without \"type\""}},
      {R"({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]})", {"#/anyOf/1", "\"required\" without \"type\""}},
      {R"({"type": "object", "properties": {"a": {}}, "anyOf": [{"type": "object"}]})",
       {"\"properties\" next to \"anyOf\""}},
      {R"({"type": "string", "allOf": [{"type": "string"}], "maxLength": 3})", {"\"maxLength\" next to \"allOf\""}},
      {R"({"oneOf": [{"type": "null"}], "anyOf": [{"type": "null"}]})", {"\"oneOf\" next to \"anyOf\""}},
      {R"({"$ref": "#/$defs/a", "minLength": 2, "$defs": {"a": {"type": "string"}}})",
       {"\"minLength\" next to \"$ref\""}},
      {R"({"type": "string", "anyOf": [{"const": 1}]})", {"\"anyOf\" has what is not of \"type\""}},
      {R"({"type": "string", "anyOf": [{"type": "string"}, {"type": "null"}]})", {"\"anyOf\""}},
      {R"({"type": "string", "oneOf": [{}]})", {"\"oneOf\""}},
      {R"({"type": "integer", "enum": [1, 2, "x"]})", {"\"enum\" has what is not of \"type\""}},
      {R"({"type": "string", "const": 5})", {"\"const\""}},
      {R"({"type": "object", "required": ["z"]})", {"\"required\" has \"z\""}},
      {R"({"type": "object", "properties": {"x": {"type": "null"}}, "required": ["x", "y"]})", {"\"y\""}},
      {R"({"type": "object", "patternProperties": {"^k": {"type": "null"}}, "minProperties": 2})",
       {"\"minProperties\" next to \"patternProperties\""}},
      {R"({"type": "object", "propertyNames": {"enum": ["p"]}, "minProperties": 2})", {"\"propertyNames\""}},
      {R"({"type": "number", "minimum": 1e-7, "maximum": 2e-7})", {"six decimals"}},
      {R"({"type": "number", "exclusiveMinimum": 0.3333333, "maximum": 0.3333334})", {"six decimals"}},
      {R"({"type": "string", "pattern": "^\"+$"})", {"pattern", "classes"}},
      {R"({"type": "string", "pattern": "^\\\\d$"})", {"pattern", "classes"}},
      {R"({"type": "string", "pattern": "a\\nb"})", {"pattern"}},
      {R"({"type": "string", "pattern": "a\tb"})", {"pattern"}},
      {R"({"type": "object", "propertyNames": {"pattern": "\""}})", {"#/propertyNames", "pattern"}},
      {R"({"type": "string", "pattern": "\\u{110000}"})", {"pattern", "beyond the last character"}},
      {R"({"type": "string", "pattern": "a{4294967296}"})", {"pattern", "repeats too often"}},
      {R"({"type": "object", "patternProperties": {"^\"": {"type": "null"}}})", {"pattern"}},
      {R"({"type": "string", "pattern": "a", "format": "email"})", {"\"pattern\" next to \"format\""}},
      {R"({"anyOf": [{"type": "object"}], "additionalProperties": false})",
       {"\"additionalProperties\" next to \"anyOf\""}},
      {R"({"anyOf": []})", {"\"anyOf\" is empty"}},
      {R"({"type": []})", {"\"type\" is empty"}},
  };
  for (const Refused& one : refused) ExpectRefused(one);
}

// The options and the target of a reference are all that xgrammar reads: their types are looked for as deep as they are.
TEST(Schemas, AreRefusedForOptionsOfAnotherType) {
  // With the types that were found: a schema that is not looked into is of "any" type, and refused as well.
  const auto wrong = [](const std::string& types) { return "has what is not of \"type\": " + types; };
  const Refused refused[] = {
      {R"({"type": "string", "anyOf": [{"enum": ["a", 1]}]})", {wrong("integer")}},
      {R"({"type": "string", "anyOf": [{"properties": {"a": {"type": "null"}}}]})", {wrong("object")}},
      {R"({"type": "object", "oneOf": [{"items": {"type": "null"}}]})", {wrong("array")}},
      {R"({"type": "string", "oneOf": [{"anyOf": [{"type": "string"}, {"type": ["null", "array"]}]}]})",
       {wrong("array, null")}},
      {R"({"type": "string", "allOf": [{"$ref": "#/$defs/n"}], "$defs": {"n": {"type": "integer"}}})",
       {wrong("integer")}},
      {R"({"type": "string", "anyOf": [{"$ref": "#/x"}], "x": {}})", {wrong("any")}},
      {R"({"type": "string", "$ref": "#/$defs/n", "$defs": {"n": {"const": 1.5}}})", {"\"$ref\" " + wrong("number")}},
      {R"({"type": "string", "anyOf": [{"$ref": "#/$defs/n"}], "$defs": {"n": {"anyOf": [{"$ref": "#/$defs/n"}]}}})",
       {wrong("any")}},
  };
  for (const Refused& one : refused) ExpectRefused(one);
}

// xgrammar writes the values as they are.
TEST(Schemas, AreRefusedForValuesThatOtherKeywordsForbid) {
  const Refused refused[] = {
      {R"({"enum": ["a", "b"], "pattern": "^a"})", {"\"pattern\" next to \"enum\""}},
      {R"({"const": 4, "multipleOf": 3})", {"\"multipleOf\" next to \"const\""}},
      {R"({"enum": [{}], "required": ["a"], "properties": {"a": {}}})", {"\"properties\" next to \"enum\""}},
      {R"({"const": {"a": 1}, "additionalProperties": false})", {"\"additionalProperties\" next to \"const\""}},
      {R"({"const": [1], "items": {"type": "string"}})", {"\"items\" next to \"const\""}},
      {R"({"enum": ["a"], "anyOf": [{"const": "b"}]})", {"\"anyOf\" next to \"enum\""}},
      {R"({"const": 1, "enum": [2, 3]})", {"\"const\" is not one of \"enum\""}},
      {R"({"enum": ["a", "bcd"], "maxLength": 2})", {"\"enum\" has a value that \"maxLength\" does not allow"}},
      {R"({"const": "\u00fc", "minLength": 2})", {"\"minLength\""}},
      {R"({"const": 3, "exclusiveMinimum": 3})", {"\"exclusiveMinimum\""}},
      {R"({"const": 3, "maximum": 2.5})", {"\"maximum\""}},
      {R"({"enum": [[1], [1, 2]], "maxItems": 1})", {"\"maxItems\""}},
      {R"({"const": {}, "minProperties": 1})", {"\"minProperties\""}},
  };
  for (const Refused& one : refused) ExpectRefused(one);
}

TEST(Schemas, AreRefusedForKeywordsOfAnotherForm) {
  const Refused refused[] = {
      {R"({"type": "string", "pattern": 3})", {"\"pattern\" is not a string"}},
      {R"({"type": "string", "format": null})", {"\"format\" is not a string"}},
      {R"({"$ref": []})", {"\"$ref\" is not a string"}},
      {R"({"type": "number", "exclusiveMinimum": true})", {"\"exclusiveMinimum\" is not a number"}},
      {R"({"type": "object", "required": "a"})", {"\"required\" is not a list of strings"}},
      {R"({"type": "object", "properties": {"p": {"required": [1], "type": "object"}}})",
       {"#/properties/p", "required"}},
  };
  for (const Refused& one : refused) ExpectRefused(one);
}

TEST(Schemas, AreRefusedWhereverTheyAre) {
  const std::string bad = R"({"not": {}})";
  const Refused refused[] = {
      {R"({"type": "object", "properties": {"a": )" + bad + "}}", {"#/properties/a"}},
      {R"({"type": "object", "patternProperties": {"^a": )" + bad + "}}", {"#/patternProperties/^a"}},
      {R"({"type": "object", "additionalProperties": )" + bad + "}", {"#/additionalProperties"}},
      {R"({"type": "object", "propertyNames": )" + bad + "}", {"#/propertyNames"}},
      {R"({"type": "array", "items": )" + bad + "}", {"#/items"}},
      {R"({"type": "array", "prefixItems": [{"type": "null"}, )" + bad + "]}", {"#/prefixItems/1"}},
      {R"({"anyOf": [)" + bad + "]}", {"#/anyOf/0"}},
      {R"({"oneOf": [)" + bad + "]}", {"#/oneOf/0"}},
      {R"({"allOf": [)" + bad + "]}", {"#/allOf/0"}},
      {R"({"$ref": "#/$defs/a/items", "$defs": {"a": {"items": )" + bad + "}}}", {"#/$defs/a/items"}},
      {R"({"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": )" + bad + "}}", {"#/$defs/a"}},
  };
  for (const Refused& one : refused) ExpectRefused(one);
}

TEST(Schemas, MayHaveAnnotationsAndWhatIsNotReached) {
  for (
      const char* good : {
          "{}",
          "true",
          R"({"type": "string", "title": "T", "description": "not", "default": 3, "examples": [{"not": 1}], "x-y": 1})",
          R"({"enum": ["a", {"not": 1}], "type": ["string", "object"], "minLength": 1})",
          R"({"enum": [1, 2.0], "type": "integer"})",
          R"({"const": 3, "enum": [3, 4], "minimum": 3, "pattern": "^a", "properties": {}})",
          R"({"enum": ["a", "\u00fc"], "minLength": 1, "maxLength": 1, "minimum": 7})",
          R"({"type": ["string", "number"], "anyOf": [{"enum": ["a", 1]}, {"$ref": "#/$defs/i"}], "$defs": {"i": {"const": 1}}})",
          R"({"type": "string", "pattern": "^[0-9]+$", "format": "phone"})",
          R"({"anyOf": [{"type": "object"}], "additionalProperties": true})",
          R"({"type": "string", "pattern": "^[\"\\\\x]{3}\\d\\.\\w$"})",
          R"({"type": "number", "minimum": 0.5, "maximum": 0.5})",
          R"({"type": "number", "minimum": 0.1, "exclusiveMaximum": 0.100001})",
          R"({"type": "object", "minProperties": 2})",
          R"({"anyOf": [{"properties": {"a": {"type": "null"}}}, {"$ref": "#/x"}], "type": "object", "x": {"type": "object"}})",
          R"({"const": {"contains": 1}})",
          R"({"type": "object", "properties": {"not": {"type": "string"}, "if": {"type": "null"}}})",
          R"({"type": "array", "uniqueItems": false, "maxItems": 2})",
          R"({"type": ["string", "null"], "maxLength": 2})",
          R"({"properties": {"a": {"type": "string"}}, "required": ["a"]})",
          R"({"type": "object", "propertyNames": {"maxLength": 3}})",
          R"({"anyOf": [{"type": "string"}, {"type": "null"}], "default": null, "type": ["null", "string"]})",
          R"({"allOf": [{"$ref": "#/definitions/a"}], "definitions": {"a": {"type": "null"}, "b": {"not": {}}}})",
          R"({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}}})",
          R"({"$ref": "#/nowhere"})",
      }) {
    EXPECT_NO_THROW(CheckSchema(good)) << good;
  }
}

TEST(Schemas, OfTagsAreCheckedToo) {
  const std::string before = R"({"type": "structural_tag", "format": {"type": "tags_with_separator", "tags": [
      {"type": "tag", "begin": "not", "content": {"type": "json_schema", "json_schema": )";
  EXPECT_NO_THROW(
      CheckSchemasOfTag(before + R"({"type": "object", "properties": {"json_schema": {"type": "null"}}}}}]}})"));
  test::ExpectInvalid([&] { CheckSchemasOfTag(before + R"({"type": "array", "contains": {}}}}]}})"); },
                      {"\"contains\""});
}

TEST(Schemas, AreJsonOfBoundedDepth) {
  test::ExpectInvalid([] { CheckSchema("{"); }, {"the JSON schema"});
  std::string deep;
  for (int i = 0; i < 20000; ++i) deep += R"({"items":)";
  test::ExpectInvalid([&] { CheckSchema(deep); }, {"the JSON schema"});
}

}  // namespace
}  // namespace stoch
