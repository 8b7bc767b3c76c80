#!/usr/bin/env bash
# libburst.so exports what burst.h declares: all of it, nothing else.
# Usage: symbols.sh LIBRARY HEADER
set -euo pipefail
library=$1 header=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

nm -D --defined-only "$library" | awk '{ print $NF }' | sort -u >"$work/exported"
# BURST_BUILDING turns BURST_API into a visibility attribute, a mark that survives preprocessing.
cc -E -P -DBURST_BUILDING "$header" | tr '\n' ' ' | tr ';' '\n' | grep 'visibility("default")' |
    sed 's/__attribute__((visibility("default")))//' | grep -oE 'burst_[a-z0-9_]+ *\([^*]' | sed 's|[ (].*||' |
    sort -u >"$work/declared"

echo "$(wc -l <"$work/declared") declared, $(wc -l <"$work/exported") exported"
test -s "$work/declared"
hidden=$(comm -23 "$work/declared" "$work/exported")
leaked=$(comm -13 "$work/declared" "$work/exported")
if [ -n "$hidden$leaked" ]; then
    echo "declared but not exported:" $hidden
    echo "exported but not declared:" $leaked
    exit 1
fi
