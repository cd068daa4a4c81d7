// SPDX-License-Identifier: Apache-2.0
// Models by the names they have on huggingface.co, where a client of the hub has left them. Nothing is downloaded.
#pragma once

#include <string>

namespace stoch::cli {

// Whether a text is such a name, "org/name" or "org/name@revision", and no path that is there.
bool IsHubName(const std::string& text);

// The folder of that revision (a branch, a tag or a commit; "main" where none is named) in the cache: HF_HUB_CACHE, else
// HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub.
// Errors: InvalidInput where it is not there, with the command that fetches it.
std::string HubCacheFolder(const std::string& name);

}  // namespace stoch::cli
