#!/usr/bin/env bash
# burst.h compiles alone, twice included, in every language it promises, without a warning; so do its initialisers.
# Usage: header.sh INCLUDE_DIRECTORY
set -euo pipefail
include=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/alone.c" <<'SOURCE'
#include "burst.h"
#include "burst.h"
int use(void);
int use(void) {
    burst_mask_spec spec = BURST_MASK_SPEC_INIT;
    burst_problem problem = BURST_PROBLEM_INIT;
    burst_options options = BURST_OPTIONS_INIT;
    burst_forward_args forward = BURST_FORWARD_ARGS_INIT;
    burst_backward_args backward = BURST_BACKWARD_ARGS_INIT;
    burst_carrier carrier = BURST_CARRIER_INIT;
    burst_report report = BURST_REPORT_INIT;
    return spec.struct_size == sizeof spec && problem.struct_size == sizeof problem &&
           options.struct_size == sizeof options && forward.struct_size == sizeof forward &&
           backward.struct_size == sizeof backward && carrier.struct_size == sizeof carrier &&
           report.struct_size == sizeof report;
}
SOURCE
warnings=(-Wall -Wextra -pedantic -Werror)
for standard in c99 c11; do
    echo "burst.h as $standard"
    cc -std=$standard "${warnings[@]}" -Wstrict-prototypes -I "$include" -c "$work/alone.c" -o "$work/alone.o"
done
for standard in c++11 c++17; do
    echo "burst.h as $standard"
    c++ -x c++ -std=$standard "${warnings[@]}" -I "$include" -c "$work/alone.c" -o "$work/alone.o"
done
