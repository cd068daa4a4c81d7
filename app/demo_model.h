// SPDX-License-Identifier: Apache-2.0
// The demo model that comes with stoch: in the source tree, next to an installed program and in the Python package.
#pragma once

#include <string>

namespace stoch::cli {

// The folder of the demo model. Looked for from the folder of this code's file (the program, or the extension module of the
// Python package) upwards: `demo`, as in the source tree and in the package, or `share/stoch/demo`, as cmake --install
// lays it.
// Errors: InvalidInput if there is none.
std::string DemoModelFolder();

// The path that --model names: `demo` is the demo model from any folder, unless the current folder has a model of
// that name; org/name is a folder of the local Hugging Face cache. Errors: as DemoModelFolder and HubCacheFolder.
std::string ModelPath(const std::string& model);

}  // namespace stoch::cli
