// SPDX-License-Identifier: Apache-2.0
// Runs sc_mac over the files of `stoch vectors` in the folder +dir=DIR, and compares every bit, count and accumulator.
// Prints PASS, or the first difference and ends with an error. The parameters are those of meta.json (run, next to it).
module sc_mac_tb;
  parameter int GATE = 0, BITS = 8, SIGNS = 1, CODE_BITS = 8;
  parameter int L = 128, M = 64, LEVELS = 128, D = 64, CHUNK = 64, CHUNKS = 1, ROWS = 1, OUTPUTS = 1;

  logic [BITS-1:0] rng_a[M*L], rng_b[M*L];
  logic [BITS:0] bound[LEVELS];
  logic [CODE_BITS-1:0] a[ROWS*D], b[OUTPUTS*D];
  logic [L-1:0] bits[ROWS*OUTPUTS*D];
  logic signed [31:0] count[ROWS*OUTPUTS*D], sums[ROWS*OUTPUTS*CHUNKS];

  logic clock = 0, clear = 1, enable = 0, negative = 0;
  logic [BITS-1:0] number_a = 0, number_b = 0;
  logic [BITS:0] bound_a = 0, bound_b = 0;
  logic advance_b, product;
  logic signed [31:0] acc, earlier;
  int next_b, mask, at;
  string dir;

  sc_mac #(.GATE(GATE), .BITS(BITS)) mac (
      .clock, .clear, .enable, .rng_a(number_a), .rng_b(number_b), .bound_a, .bound_b, .negative, .advance_b, .product,
      .acc);

  // A level is an index of `bound`: all of a code, or what is below its sign.
  function automatic logic [BITS:0] bound_of(input logic [CODE_BITS-1:0] code);
    return bound[SIGNS != 0 ? int'(code[CODE_BITS-2:0]) : int'(code)];
  endfunction

  task automatic differ(input string what, input int row, input int out, input int d, input int got, input int wanted);
    $display("%s of row %0d, output %0d, dimension %0d: %0d, expected %0d", what, row, out, d, got, wanted);
    $fatal(1, "FAIL");
  endtask

  task automatic tick;
    #1 clock = 1;
    #1 clock = 0;
  endtask

  task automatic multiply(input int row, input int out, input int d);
    at = (row * OUTPUTS + out) * D + d;
    mask = (d % CHUNK) % M;
    bound_a = bound_of(a[row*D+d]);
    bound_b = bound_of(b[out*D+d]);
    negative = SIGNS != 0 && a[row*D+d][CODE_BITS-1] != b[out*D+d][CODE_BITS-1];
    next_b = 0;
    earlier = acc;
    for (int t = 0; t < L; t++) begin
      number_a = rng_a[mask*L+t];
      number_b = rng_b[mask*L+next_b];
      enable = 1;
      #1;
      if (product !== bits[at][t]) differ($sformatf("bit %0d", t), row, out, d, int'(product), int'(bits[at][t]));
      if (advance_b) next_b++;
      tick();
    end
    enable = 0;
    if (acc - earlier !== count[at]) differ("count", row, out, d, acc - earlier, count[at]);
  endtask

  initial begin
    if (!$value$plusargs("dir=%s", dir)) $fatal(1, "+dir=DIR is missing");
    $readmemh({dir, "/rng_a.hex"}, rng_a, 0, M*L - 1);
    $readmemh({dir, "/rng_b.hex"}, rng_b, 0, M*L - 1);
    $readmemh({dir, "/bound.hex"}, bound, 0, LEVELS - 1);
    $readmemh({dir, "/a.hex"}, a, 0, ROWS*D - 1);
    $readmemh({dir, "/b.hex"}, b, 0, OUTPUTS*D - 1);
    $readmemh({dir, "/bit.hex"}, bits, 0, ROWS*OUTPUTS*D - 1);
    $readmemh({dir, "/count.hex"}, count, 0, ROWS*OUTPUTS*D - 1);
    $readmemh({dir, "/acc.hex"}, sums, 0, ROWS*OUTPUTS*CHUNKS - 1);
    for (int row = 0; row < ROWS; row++)
      for (int out = 0; out < OUTPUTS; out++)
        for (int d = 0; d < D; d++) begin
          if (d % CHUNK == 0) begin
            clear = 1;
            tick();
            clear = 0;
          end
          multiply(row, out, d);
          if (d % CHUNK == CHUNK - 1 || d == D - 1)
            if (acc !== sums[(row*OUTPUTS+out)*CHUNKS+d/CHUNK])
              differ("acc", row, out, d, acc, sums[(row*OUTPUTS+out)*CHUNKS+d/CHUNK]);
        end
    $display("PASS");
    $finish;
  end
endmodule
