// SPDX-License-Identifier: Apache-2.0
// Energies that Accelergy computed: DIR/ERT.yaml prices the components and actions of action_counts.yaml.
#pragma once

#include <string>
#include <string_view>

#include "research/energy/energy.h"

namespace stoch {

// {ERT: {version, tables: [{name, actions: [{name, arguments, energy}]}]}}. A table's name may be a path
// (system.chip.sng) and name several (sng[0..3]); the last part counts. Tables and actions that nothing here counts are
// ignored. Units: pJ, as Accelergy's.
// Errors: InvalidInput, one sentence: no ERT, energies below 0 or not finite, an action that is priced twice.
EnergyTable ParseAccelergyErt(std::string_view text, const std::string& name);

}  // namespace stoch
