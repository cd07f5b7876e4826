#!/bin/sh
# Packages, each as a user takes it: `make install` and `make dist`, then examples/packaging/program
# by pkg-config, CMake (find_package, FetchContent), Meson (pkg-config, a subproject) and Conan.
# Nothing comes from a network. What is not installed is skipped and named.
work=${1:-build/packaging}
. tests/checks.sh
work=$(cd "$work" && pwd)
export CFLAGS="-O0 -DGCKPT_NO_FAST"
packaging=examples/packaging
version=$(awk '/define GCKPT_VERSION_/ { v = v s $3; s = "." } END { print v }' gradckpt.h)
golden="gradckpt $version: loss 0.081336, weights 9101343a2e720f1f"

have()
{
    for tool in "$@"; do
        command -v "$tool" > /dev/null 2>&1 || {
            echo "skip: no $tool"
            return 1
        }
    done
}

# says PROGRAM: it is there and trains to the golden bits
says()
{
    "$1" | tee "$work/said" && [ "$(cat "$work/said")" = "$golden" ]
}

install_and_move()      # as what a distribution packs, and another unpacks elsewhere
{
    make -s install DESTDIR="$work/root" PREFIX=/opt/gradckpt && mkdir -p "$work/some where" &&
        mv "$work/root/opt/gradckpt" "$work/some where/else" && rmdir "$work/root/opt" "$work/root"
}

check "the first line has the version of the macros" grep -q "^/\* gradckpt.h - v$version - " gradckpt.h
check "so has the wrap" [ "$(grep -c "= gradckpt-$version" $packaging/meson/gradckpt.wrap)" = 2 ]

# ---- make install ----
prefix="$work/prefix"
check "make install" make -s install PREFIX="$prefix"
check "the header is there" cmp gradckpt.h "$prefix/include/gradckpt.h"
check "the backend for CUDA, too" cmp gradckpt_cuda.cu "$prefix/share/gradckpt/gradckpt_cuda.cu"
check "make install with DESTDIR, moved" install_and_move
check "and nothing beside it" [ "$(cd "$work/some where/else" && find . -type f | wc -l)" -eq 5 ]
export PKG_CONFIG_PATH="$prefix/share/pkgconfig"
if have pkg-config; then
    check "pkg-config has the version" [ "$(pkg-config --modversion gradckpt)" = "$version" ]
    check "pkg-config: compiled" ${CC:-cc} $CFLAGS $packaging/program/main.c -o "$work/by-pkg-config" \
        $(pkg-config --cflags --libs gradckpt)
    check "pkg-config: run" says "$work/by-pkg-config"
fi

# ---- make dist ----
archive=build/gradckpt-$version.tar.gz
unpacked="$work/gradckpt-$version"
check "make dist" make -s dist
check "make dist: unpacked" tar -xzf $archive -C "$work"
check "make dist: its header" cmp gradckpt.h "$unpacked/gradckpt.h"
check "make dist: quickstart" make -s -C "$unpacked" CFLAGS="$CFLAGS" OPENMP= build/quickstart
again()                 # in what the archive unpacks to, outside any repository
{
    make -s -C "$unpacked" dist && cp "$unpacked/$archive" "$work/again" && touch "$unpacked/build/new" &&
        make -s -C "$unpacked" dist && cmp "$unpacked/$archive" "$work/again" &&
        tar -tzf $archive | grep -v '/$' | sort > "$work/files" &&
        tar -tzf "$work/again" | grep -v '/$' | sort | cmp - "$work/files"
}
check "make dist: from the archive, twice" again
touched()               # in a repository: a file with another time, then with another line, which is archived
{
    git="git -c user.name=test -c user.email=test -C $unpacked"
    $git init -q && $git add . && $git commit -q -m test && touch "$unpacked/README.md" &&
        make -s -C "$unpacked" dist && tar -xzOf "$unpacked/$archive" "gradckpt-$version/README.md" | cmp - README.md &&
        echo "one more" >> "$unpacked/README.md" && make -s -C "$unpacked" dist &&
        tar -xzOf "$unpacked/$archive" "gradckpt-$version/README.md" | cmp - "$unpacked/README.md"
}
! have git || check "make dist: after touch" touched

