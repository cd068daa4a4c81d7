// SPDX-License-Identifier: Apache-2.0
// Standard output whose failures are noticed, and the text inputs of commands.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace stoch::cli {

// Thrown when nobody reads standard output any more, as in `stoch ... | head`: the end of a command, and no fault.
struct ReaderGone {};

// Writes to standard output. Print returns once the text is handed to the system: streamed text appears at
// once; where this thread has a host (host/host.h), that gets it. A descriptor that does not block is waited for.
// Errors: InvalidInput if it cannot be written (disk full, closed), ReaderGone.
void Print(std::string_view text);
void PrintLine(std::string_view text);

// The text of --prompt, else of --file ("-" is standard input), else of standard input.
// Errors: InvalidInput if both are given, the file cannot be read, or standard input is a terminal.
std::string ReadText(const std::optional<std::string>& prompt, const std::string& file);

// A whole file of any kind, pipes included; "-" is standard input. Errors: InvalidInput.
std::string ReadWholeFile(const std::string& path);
// Reads a text as ReadWholeFile does. Errors: InvalidInput that names the file, also if it is not UTF-8.
std::string ReadTextFile(const std::string& path);

// Looks whether WriteWholeFile could create or replace this file, for what writes it after minutes of work; changes
// nothing. Errors: InvalidInput naming the file.
void CheckCanWrite(const std::string& path);

// Makes `text` the content of a file. Errors: InvalidInput naming the file.
void WriteWholeFile(const std::string& path, std::string_view text);

}  // namespace stoch::cli
