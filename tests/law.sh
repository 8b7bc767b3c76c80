#!/usr/bin/env bash
# The dependency law, by who includes what: api -> gao -> plan -> lao -> base and plan -> transport -> base; a folder
# shows the others one header, <folder>.h; the command and the systems of bench/ are one program; <mpi.h> stays in the MPI transport, intrinsics in kernel files, file names
# are unique, so that an include names one file.
# Usage: law.sh SOURCE_DIRECTORY
set -euo pipefail
cd "$1"
broken=0
complain() {
    echo "$*"
    broken=1
}

declare -A may=(
    [base]="base"
    [lao]="lao base"
    [transport]="transport base"
    [plan]="plan lao transport base"
    [gao]="gao plan lao transport base"
    [api]="api gao plan lao transport base"
    [cli]="cli bench"
    [examples]="examples"
    [bench]="bench cli"
    [tests]="tests cli bench api gao plan lao transport base"
)
declare -A door=([bench]=rival.h) # else <folder>.h

folder_of() { # of a path
    case $1 in
    src/*/*) echo "$1" | cut -d/ -f2 ;;
    src/*) echo api ;;
    *) echo "${1%%/*}" ;;
    esac
}

mapfile -t files < <(find include src cli examples bench tests -name '*.[ch]' | sort)
declare -A place
for file in "${files[@]}"; do
    name=${file##*/}
    if [ -n "${place[$name]:-}" ]; then
        complain "$file: the name is taken by ${place[$name]}"
    fi
    place[$name]=$file
done
for twin in $(find bench tests tools -name '*.py' -o -name '*.sh' | sed 's|.*/||' | sort | uniq -d); do
    complain "$twin: two files have this name"
done

check_system() { # file, header
    case $2 in
    mpi.h)
        case $1 in
        src/transport/*mpi*.c | include/burst_mpi.h) ;;
        *) complain "$1: <mpi.h> outside of the MPI transport" ;;
        esac
        ;;
    *intrin.h | arm_neon.h | arm_sve.h)
        case $1 in
        src/lao/simd_*.h | src/lao/kernel_*.c) ;;
        *) complain "$1: <$2> outside of kernel files" ;;
        esac
        ;;
    esac
}

check_own() { # file, path of the included file
    local from to
    from=$(folder_of "$1")
    to=$(folder_of "$2")
    if [ "$to" = include ]; then
        return
    fi
    case " ${may[$from]:-} " in
    *" $to "*) ;;
    *) complain "$1: $from may not include $to (${2##*/})" ;;
    esac
    # Tests may look inside, and the systems in bench/ are parts of the command; everybody else goes through the one header.
    if [ "$from" != "$to" ] && [ "$from" != tests ] && [ "$from" != bench ] && [ "${2##*/}" != "${door[$to]:-$to.h}" ]; then
        complain "$1: ${2##*/} is private to $to; others include ${door[$to]:-$to.h}"
    fi
}

count=0
for file in "${files[@]}"; do
    while read -r open header; do
        count=$((count + 1))
        own=${place[${header##*/}]:-}
        if [ -n "$own" ] && [ "$own" != tests/shim/cmocka.h ]; then
            check_own "$file" "$own"
        elif [ "$open" = '"' ]; then
            complain "$file: \"$header\" is not in the tree"
        else
            check_system "$file" "$header"
        fi
    done < <(sed -nE 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*(["<])([^">]+)[">].*/\1 \2/p' "$file")
done
echo "${#files[@]} files, $count includes"
if [ "${#files[@]}" -eq 0 ] || [ "$count" -eq 0 ]; then
    complain "nothing was checked"
fi
exit $broken
