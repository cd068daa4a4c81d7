// SPDX-License-Identifier: Apache-2.0
// Random requests, and who guesses at their answers, for tests that compare generations with and without guesses.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "engine/generate.h"

namespace stoch::test {

// Guesses of a source that knows the answer: all right, all wrong, or cut in the middle by a wrong one; look-ups in the
// sequence; and those of a draft model, which is the model itself or another one.
enum class Drafts : uint8_t { kRight, kWrong, kCut, kNgram, kOwnModel, kOtherModel };
const char* DraftsName(Drafts drafts);
std::vector<Drafts> AllDrafts();

// Requests that a test makes. STOCH_TEST_REQUESTS=500 asks more: two minutes for each instruction set.
int NumRequests();

inline constexpr int kTinyVocab = 96;  // of TinyLogitsModel

// Greedy or sampled, truncated or not, with penalties, biases, log-probabilities, stop strings and ids, or hashed logits.
GenerateRequest RandomRequest(std::mt19937& random);

// Room for eight sequences, SC.
EngineOptions SpeculationEngineOptions();

// Prompt -> the ids that follow it.
using Answers = std::map<std::vector<int32_t>, std::vector<int32_t>>;

// Sources of guesses whatever they cost. answers: outlives the sources. folder: the model that they guess for;
// scratch: for another model's files.
DraftSourceMaker MakerOf(Drafts drafts, const Answers& answers, const std::shared_ptr<Backend>& backend,
                         const std::filesystem::path& folder, const std::filesystem::path& scratch);

// Ids, reason of the end, hashes and log-probabilities; texts are the caller's.
void ExpectSame(const GenerateResult& expected, const GenerateResult& got, size_t index);

}  // namespace stoch::test
