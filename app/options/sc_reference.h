// SPDX-License-Identifier: Apache-2.0
// The reference of --sc, made from the lists that its parser uses.
#pragma once

#include <string>

namespace stoch::cli {

// Every setting of --sc with type, range, default and meaning, as Markdown that reads well in a terminal.
// docs/sc-options.md is this text; `stoch help sc` prints it.
std::string ScReference();

// Words that --sc may begin with ("preset=halved", "stoc_len=", ...), for shell completion.
std::string ScCompletionWords();

}  // namespace stoch::cli
