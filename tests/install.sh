#!/usr/bin/env bash
# Installs, moves the installed tree, and builds and runs the example from there as users do: through pkg-config (shared
# and static) and through find_package.
# Usage: install.sh SOURCE_DIRECTORY BUILD_DIRECTORY
set -euo pipefail
source=$1 build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset DESTDIR

cmake --install "$build" --prefix "$work/first" >"$work/log" || { cat "$work/log"; exit 1; }
mv "$work/first" "$work/moved"
prefix=$work/moved
library=$(dirname "$(find "$prefix" -name libburst.so)")
for file in bin/burst include/burst.h share/man/man1/burst.1; do
    test -e "$prefix/$file" || { echo "not installed: $file"; exit 1; }
done
test -L "$library/libburst.so.0" || { echo "not installed: libburst.so.0"; exit 1; }
"$prefix/bin/burst" --help >/dev/null
# Nothing that is installed may point back to where it was built. (Debugging symbols may.)
if grep -rIlF -e "$build" -e "$work/first" "$prefix"; then
    echo "these files name the build directory"
    exit 1
fi

echo "== pkg-config, shared"
export PKG_CONFIG_PATH=$library/pkgconfig
cc -o "$work/shared" "$source/examples/one_rank.c" $(pkg-config --cflags --libs burst) -lm
LD_LIBRARY_PATH=$library "$work/shared"

echo "== pkg-config, static"
mkdir "$work/archive"
cp "$library/libburst.a" "$work/archive" # alone and searched first, so that -lburst means the archive
cc -o "$work/static" "$source/examples/one_rank.c" -L"$work/archive" $(pkg-config --static --cflags --libs burst)
"$work/static"

echo "== find_package"
mkdir "$work/project"
cat >"$work/project/CMakeLists.txt" <<PROJECT
cmake_minimum_required(VERSION 3.22)
project(user C)
find_package(burst 0.1 REQUIRED)
foreach(kind burst burst_static)
    add_executable(with_\${kind} $source/examples/one_rank.c)
    target_link_libraries(with_\${kind} PRIVATE burst::\${kind} m)
endforeach()
PROJECT
{
    cmake -S "$work/project" -B "$work/project/build" -DCMAKE_PREFIX_PATH="$prefix"
    cmake --build "$work/project/build"
} >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/project/build/with_burst"
"$work/project/build/with_burst_static"

if [ -e "$prefix/include/burst_mpi.h" ] && command -v mpicc.openmpi >/dev/null; then
    echo "== libburst_mpi"
    mpicc.openmpi -o "$work/mpi" "$source/examples/mpi.c" $(pkg-config --cflags --libs burst) -lburst_mpi -lm
    LD_LIBRARY_PATH=$library mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 "$work/mpi"
fi
