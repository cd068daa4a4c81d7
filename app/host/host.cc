// SPDX-License-Identifier: Apache-2.0
#include "app/host/host.h"

namespace stoch::cli {
namespace {

thread_local const Host* current = nullptr;

}  // namespace

const Host* CurrentHost() { return current; }

HostScope::HostScope(const Host* host) : before_(current) { current = host; }
HostScope::~HostScope() { current = before_; }

}  // namespace stoch::cli
