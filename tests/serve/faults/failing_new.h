// SPDX-License-Identifier: Apache-2.0
// An operator new that fails where a test says so, for programs that have failing_new.cc among their sources.
#pragma once

namespace stoch::test {

// Whether the allocation that this thread is about to make finds no memory. The program defines it. Allocates nothing.
bool IsToFail() noexcept;

}  // namespace stoch::test
