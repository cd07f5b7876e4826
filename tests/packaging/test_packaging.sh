#!/bin/sh
# Tests packages in the way that a user uses them: `make dist`, `make install` in the unpacked archive, then a build
# of examples/packaging/program with pkg-config, with CMake (find_package, FetchContent), with Meson (pkg-config, a
# subproject) and with Conan. Uses no network. Tools that are not installed are skipped and named.
work=${1:-build/packaging}
. tests/checks.sh
work=$(cd "$work" && pwd)
elsewhere="$work/some where"
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

no()
{
    ! "$@"
}

# threads FLAG COMMAND...: checks that the command prints the flag, if the library installed by make was built with
# OpenMP
threads()
{
    flag=$1
    shift
    "$@" > "$work/threads.txt" &&
        { ! grep -q fopenmp "$prefix/lib/pkgconfig/gradckpt.pc" || grep -e "$flag" "$work/threads.txt"; }
}

# says PROGRAM: checks that the program exists and trains to the golden bits
says()
{
    "$1" | tee "$work/said" && [ "$(cat "$work/said")" = "$golden" ]
}

check "the first line has the version of the macros" grep -q "^/\* gradckpt.h - v$version - " gradckpt.h
check "so has the wrap" [ "$(grep -c "= gradckpt-$version" $packaging/meson/gradckpt.wrap)" = 2 ]

# ---- make dist ----
archive=build/gradckpt-$version.tar.gz
unpacked="$work/gradckpt-$version"
check "make dist" make -s dist
check "make dist: unpacked" tar -xzf $archive -C "$work"
check "make dist: its header" cmp gradckpt.h "$unpacked/gradckpt.h"
check "make dist: quickstart" make -s -C "$unpacked" CFLAGS="$CFLAGS" build/quickstart
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

