#!/usr/bin/env bash
# The structs of bench/binding.py are those of burst.h: the same sizes, the same fields at the same offsets, none left out.
# Usage: binding.sh SOURCE_DIRECTORY
set -euo pipefail
cd "$1"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 bench/binding.py layout >"$work/python.txt"
{
    echo '#include "burst.h"'
    echo '#include <stdio.h>'
    echo 'int main(void) {'
    while read -r name _ fields; do
        echo "printf(\"$name %zu\", sizeof($name));"
        for field in $fields; do
            echo "printf(\" ${field%@*}@%zu\", offsetof($name, ${field%@*}));"
        done
        echo 'puts("");'
    done <"$work/python.txt"
    echo 'return 0; }'
} >"$work/layout.c"
cc -std=c11 -I include "$work/layout.c" -o "$work/layout"
"$work/layout" >"$work/header.txt"
diff "$work/header.txt" "$work/python.txt"
[ -s "$work/python.txt" ]
cut -d ' ' -f 1,2 "$work/header.txt"
