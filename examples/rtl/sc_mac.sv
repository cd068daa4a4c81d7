// SPDX-License-Identifier: Apache-2.0
// One stochastic multiplier and its counter: two comparators, a gate, a sign, an accumulator.
// GATE 0: enabled (side b advances only while side a is on), 1: and, 2: xnor.
module sc_mac #(
    parameter int GATE = 0,
    parameter int BITS = 8,  // of a random number; a bound has one more
    parameter int ACC_BITS = 32
) (
    input  logic clock,
    input  logic clear,
    input  logic enable,
    input  logic [BITS-1:0] rng_a, rng_b,
    input  logic [BITS:0] bound_a, bound_b,
    input  logic negative,   // of the product: the signs of magnitudes differ
    output logic advance_b,  // the next cycle takes the next number of side b
    output logic product,
    output logic signed [ACC_BITS-1:0] acc
);
  logic bit_a, bit_b;
  logic signed [ACC_BITS-1:0] amount;

  assign bit_a = {1'b0, rng_a} < bound_a;
  assign bit_b = {1'b0, rng_b} < bound_b;
  assign product = GATE == 2 ? bit_a == bit_b : bit_a & bit_b;
  assign advance_b = GATE == 0 ? bit_a : 1'b1;
  always_comb begin
    amount = GATE == 2 ? -ACC_BITS'(1) : '0;
    if (product) amount = negative ? -ACC_BITS'(1) : ACC_BITS'(1);
  end

  always_ff @(posedge clock) begin
    if (clear) acc <= '0;
    else if (enable) acc <= acc + amount;
  end
endmodule