# ---- make lib, make install: compiled in the unpacked archive with the options above ----
made="make -s -C $unpacked CFLAGS='$CFLAGS'"
prefix="$work/prefix"
check "make install" eval "$made install PREFIX='$prefix'"
check "the header is there" cmp gradckpt.h "$prefix/include/gradckpt.h"
check "the backend for CUDA, too" cmp gradckpt_cuda.cu "$prefix/share/gradckpt/gradckpt_cuda.cu"
share="$prefix/share/gradckpt/examples"
headers_there()         # all of examples/, and no other; the index names each
{
    for header in examples/*.h; do
        cmp "$header" "$share/${header#examples/}" && grep -qF "[${header#examples/}](${header#examples/})" "$share/README.md" ||
            return 1
    done
    [ "$(ls examples/*.h | wc -l)" -eq "$(ls "$share"/*.h | wc -l)" ]
}
check "the headers of examples/ are there, with their index" headers_there
install_and_move()      # as what a distribution packs, and another unpacks elsewhere
{
    eval "$made install DESTDIR='$work/root' PREFIX=/opt/gradckpt LIBDIR=/opt/gradckpt/lib/some/machine" &&
        mkdir -p "$elsewhere" && mv "$work/root/opt/gradckpt" "$elsewhere/else" &&
        rmdir "$work/root/opt" "$work/root" && ln -s else/lib/some/machine "$elsewhere/link"
}
check "make install with DESTDIR and LIBDIR, moved" install_and_move
check "and nothing beside it" [ "$(cd "$elsewhere/else" && find . -type f | grep -v '/share/gradckpt/examples/' | wc -l)" -eq 7 ]
names_no_place()        # neither where it was built nor where it was put
{
    [ -s "$elsewhere/link/libgradckpt.a" ] && ! grep -rF "$work" "$elsewhere/else" &&
        ! grep -rF "$unpacked" "$prefix"
}
check "what is installed names no place but the prefix" names_no_place
check "make lib optimises, and suits shared libraries" sh -c 'make -nB lib | grep -e " -O2 .* -fPIC "'
if have nm; then
    nm "$prefix/lib/libgradckpt.a" | awk 'NF > 1 && $(NF - 1) ~ /^[A-TV-Z]$/ { print $NF }' > "$work/names.txt"
    check "the library has the public names" grep -x gckpt_step "$work/names.txt"
    check "and shows no other" no grep -v '^gckpt_' "$work/names.txt"
fi
export PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
if have pkg-config; then
    check "pkg-config has the version" [ "$(pkg-config --modversion gradckpt)" = "$version" ]
    flags="$(pkg-config --cflags --libs gradckpt)"
    check "pkg-config: compiled" ${CC:-cc} $packaging/program/main.c -o "$work/by-pkg-config" $flags
    check "pkg-config: run" says "$work/by-pkg-config"
    check "pkg-config: examples" [ "$share" = "$(pkg-config --variable=examples gradckpt)" ]
    mkdir "$work/alone"
    cp examples/digits.c "$work/alone"
    check "pkg-config: a program that includes them" ${CC:-cc} "$work/alone/digits.c" -iquote "$share" -o "$work/digits" $flags
    check "pkg-config: it trains" sh -c "$work/digits | grep 'in 149400 bytes'"
    check "pkg-config: into a shared library" \
        ${CC:-cc} -shared -fPIC $packaging/program/main.c -o "$work/shared.so" $flags
    if have ${CXX:-c++}; then
        cp $packaging/program/main.c "$work/main.cpp"
        check "pkg-config: compiled as C++" ${CXX:-c++} "$work/main.cpp" -o "$work/by-pkg-config-cxx" $flags
        check "pkg-config: run as C++" says "$work/by-pkg-config-cxx"
    fi
    check "pkg-config: LIBDIR" [ /opt/gradckpt/lib/some/machine = \
        "$(PKG_CONFIG_PATH="$elsewhere/link/pkgconfig" pkg-config --variable=libdir gradckpt)" ]
fi

# ---- CMake ----
# by_cmake NAME OPTION...: configures the program with these options, builds it and runs it
by_cmake()
{
    name=$1
    shift
    cmake -S $packaging/program -B "$work/$name" "$@" && cmake --build "$work/$name" && says "$work/$name/program"
}
# A user's project without a build type, with both targets, in C and in C++. SUB: the library is a part of the
# project's build.
mkdir "$work/project"
cp $packaging/program/main.c "$work/project/main.c"
cp $packaging/program/main.c "$work/project/main.cpp"
cat > "$work/project/CMakeLists.txt" << 'end'
cmake_minimum_required(VERSION 3.14)
project(project LANGUAGES ${LANGUAGES})
if(SUB)
    add_subdirectory("${SUB}/examples/packaging/cmake" sub)
else()
    find_package(gradckpt REQUIRED)
endif()
foreach(language ${LANGUAGES})
    string(REPLACE CXX cpp end ${language})
    string(TOLOWER main.${end} main)
    add_executable(linked-${language} ${main})
    target_link_libraries(linked-${language} PRIVATE gradckpt::gradckpt)
endforeach()
if(NOT EXISTS "${gradckpt_EXAMPLES_DIR}/train.h")
    if(NOT SUB)
        message(FATAL_ERROR "no examples in ${gradckpt_EXAMPLES_DIR}")
    endif()
endif()
if(C IN_LIST LANGUAGES)
    add_executable(own main.c)
    target_compile_definitions(own PRIVATE GRADCKPT_IMPLEMENTATION)
    target_link_libraries(own PRIVATE gradckpt::header)
endif()
end
# project NAME LANGUAGES OPTION...: configures the project with these languages and options
project()
{
    name=$1
    languages=$2
    shift 2
    rm -rf "$work/$name"
    cmake -S "$work/project" -B "$work/$name" -DLANGUAGES="$languages" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON "$@"
}
both_targets()          # both_targets NAME OPTION...
{
    name=$1
    shift
    project "$name" "C;CXX" "$@" && cmake --build "$work/$name" && says "$work/$name/linked-C" &&
        says "$work/$name/linked-CXX" && says "$work/$name/own"
}
of_cxx()                # without C the bodies are compiled as C++
{
    CXXFLAGS=$CFLAGS project cxx CXX "$@" && cmake --build "$work/cxx" && says "$work/cxx/linked-CXX"
}
# compiled PATTERN FILE NAME: checks that in build NAME the command that compiles FILE matches the pattern
compiled()
{
    grep '"command".*/'"$2"'\(pp\)*"' "$work/$3/compile_commands.json" | grep -e "$1"
}
# optimised FLAGS: checks that without a build type and with these flags the function bodies are optimised, and that
# nothing else is changed
optimised()
{
    CFLAGS=$1 project type C -DSUB="$PWD" && compiled ' -O2 ' gradckpt.c type && ! compiled ' -O' main.c type
}
# untouched FLAGS OPTION...: checks that nothing is added to these flags
untouched()
{
    flags=$1
    shift
    CFLAGS=$flags project type C -DSUB="$PWD" "$@" && compiled ' ' gradckpt.c type && ! compiled ' -O2' gradckpt.c type
}
released()              # the program, without a build type: all of it is optimised
{
    CFLAGS= cmake -S $packaging/program -B "$work/released" -DFETCH="$PWD/$archive" \
        -DCMAKE_EXPORT_COMPILE_COMMANDS=ON &&
        compiled ' -O3 ' gradckpt.c released && compiled ' -O3 ' main.c released
}
if have cmake make; then
    check "CMake: find_package" by_cmake find -DCMAKE_PREFIX_PATH="$prefix"
    check "CMake: find_package, moved, by a link" by_cmake moved -Dgradckpt_DIR="$elsewhere/link/cmake/gradckpt"
    check "CMake: find_package in the repository" by_cmake tree -Dgradckpt_DIR="$PWD/$packaging/cmake" \
        -DCMAKE_BUILD_TYPE=None
    check "CMake: a version range" by_cmake range -DCMAKE_PREFIX_PATH="$prefix" -DWANT=0.1...2
    for want in 0.1 0.2.99 0.3 1 0.3...1; do
        check "CMake: not as version $want" fails_with 1 'compatible with requested' \
            cmake -S $packaging/program -B "$work/refused" -DCMAKE_PREFIX_PATH="$prefix" -DWANT=$want
    done
    check "CMake: FetchContent" by_cmake fetch -DFETCH="$PWD/$archive" -DCMAKE_BUILD_TYPE=None
    check "CMake: both targets, installed" both_targets both -DCMAKE_PREFIX_PATH="$prefix"
    check "CMake: no build type becomes one" grep -x 'CMAKE_BUILD_TYPE:STRING=' "$work/both/CMakeCache.txt"
    check "CMake: both targets, in the build" both_targets sub -DSUB="$PWD"
    exact()             # in C and C++, by both targets, installed and in the build
    {
        cat "$work/both/compile_commands.json" "$work/sub/compile_commands.json" | grep '"command".*/main\.' > "$work/exact"
        [ "$(wc -l < "$work/exact")" -eq 6 ] && [ "$(grep -c -e ' -ffp-contract=off ' "$work/exact")" -eq 6 ]
    }
    check "CMake: a program's products and sums are not fused" exact
    check "CMake: suits shared libraries" compiled ' -fPIC ' gradckpt.c sub
    check "CMake: with threads as make has them" threads ' -fopenmp' compiled '.' gradckpt.c sub
    check "CMake: C++ alone, in the build" of_cxx -DSUB="$PWD"
    check "CMake: C++ alone, installed" of_cxx -DCMAKE_PREFIX_PATH="$prefix"
    check "CMake: no build type" optimised -g
    check "CMake: no build type, flags that optimise" untouched "-g -O1"
    for type in Release Debug; do
        check "CMake: $type" untouched "" -DCMAKE_BUILD_TYPE=$type
    done
    check "CMake: the program, no build type" released