# ---- CMake ----
# by_cmake NAME OPTION...: the program, configured so, built and run
by_cmake()
{
    name=$1
    shift
    cmake -S $packaging/program -B "$work/$name" -DCMAKE_BUILD_TYPE= "$@" && cmake --build "$work/$name" &&
        says "$work/$name/program"
}
if have cmake make; then
    check "CMake: find_package" by_cmake find -DCMAKE_PREFIX_PATH="$prefix"
    check "CMake: find_package, moved" by_cmake moved -DCMAKE_PREFIX_PATH="$work/some where/else"
    check "CMake: find_package in the repository" by_cmake tree -Dgradckpt_DIR="$PWD/$packaging/cmake"
    check "CMake: a version range" by_cmake range -DCMAKE_PREFIX_PATH="$prefix" -DWANT=0.1...2
    for want in 0.1 0.2.99 0.3 1 0.3...1; do
        check "CMake: not as version $want" fails_with 1 'compatible with requested' \
            cmake -S $packaging/program -B "$work/refused" -DCMAKE_PREFIX_PATH="$prefix" -DWANT=$want
    done
    check "CMake: FetchContent" by_cmake fetch -DFETCH="$PWD/$archive"
    # warns CFLAGS OPTION...: configured so, is it said that nothing is optimised? 0: yes, 1: no
    warns()
    {
        flags=$1
        shift
        rm -rf "$work/type"
        CFLAGS=$flags cmake -S $packaging/program -B "$work/type" "$@" > "$work/type.txt" 2>&1 || return 2
        tr -s '\n ' ' ' < "$work/type.txt" | grep 'without optimisation.*-DCMAKE_BUILD_TYPE=Release'
    }
    warns_not()
    {
        warns "$@"
        [ $? -eq 1 ]
    }
    check "CMake: no build type" warns "" -DCMAKE_PREFIX_PATH="$prefix"
    check "CMake: no build type, fetched" warns -g -DFETCH="$PWD/$archive"
    check "CMake: no build type, flags that optimise" warns_not "-g -O2" -DCMAKE_PREFIX_PATH="$prefix"
    for type in Release Debug; do
        check "CMake: $type" warns_not "" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=$type
    done
fi

# ---- Meson ----
by_meson()
{
    meson setup "$2" "$1" && ninja -C "$2" && says "$2/program"
}
if have meson ninja; then
    check "Meson: pkg-config" by_meson $packaging/program "$work/meson"
    check "Meson: not as a subproject" [ ! -e "$work/meson/subprojects" ]
    mkdir -p "$work/meson-sub/subprojects/packagefiles/gradckpt"
    cp $packaging/program/main.c $packaging/program/meson.build "$work/meson-sub"
    cp $packaging/meson/gradckpt.wrap "$work/meson-sub/subprojects"
    cp $packaging/meson/meson.build "$work/meson-sub/subprojects/packagefiles/gradckpt"
    cp $archive "$work/meson-sub/subprojects/packagefiles"
    (unset PKG_CONFIG_PATH; by_meson "$work/meson-sub" "$work/meson-sub/build") > "$work/meson.txt" 2>&1
    check "Meson: the wrap" grep "^$golden" "$work/meson.txt"
fi

# ---- Conan ----
if have conan cmake; then
    export CONAN_HOME="$work/conan"
    # detection does not know a compiler that is called cc
    env -u CC conan profile detect > "$work/profile.txt" 2>&1
    conan create $packaging/conan -c:a tools.cmake.cmake_layout:test_folder="$work/conan-test" \
        > "$work/conan.txt" 2>&1
    check "Conan: create and test" grep "^$golden" "$work/conan.txt"
    check "Conan: its name and version" grep "gradckpt/$version" "$work/conan.txt"
fi
report packaging
