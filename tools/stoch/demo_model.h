// SPDX-License-Identifier: Apache-2.0
// The demo model that comes with the source tree.
#pragma once

#include <string>

namespace stoch::cli {

// The folder demo of the tree this binary was built in (looked for upwards from the binary).
// Errors: InvalidInput if there is none.
std::string DemoModelFolder();

}  // namespace stoch::cli