fi

# ---- Meson ----
by_meson()
{
    meson setup --buildtype=debug "$2" "$1" && ninja -C "$2" && says "$2/program"
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
    check "Meson: its library is optimised" \
        grep '"command".* -O2 .*gradckpt\.c"' "$work/meson-sub/build/compile_commands.json"
    for build in "$work/meson" "$work/meson-sub/build"; do
        check "Meson: a program's products and sums are not fused" \
            grep '"command".* -ffp-contract=off .*main\.c"' "$build/compile_commands.json"
    done
    check "Meson: with threads as make has them" \
        threads ' -fopenmp' grep '"command".*gradckpt\.c"' "$work/meson-sub/build/compile_commands.json"
fi

# ---- Conan ----
if have conan cmake; then
    export CONAN_HOME="$work/conan"
    # Conan's detection does not know a compiler whose name is cc
    env -u CC conan profile detect > "$work/profile.txt" 2>&1
    conan create $packaging/conan -s:a build_type=Debug -c:a tools.cmake.cmake_layout:test_folder="$work/conan-test" \
        > "$work/conan.txt" 2>&1
    check "Conan: create and test" grep "^$golden" "$work/conan.txt"
    check "Conan: its name and version" grep "gradckpt/$version" "$work/conan.txt"
fi
report packaging
