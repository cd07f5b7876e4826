#!/bin/sh
# The wide test: builds and tests the same header with many compilers, options, languages, sanitizers and macros. Each
# check prints one line, "pass NAME" or "FAIL NAME". A check whose tools are not installed is skipped with a message.
#
#     sh tests/check_all.sh              one of each kind: compiler, language, sanitizer, other machine, other system
#     sh tests/check_all.sh all          and the rest of each kind: make check-all, before a release
#     sh tests/check_all.sh NAME...      some; `sh tests/check_all.sh list` names all
#
# The last table compares the time of each check with its budget in tests/budgets (tests/times.sh). A check above 1.3
# times its budget fails. Most checks compute the golden hash (tests/integration/test_hash.c), so a pass also means equal bits.
#
# make check omits checks whose result a commit cannot have changed. A check that reads only some folders is skipped
# when these folders are as they were at the commit that tests/last_full names, the last one at which make check-all passed
# (skip_unless_changed).
# Random tests begin at a seed that depends on the commit, and one board of several is drawn by it (one_of), so different
# commits test different cases. make check-all tests everything.
W="-Wall -Wextra -pedantic -Wconversion -Wsign-conversion -Wshadow -Wdouble-promotion -Wcast-qual
   -Wcast-align -Wundef -Wunused-function -Werror -I."
B=build/check
JOBS=${JOBS:-2}
mkdir -p $B

have()
{
    command -v "$1" > /dev/null 2>&1
}

# Ends a check that cannot run on this machine.
skip()
{
    echo "skip: $*"
    exit 77
}

need()
{
    for tool in "$@"; do
        have "$tool" || skip "no $tool"
    done
}

# can COMPILER OPTIONS..: whether the compiler with these options builds an empty program that runs (by $run, if set)
run=
can()
{
    echo 'int main(void) { return 0; }' > $B/can.$$.c
    "$@" $B/can.$$.c -o $B/can.$$.exe > /dev/null 2>&1 && $run $B/can.$$.exe > /dev/null 2>&1
    result=$?
    rm -f $B/can.$$.exe $B/can.$$.c
    return $result
}

layers=$(awk 'sub("/$", "", $1) { printf "%s%s", bar, $1; bar = "|" }' src/MANIFEST)
looks_inside()          # does one of these tests include layer headers of src/?
{
    grep -qE "^#include \"(($layers)/|backend.h)" "$@"
}

# The number from which random tests and one_of derive their choices. To repeat a run of another commit, set SEED.
hash=$(git rev-parse -q --verify HEAD 2> /dev/null | cut -c 1-5)
SEED=${SEED:-$(printf '%d' "0x${hash:-1}")} # as in the Makefile
export SEED

# one_of WORD...: prints one of the words, chosen by the commit; all of them in make check-all
one_of()
{
    [ -z "$CHECK_ALL" ] || { echo "$*"; return; }
    shift $((SEED % $#))
    echo "$1"
}

# all_or_third N: prints N in make check-all, and a third of N in other runs
all_or_third()
{
    [ -z "$CHECK_ALL" ] && echo $((($1 + 2) / 3)) || echo "$1"
}

# skip_unless_changed PATH...: skips the check when none of these paths differs from the commit in tests/last_full.
# The check runs if there is no git or no such commit, if the commit is more than 60 commits old, and if it is named on
# the command line.
skip_unless_changed()
{
    full=$(cat tests/last_full 2> /dev/null)
    [ -z "$CHECK_ALL$CHECK_NAMED" ] && [ -n "$full" ] && behind=$(git rev-list --count "$full..HEAD" 2> /dev/null) &&
        [ "$behind" -le 60 ] && git diff --quiet "$full" -- "$@" 2> /dev/null || return 0
    skip "unchanged since make check-all passed at $full: $*"
}

one_make()              # one_make ARGUMENT...: make, while no other check makes things in build/
{
    if have flock; then
        MAKEFLAGS= flock $B/make.lock make "$@"
    else
        MAKEFLAGS= make "$@"
    fi
}

test_of()               # test_of NAME...: the files of these tests
{
    for name; do
        echo "tests/"*"/test_$name.c"
    done
}

# object NAME COMPILER OPTIONS...: makes $B/NAME.o, the implementation compiled with these options, when the first
# check needs the object
object()
{
    object=$B/$1.o
    shift
    (
        ! have flock || flock 9
        [ "$object" -nt gradckpt.h ] ||
            { "$@" -I. -c tests/compile/implementation.c -o "$object.$$" && mv "$object.$$" "$object"; }
    ) 9> "$object.lock"
}

# The header as users compile it, with warnings as errors; the optimiser finds warnings that -fsyntax-only does not
# find. GCKPTI_FULL_BUILD makes a static function that nothing calls a warning.
plain="${CC:-cc} -std=gnu99 -O2"
plain_object()
{
    object "plain-$(echo "${CC:-cc}" | tr -c 'A-Za-z0-9\n' _)" $plain $W -DGCKPTI_FULL_BUILD
}

# linked OUTPUT SOURCE OPTIONS...: builds a program of public names, linked with the object that checks share

linked()
{
    program=$B/$1
    shift
    plain_object && $plain -DGRADCKPT_IMPLEMENTED -I. -Isrc -Itests -Iexamples "$@" "$object" -lm -lpthread -o "$program"
}

openmp()                # openmp OUTPUT source options...: the same with OpenMP
{
    program=$B/$1
    shift
    object openmp $plain -fopenmp &&
        $plain -fopenmp -DGRADCKPT_IMPLEMENTED -I. -Iexamples "$@" "$object" -lm -lpthread -o "$program"
}

# debug_object OPTIONS..: makes an object of the implementation without optimisation, with warnings as errors, which the
# check `debug` links. The variable asan has the options of the checks with sanitizers.
asan="-std=gnu99 -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
debug_object()
{
    object debug-gcc gcc -std=gnu99 -O0 -fno-pic $W "$@"
}

# libsrc NAME COMPILER OPTIONS...: makes $B/libsrc-NAME/libsrc.a, the files of src/ compiled with these options, when
# the first check needs the library. If level=-O1 is set, only files that compute are compiled with -O2.
level=-O2
libsrc()
{
    at=$B/libsrc-$1
    libsrc=$at/libsrc.a
    compiler=$2
    shift 2
    mkdir -p "$at"
    (
        ! have flock || flock 9
        depends=
        [ "$compiler" != tcc ] || depends=DEPENDS= # which it cannot tell
        MAKEFLAGS= make -s -j"$JOBS" OBJ_DIR="$at" CC="$compiler" CFLAGS="$*" $depends OPT_LEVEL=$level WARNINGS=-w OPENMP= "$libsrc"
    ) 9> "$at.lock" || return 1
    case $* in *--target=wasm*) libsrc=$(echo "$at"/src/*/*.o) ;; esac # ar makes no index of these
}

# hash OUTPUT COMPILER OPTIONS...: computes the golden hash with the header compiled with these options
hash()
{
    out=$B/$1
    shift
    "$@" -DGRADCKPT_IMPLEMENTATION -I. -Itests tests/integration/test_hash.c -o "$out" && $run "$out"
}

tests=$(ls tests/*/test_*.c | grep -v '^tests/cuda/')
# tests_with OUTPUT COMPILER OPTIONS...: builds all tests, or those in $tests, with these options and runs them by
# $run. If one of the tests uses private functions, all are linked with a libsrc.a (named OUTPUT or $shared; $lib is
# its path); if none does, with the header's object. $some has arguments for tests that can run a part of their cases,
# as in "kernels:10 offload:1,100".
some=kernels:10
shared=
tests_with()
{
    out=$B/$1
    lib=${shared:-$1}
    shift
    if [ -n "$shared" ] || looks_inside $tests; then
        libsrc "$lib" "$@" && lib=$libsrc
    else
        object "$lib" "$@" && lib=$object
    fi || return 1
    plan_check=$B/$(basename "$lib")-plan_check.o
    case $lib in */libsrc.a) plan_check=${lib%.a}-plan_check.o ;; esac
    (
        ! have flock || flock 9
        [ "$plan_check" -nt gradckpt.h ] ||
            { "$@" -O0 -I. -Isrc -DGRADCKPT_IMPLEMENTED -DPLAN_CHECK_LINKED -c tests/compile/plan_check.c -o "$plan_check.$$" &&
                mv "$plan_check.$$" "$plan_check"; }
    ) 9> "$plan_check.lock" || return 1
    for test in $tests; do
        name=$(basename "$test" .c)
        with="-DPLAN_CHECK_LINKED $plan_check $lib -lm -lpthread -o $out-$name.exe"
        [ "$name" != test_ops ] || with="tests/ops/ref.c $with"
        part=$(echo "$some" | tr ' ' '\n' | sed -n "s/^${name#test_}://p" | tr ',' ' ')
        echo "== $name $part"
        case ${name#test_} in   # most tests compute little themselves
        accuracy | amx | bf16 | convolutions | kernels | numerics | ops | random | ranks* | recurrent | search | user_ops)
            level_of_test= ;;
        *) level_of_test=-O0 ;;
        esac
        if looks_inside "$test"; then
            "$@" $level_of_test -I. -Isrc -Itests "$test" $with
        else
            "$@" $level_of_test -I. -Itests "$test" -DGRADCKPT_IMPLEMENTED $with
        fi && $run "$out-$name.exe" $part || return 1
    done
}

# Modules of src/ whose tests have a folder of their own, each with the parts that its tests need besides, after commas.
# Many tests feed rows one by one, fetch results and check plans: parts stream, constants, inspect and fetch are in these
# builds.
modules="bf16,attention,tools quant,attention,cache,tools,export,recurrent,images images attention,bf16,export
  recurrent,attention dist,quant,notes,tools,export cache,attention,recurrent,images,tools
  devices,quant,images,attention,cache,tools,export,recurrent export,attention,recurrent,images,tools
  offload,attention,devices,tools,export tiles,images,tools
  tools,devices,export,dist"
core=$(sed -n 's/^edition core  *//p' src/EDITIONS)

# without_parts PART...: prints the options that leave out these parts of src/EDITIONS
without_parts()
{
    for part; do
        sed -n "s/^part $part  *\(.*\) : .*/\1/p" src/EDITIONS
    done | tr ' ' '\n' | sed -n 's/^GCKPT_/-DGCKPT_/p'
}

# module_alone MODULE,PART...: the tests of a module with the smallest edition that has it: the stripped header, or for
# tests of private functions the files of src/ with its switches
module_alone()
{
    module=${1%%,*}
    wanted="$(echo "$1" | tr ',' ' ') stream constants inspect user_ops schedules axes activations linear_loss"
    mkdir -p "$B/with-$module"
    rm -f "$B/with-$module.o"
    sh src/header.sh src core "$wanted" > "$B/with-$module/gradckpt.h" || return 1
    lacks=$(for part in $(sed -n 's/^part \([a-z0-9_]*\) .*/\1/p' src/EDITIONS); do
        case " $core $wanted " in *" $part "*) ;; *) echo "$part" ;; esac
    done)
    inside=
    tests=
    for test in tests/"$module"/test_*.c; do
        if looks_inside "$test"; then inside="$inside $test"; else tests="$tests $test"; fi
    done
    [ -z "$tests" ] || tests_with "with-$module" "${CC:-cc}" -std=gnu99 -O1 -w -I"$B/with-$module" || return 1
    tests=$inside
    [ -z "$tests" ] || tests_with "src-with-$module" "${CC:-cc}" -std=gnu99 -O1 -w $(without_parts $lacks)
}

# module_absent MODULE,PART...: the tests of all other modules that do not need it, with the whole header without it
module_absent()
{
    module=${1%%,*}
    tests=
    for other in $modules; do
        case ",$other," in
        *",$module,"*) ;;
        *) tests="$tests $(ls tests/"${other%%,*}"/test_*.c)" ;;
        esac
    done
    tests_with "without-$module" "${CC:-cc}" -std=gnu99 -O1 -w $(without_parts "$module")
}

# exchange NAME COMPILER OPTIONS...: tests that programs compiled with these options (run by $run, with $lib of
# tests_with) and programs of the default compiler can read each other's files
exchange()
{
    at=$B/$1-file
    here=$B/$1-exchange
    there="$run $B/$1-exchange.exe"
    linked "$1-exchange" tests/exchange.c || return 1
    shift
    "$@" -I. -DGRADCKPT_IMPLEMENTED tests/exchange.c $lib -lm -o "${there##* }" &&
        "$here" 5 - "$at-want" && "$here" 2 - "$at-2" && $there 2 - "$at-2-there" && cmp "$at-2" "$at-2-there" &&
        $there 2 "$at-2" "$at-4" && "$here" 1 "$at-4" "$at-5" && cmp "$at-want" "$at-5"
}

symbols_of()            # symbols_of NAME options...: prints the symbols of the implementation compiled with these options
{
    name=symbols-$1
    shift
    object "$name" gcc -std=c99 -O0 -fno-pic $W "$@" && nm "$B/$name.o"
}

cuda_tests()            # cuda_tests PREFIX: programs that test gradckpt_cuda.cu
{
    for test in tests/cuda/test_cuda.c tests/cuda/cuda_*.c; do
        echo "$1$(basename "$test" .c)"
    done
    [ -z "$1" ] || echo "$1nccl_ranks" "$1test_cuda_shim"
}

# The paths that the checks of devices read, and those that the CUDA checks read; see skip_unless_changed.
device="src/api.h src/export src/run src/ops src/store src/base src/num examples/mcu examples/packaging tests/firmware tests/packaging"
cuda="gradckpt_cuda.cu src/api.h src/ops src/run tests/cuda"
run_check()
{
    case $1 in
    # ---- the builds that all users make, and that most checks link; their times are compared with tests/budgets ----
    header)
        plain_object ;;
    # ---- warnings as errors, in both languages, with both compilers; gcc with all macros, the others with
    # GCKPT_SMALL only ----
    warnings-*)
        c=${1#warnings-}
        compiler=${c%%-*}
        need "$compiler"
        case $compiler in
        gcc | clang) lang="-std=c99 -Wstrict-prototypes" ;;
        *) lang="-std=c++11 -x c++" ;;
        esac
        case $c in
        *-c17) lang="-std=c17 -Wstrict-prototypes" ;;
        *-cxx17) lang="-std=c++17 -x c++" ;;
        esac
        for macros in "" -DGCKPT_NO_STDIO "-DGCKPT_NO_FAST -DGCKPT_NO_STDIO -DGCKPT_NO_HEAP" -DGCKPT_SMALL \
            -DGCKPT_NO_FAST -DGCKPT_NO_HEAP -DGCKPT_STATIC -DGCKPT_FORCE_SOFT_FMA -DGCKPT_NO_TEXT -fopenmp -mfma \
            -DNDEBUG; do
            echo "== $macros"
            can "$compiler" $macros || continue
            case $1$macros in
            warnings-gcc* | *-DGCKPT_SMALL) ;;
            *-D* | *-f* | *-m*) continue ;;
            esac
            "$compiler" $lang $W $macros -fsyntax-only tests/compile/implementation.c || return 1
        done
        newest=                 # of C++ also version 20, and the newest that this compiler knows
        for std in c++26 c++2c c++23 c++2b; do
            case $c in
            g++ | clang++) [ -n "$newest" ] || ! can "$compiler" -std=$std -x c++ || newest=$std ;;
            esac
        done
        for std in ${newest:+c++20 $newest}; do
            echo "== $std"
            "$compiler" -std=$std -x c++ $W -fsyntax-only tests/compile/implementation.c || return 1
        done ;;
    # ---- the golden hash across compilers and options ----
    hash-*)
        set -- "$1" $(echo "${1#hash-}" | tr ',' ' ')
        name=$1
        compiler=$2
        shift 2
        need "$compiler"
        can "$compiler" "$@" || skip "$compiler $* does not build here"
        case $compiler in
        *++) hash "$name" "$compiler" "$@" -x c++ ;;
        *) hash "$name" "$compiler" -std=gnu99 "$@" ;;
        esac ;;
    debug)                  # -O0: the golden hash of each instruction set, the bytes of code, the time to compile
        for c in "gcc -std=gnu99" $(one_of "clang++:-std=c++11:-x:c++:-mfma" "g++:-std=c++11:-x:c++" "gcc:-std=gnu99:-mfma" "clang:-std=gnu99"); do
            c=$(echo "$c" | tr ':' ' ')
            echo "== $c"
            can $c || { echo "skip: no $c"; continue; }
            if [ "$c" = "gcc -std=gnu99" ]; then
                debug_object
            else
                object "debug-$(echo "$c" | tr -d ' ')" $c -O0
            fi || return 1
            text=$(size "$object" | awk 'NR == 2 { print $1 }')
            echo "$text bytes"
            [ "$text" -le 1500000 ] || { echo "more than 1,500,000"; return 1; }
            $plain -O0 -no-pie -I. -Isrc -Itests -DGRADCKPT_IMPLEMENTED tests/integration/test_hash.c "$object" -lm -o $B/debug && $B/debug ||
                return 1
            [ "$(uname -m)" = x86_64 ] || continue
            have=               # every instruction set of the processor: one with wrong bits would be missing
            ! grep -qsw avx2 /proc/cpuinfo || have="$have avx2"
            ! grep -qsw avx512bw /proc/cpuinfo || have="$have avx512"
            ! grep -qsw amx_bf16 /proc/cpuinfo || have="$have amx"
            case $c in *-mfma*) have=" c$have" ;; esac
            $plain -O0 -no-pie -I. -DGRADCKPT_IMPLEMENTED tests/compile/sets.c "$object" -lm -o $B/debug &&
                [ "$($B/debug)" = " plain$have" ] || { echo "not all of plain$have"; return 1; }
        done
        sh tests/times.sh compiled debug-compile -O0 -std=gnu99 ;;
    # ---- every fast kernel is compared with its definition; plain C kernels exist if the compiler has an fma ----
    kernels-*)
        set -- "$1" $(echo "${1#kernels-}" | tr ',' ' ')
        name=$1
        compiler=$2
        shift 2
        need "$compiler"
        can "$compiler" "$@" || skip "$compiler $* does not build here"
        level=-O1
        libsrc "$name-libsrc" "$compiler" -std=gnu99 "$@" &&
            "$compiler" -std=gnu99 "$@" -I. -Isrc -Itests tests/cpu/test_kernels.c "$libsrc" -lm -lpthread -o "$B/$name" ||
            return 1
        case " $* " in
        *" -O0 "*) "$B/$name" 10 ;;
        *) "$B/$name" 100 ;;
        esac ;;
    avx512)                 # the kernels of AVX-512, its bf16 and AMX where the processor has AVX2, by cpu/avx512.h
        grep -qsw avx2 /proc/cpuinfo || skip "no AVX2"
        ! grep -qsw amx_bf16 /proc/cpuinfo || ! grep -qsw avx512_bf16 /proc/cpuinfo || [ -n "$CHECK_ALL" ] ||
            skip "this processor has them: make test runs the real instructions"
        can gcc -Werror -include tests/cpu/avx512.h || skip "no gcc for it"
        emulated="gcc -std=gnu99 -O1 -w -Wno-psabi -include tests/cpu/avx512.h -I. -Isrc -Itests"
        libsrc wide $plain &&
            $emulated -DGCKPTI_ISA=3 -c src/kernels/all.c -o $B/$1-kernels.o &&
            $emulated -c src/cpu/kernels.c -o $B/$1-choice.o || return 1
        objdump -d $B/$1-kernels.o | grep -q ymm && ! objdump -d $B/$1-kernels.o | grep -q zmm || return 1
        for test in "cpu/test_kernels.c 10" "bf16/test_bf16.c quick" "bf16/test_amx.c quick" integration/test_hash.c \
            quant/test_pack.c ops/test_special.c ops/test_user_ops.c num/test_numerics.c; do
            echo "== $test"
            what=
            case $test in *amx*) ;; *) what="$B/$1-kernels.o $B/$1-choice.o" ;; esac # amx has its own
            $emulated -DGRADCKPT_IMPLEMENTED "tests/${test% *}" $what "$libsrc" -lm -lpthread -o $B/$1 &&
                $B/$1 $(echo "$test " | cut -d ' ' -f 2) > $B/$1.txt || { cat $B/$1.txt; return 1; }
            cat $B/$1.txt
            case $test in
            *kernels.c*) grep -q 'avx512 kernels: ' $B/$1.txt ;;
            *) ! grep '^skipped: AMX' $B/$1.txt ;;
            esac || return 1
        done ;;
    # ---- plans against exhaustive search, rotor and a replay: thousands of graphs ----
    plans-wide)
        tests=$(test_of plan search)
        shared=wide
        some="plan:1,15 search:$SEED,$(all_or_third 200)"
        tests_with "$1" $plain && $B/$1-test_plan.exe $SEED "$(all_or_third 135)" && $B/$1-test_plan.exe shapes $((SEED % 7)) 7 "$(all_or_third 300)" ;;
    tests-wide | faults-wide)   # every third random test of make test, drawn by the commit, with three times the tries
        tests=                  # (check_iterations). make check-all runs every such test.
        some="offload:$SEED,$(all_or_third 100) stage:$SEED,$(all_or_third 12) threads:$(all_or_third 20000)
              ranks_random:$SEED,$(all_or_third 60)"
        some="$some $(one_of core:wide order:wide fit:wide user_ops:1 ranks:wide)${CHECK_ALL:+ bf16:wide}"
        [ "$1" = tests-wide ] || some=ranks_faults:wide
        for test in $some; do
            tests="$tests $(test_of "${test%%:*}")"
        done
        turn=$SEED
        for test in $([ "$1" = faults-wide ] || grep -lE 'check_(iterations|sampled)' tests/*/test_*.c); do
            turn=$((turn + 1))
            [ "$CHECK_ALL" ] || [ $((turn % 3)) -eq 0 ] || continue
            case " $tests $(test_of plan) " in *" $test "*) ;; *) tests="$tests $test" ;; esac
        done
        export ITERATIONS=$([ "$CHECK_ALL" ] && echo all || echo third)
        shared=wide
        tests_with "$1" $plain ;;
    # ---- other processors, emulated: the golden hash, numerics, files, failing allocations; files exchanged with
    # this machine ----
    cross-* | wide-cross-*)     # the golden hash, files, a plan as C; wide-cross-*: more tests, and NEON's
        machine=${1#*cross-}    # kernels
        emulator=qemu-${machine%%-*}
        options=
        case $machine in i686*) # runs here as it is
            emulator=env
            options="-msse2 -mfpmath=sse" ;;
        esac
        need "$machine-gcc" "$emulator"
        set -- "$1" "$machine-gcc" -static -std=gnu99 $options
        run=$emulator
        level=-O1
        case $1 in
        wide-*)
            tests=$(test_of hash save table numerics alloc golden bf16 kernels)
            some="bf16:quick kernels:1" ;;
        *)
            tests=$(test_of hash ledger)
            some=hash:quick ;;
        esac
        tests_with "$@" -O1 || return 1
        linked "$1-plans" tests/integration/test_hash.c && "$B/$1-plans" plans > "$B/$1-plans.txt" &&
            "$emulator" "$B/$1-test_hash.exe" plans | cmp - "$B/$1-plans.txt" || return 1
        # a plan made on this machine runs there, as a constant and as a file; both machines must write the same bytes
        # for the plan
        firmware="-ffp-contract=off -I. -I$B tests/firmware"
        linked "$1-here" $firmware/host.c && "$B/$1-here" run > "$B/$1-want" &&
            "$B/$1-here" c small > "$B/$1-small.h" && "$B/$1-here" file > "$B/$1-plan" &&
            "$machine-gcc" -static -Os -std=gnu99 $options -DGRADCKPT_IMPLEMENTED $firmware/host.c "$lib" \
                -lm -o "$B/$1-there" &&
            "$machine-gcc" -static -Os -std=gnu99 $options -DTABLE="\"$1-small.h\"" $firmware/device.c \
                -o "$B/$1-device" && "$emulator" "$B/$1-device" | cmp - "$B/$1-want" &&
            "$emulator" "$B/$1-there" read < "$B/$1-plan" | cmp - "$B/$1-want" &&
            "$emulator" "$B/$1-there" file | cmp - "$B/$1-plan" &&
            "$emulator" "$B/$1-there" c small | cmp - "$B/$1-small.h" || return 1
        exchange "$@" -O1 || return 1
        case $1 in *cross-s390x*)       # by -std=c99 floats are doubles there: refused, and what to do gives the bits
            set -- "$1" "$machine-gcc" -static -std=c99
            ! "$2" -std=c99 -I. -fsyntax-only tests/compile/implementation.c 2> "$B/$1-said" &&
                grep '#error.*on s390x use -fexcess-precision=fast or -std=gnu99' "$B/$1-said" || return 1
            case $1 in wide-*) hash "$@" -fexcess-precision=fast -O1 -DGCKPT_NO_FAST ;; esac ;;
        esac ;;
    # ---- small compilers and other systems: tests, and files exchanged with this machine; on Windows also a file of
    # more than 4 GiB ----
    port-* | wide-port-*)       # wide-port-*: also the tests of numerics and files
        check=$1
        port=${1#wide-}
        case $port in
        port-tcc) set -- tcc -Wall -Werror ;;
        port-musl) set -- musl-gcc -static -std=gnu99 -O1 ;;
        port-mingw)
            set -- x86_64-w64-mingw32-gcc -std=gnu99 -O1
            run=$(command -v wine64 || echo /usr/lib/wine/wine64)
            export WINEDEBUG=-all WINEDLLOVERRIDES=mscoree,mshtml= WINEPREFIX="$PWD/$B/$check-wine" ;;
        port-wasm)
            set -- clang --target=wasm32-wasi -std=gnu99 -O1 -D_WASI_EMULATED_PROCESS_CLOCKS
            set -- "$@" -lwasi-emulated-process-clocks -Wno-unused-command-line-argument # clock()
            # with fast API calls of its WASI, node 20 sometimes corrupted its heap after test_files
            run="node --no-warnings --no-turbo-fast-api-calls tests/wasi.mjs" ;;
        esac
        need "$1" ${run%% *}
        can "$@" || skip "what $1 builds does not run here${run:+ by $run}"
        [ "$1" = tcc ] || "$@" $W -Wstrict-prototypes -fsyntax-only tests/compile/implementation.c || return 1
        # the header uses no names that <windows.h> defines as macros
        [ $port != port-mingw ] || "$@" -fsyntax-only -include windows.h -Dsmall=char -I. -x c - << \END || return 1
#include "gradckpt.h"
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
small FAR at[] = { sizeof(hyper) };
const gckpt_hyper *of(const gckpt_update *u) { return u->options; }
END
        tests=$(test_of hash)
        case $check in wide-*) tests=$(test_of hash numerics save files) ;; esac
        tests_with "$check" "$@" && exchange "$check" "$@" || return 1
        [ $check = port-mingw ] || return 0
        "$@" -I. tests/large.c -o $B/large.exe && ${CC:-cc} -std=gnu99 -O1 -I. tests/large.c -o $B/large &&
            truncate -s "$($B/large make $B/large.st)" $B/large.st && $B/large end $B/large.st &&
            $B/large read $B/large.st && $run $B/large.exe read $B/large.st
        result=$?
        "${run%64}server" -k
        "${run%64}server" -w
        rm -rf $B/large.st $B/$check-wine
        return $result ;;
    # ---- ways to include ----
    include-alone)
        for c in "${CC:-cc} -std=c99" "${CXX:-c++} -std=c++11 -x c++"; do
            need "${c%% *}"
            $c $W -fsyntax-only tests/compile/alone.c && $c $W -fsyntax-only tests/compile/twice.c || return 1
        done
        printf 'extern "C" {\n#include "gradckpt.h"\n}\n' | ${CXX:-c++} -std=c++11 -x c++ $W -fsyntax-only - ;;
    include-two-units)
        ${CC:-cc} -O1 -I. tests/compile/static_a.c tests/compile/static_b.c -o $B/$1 && $B/$1 ;;
    include-c-and-cxx)      # the implementation in C, its users in C++
        need "${CXX:-c++}"
        plain_object && ${CXX:-c++} -std=c++11 -O1 -I. -Isrc -Itests -DGRADCKPT_IMPLEMENTED -x c++ tests/integration/test_hash.c \
            -x none "$object" -o $B/$1 && $B/$1 ;;
    include-renamed)        # the header includes itself: under another name it needs GRADCKPT_FILE
        rm -rf $B/$1
        mkdir -p $B/$1
        cp gradckpt.h $B/$1/renamed.h
        echo '#include "renamed.h"' > $B/$1/bare.c
        sed 's/"gradckpt.h"/"renamed.h"/; s,../names.h,names.h,' tests/compile/sets.c > $B/$1/sets.c
        implementation="${CC:-cc} -std=gnu99 -O0 -DGRADCKPT_IMPLEMENTATION -I$B/$1 -Itests"
        linked "$1-sets" tests/compile/sets.c && "$B/$1-sets" > $B/$1/want.txt || return 1
        $implementation '-DGRADCKPT_FILE="renamed.h"' $B/$1/sets.c -lm -o $B/$1/sets && $B/$1/sets | diff $B/$1/want.txt - &&
            $implementation -DGCKPT_NO_FAST -fsyntax-only $B/$1/sets.c && ${CC:-cc} -fsyntax-only $B/$1/bare.c || return 1
        ! $implementation -fsyntax-only $B/$1/sets.c 2> $B/$1/said.txt &&
            grep '#error.*define GRADCKPT_FILE' $B/$1/said.txt ;;
    editions)               # editions train to the same bits; the header without each part compiles
        sh tests/compile/editions.sh && HEADER=$B/editions/core sh tests/times.sh compiled core-compile -O2 -std=gnu99 ;;
    modules)                # one module a commit: its tests in its smallest edition, and all others' tests without it
        some="bf16:quick amx:quick ranks_random:$SEED,3 offload:$SEED,6 pack:$SEED,3 backend:$SEED,2 rings:$SEED,10"
        result=0
        for each in $(one_of $modules); do
            module_alone "$each" || { echo "FAIL ${each%%,*} alone"; result=1; }
            module_absent "$each" || { echo "FAIL without ${each%%,*}"; result=1; }
        done
        return $result ;;
    features)                  # each part left out compiles; three sets train; with make check-all, each part left out trains
        need gcc nm size
        plain_object && sh tests/compile/features.sh check "$object" ;;
    # ---- symbols and macros ----
    symbols)                # exported names, no writable data, what it links to; static; what a device must bring
        need gcc nm
        debug_object && nm "$object" > $B/$1.txt || return 1
        ! awk '$(NF-1) ~ /^[A-TV-Z]$/ && $NF !~ /^gckpt_/ || $(NF-1) ~ /^[BbDdCcGgSs]$/' $B/$1.txt | grep . || return 1
        ! grep -E ' U (exit|abort|_exit|printf|puts|fprintf|fmaf?|expf?|logf?|powf?|tanhf?|erff?|sinf?|cosf?)$' \
            $B/$1.txt || return 1
        symbols_of static -DGCKPT_STATIC -Wno-unused-function > $B/$1.txt || return 1
        ! awk '$(NF-1) ~ /^[A-TV-Z]$/' $B/$1.txt | grep . || return 1
        { symbols_of device -ffreestanding -DGCKPT_NO_FAST -DGCKPT_NO_STDIO -DGCKPT_NO_HEAP &&
            symbols_of small -ffreestanding -DGCKPT_SMALL; } > $B/$1.txt || return 1
        ! awk '$(NF-1) == "U" && $NF !~ /^(mem(cpy|set|move|cmp|chr)|str(len|cmp|chr)|_GLOBAL_OFFSET_TABLE_)$/' \
            $B/$1.txt | grep . ;;
    macros)                 # what an including file sees: only GCKPT_ and GRADCKPT_; with the implementation, gckpti_ too
        need gcc
        for set in "" -DGRADCKPT_IMPLEMENTATION "-DGRADCKPT_IMPLEMENTATION -DGCKPT_SMALL"; do
            : > $B/$1-only.c
            for h in $(sed -n 's/^ *# *include *<\(.*\)>.*/\1/p' gradckpt.h | sort -u); do
                echo "#include <$h>" | gcc -E -xc - > /dev/null 2>&1 && echo "#include <$h>" >> $B/$1-only.c
            done
            gcc -std=gnu99 -dM -E $B/$1-only.c | sort > $B/$1-before.txt || return 1
            { cat $B/$1-only.c; echo '#include "gradckpt.h"'; } > $B/$1-with.c
            gcc -std=gnu99 -I. $set -dM -E $B/$1-with.c | sort > $B/$1-after.txt || return 1
            comm -13 $B/$1-before.txt $B/$1-after.txt | awk '{ print $2 }' |
                grep -v -E "^(GCKPT|GRADCKPT${set:+|gckpti_})" | grep . && return 1
        done
        return 0 ;;
    # ---- a device's build, run here ----
    no-heap)
        ${CC:-cc} -std=c99 -O1 -I. tests/compile/no_heap.c -o $B/$1 && $B/$1 &&
            { ! have nm || ! nm $B/$1 | grep -E ' U (malloc|realloc|calloc|free|fopen|fwrite)(@|$)'; } ;;
    firmware)               # what make test does, and a device whose functions stand open: which are linked?
        skip_unless_changed $device
        plain_object && LINKED="$plain -DGRADCKPT_IMPLEMENTED -I. $object" ALL_PROGRAMS=1 sh tests/firmware/test_firmware.sh ;;
    firmware-wide)          # make test does some of it
        WIDE=1 sh tests/firmware/test_firmware.sh ;;
    firmware-clang)
        need clang clang++
        WIDE=1 CC=clang CXX=clang++ sh tests/firmware/test_firmware.sh ;;
    mcu)                    # firmware on a board of QEMU, to the bits of this machine. make check-all: on all boards
        skip_unless_changed $device
        boards=$(one_of mps2-an385 mps2-an386 mps2-an500 mps3-an547 virt)
        plain_object && LINKED="${CC:-cc} -O1 -I. -DGRADCKPT_IMPLEMENTED $object" BOARDS="$boards" LEVELS="${CHECK_ALL:+O2 O3}" \
            sh tests/firmware/test_mcu.sh ;;
    power)                  # make test cuts off each operation in one of four ways
        ${CC:-cc} -std=gnu99 -O1 -DGCKPT_STATIC -I. -Itests tests/examples/test_power_cut.c -lm -o "$B/$1" && "$B/$1" all ;;
    fast-math-refused)      # not compiled, or not run, or the same bits
        for c in gcc clang; do
            have $c || continue
            if $c -O1 -ffast-math -DGCKPT_NO_FAST -DGRADCKPT_IMPLEMENTATION -I. -Itests tests/integration/test_hash.c -o $B/$1 2> /dev/null; then
                $B/$1 > $B/$1.txt 2>&1 || grep 'self-test' $B/$1.txt || return 1
            fi
        done ;;
    # ---- sanitizers ----
    asan-ubsan-gcc | asan-ubsan-clang)
        c=${1#asan-ubsan-}
        need "$c"
        can "$c" -fsanitize=address,undefined || skip "$c has no sanitizer runtime"
        # with gcc (make check), runs the tests of public names, which compile fast, except those that mainly plan or
        # repeat other tests; and the tests of kernels, files and memory. The commit draws every second test of the examples.
        # References, which make test compares with, are left out.
        if [ "$c" = gcc ]; then
            tests=
            turn=$SEED
            for test in tests/*/test_*.c; do
                name=$(basename "$test" .c)
                case ${name#test_} in
                kernels | bf16 | pack | files | save | blocks | resume) ;;
                accuracy | fastest | fit | kept | order | ranks | ranks_* | search | cuda) continue ;;
                *) looks_inside "$test" && continue ;;
                esac
                case $test in
                tests/examples/*)
                    turn=$((turn + 1))
                    [ $((turn % 2)) -eq 0 ] || continue ;;
                esac
                tests="$tests $test"
            done
        fi
        some="kernels:10 bf16:quick"
        [ "$c" = clang ] || some="$some ops:-b user_ops:45"
        set -- "$1" "$c" $asan
        tests_with "$@" || return 1
        name=$1
        shift
        "$@" -I. -DGRADCKPT_IMPLEMENTED examples/gpt.c "$lib" -lm -lpthread -o "$B/$name-gpt" || return 1
        gpt="$B/$name-gpt --layers 2 --dim 16 --heads 2 --context 16 --batch 4 --threads 1"
        $gpt --steps 3 --micro-batch 3 --checkpoint sqrt --dropout 0.1 --save $B/$name.st --sample 5 &&
            $gpt --steps 4 --resume $B/$name.st --checkpoint segments --tie 1 && ! $gpt --budget 100 &&
            ! $gpt --resume $B/$name && $gpt --plan > /dev/null ;;
    tsan-two-contexts)
        c=gcc
        can gcc -fsanitize=thread || c=clang
        can $c -fsanitize=thread || skip "no thread sanitizer"
        libsrc tsan $c -std=gnu99 -O1 -g -fsanitize=thread &&
            $c -std=gnu99 -O1 -g -fsanitize=thread -DGRADCKPT_IMPLEMENTED -I. tests/compile/two_contexts.c "$libsrc" \
                -lm -lpthread -o $B/$1 && $B/$1 ;;
    tsan-teams)             # how threads claim items; OpenMP's own barriers are beyond the sanitizer
        c=gcc
        can gcc -fsanitize=thread || c=clang
        can $c -fsanitize=thread || skip "no thread sanitizer"
        libsrc tsan $c -std=gnu99 -O1 -g -fsanitize=thread &&
            $c -std=gnu99 -O1 -g -fsanitize=thread -I. -Isrc -Itests tests/cpu/test_threads.c "$libsrc" -lm -lpthread \
                -o $B/$1 && $B/$1 5000 ;;
    tsan-ranks)             # threads as ranks: what one has under way another may not touch
        c=gcc
        can gcc -fsanitize=thread || c=clang
        can $c -fsanitize=thread || skip "no thread sanitizer"
        tests=$(test_of ranks ranks_faults ranks_random)
        shared=tsan
        tests_with "$1" $c -std=gnu99 -O1 -g -fsanitize=thread ;;
    two-contexts-openmp)
        can ${CC:-cc} -fopenmp || skip "no OpenMP"
        openmp $1 tests/compile/two_contexts.c && $B/$1 ;;
    contract)               # the numeric contract written a second time, in Python: goldens, random nets bit for bit
        need python3
        python3 -c 'import numpy' 2> /dev/null || skip "no numpy"
        plain_object && sh tests/contract/contract.sh "$object" "$(all_or_third 200)" $SEED ;;
    scripts)                # tests that are scripts: every case, of which make test has a part
        need make
        one_make -s build/libsrc.o examples || return 1
        for script in layout/test_layout examples/test_small examples/test_from_scratch examples/test_course \
            examples/test_docs examples/test_programs ops/test_new_op; do
            ITERATIONS=third LINKED="$plain -ffp-contract=off -Ibuild/api -I. -DGRADCKPT_IMPLEMENTED build/libsrc.o -fopenmp" \
                sh tests/$script.sh || return 1
        done ;;
    power-cut | power-cut-fat | power-cut-wide)     # blocks of real file systems; root
        tries=30
        fs=ext4
        [ "$1" != power-cut-fat ] || { command -v linux.uml > /dev/null || skip "no user-mode Linux"; fs=vfat; }
        [ "$1" != power-cut-wide ] || { tries=1000; fs=; }
        need python3
        plain_object && LINKED="${CC:-cc} -O1 -std=gnu99 -I. -DGRADCKPT_IMPLEMENTED $object" \
            sh tests/power_cut/power_cut.sh $tries $fs ;;
    long | long-wide)       # lives of 50 steps, threads, clocks, ranks; a million steps
        steps=20000
        [ "$1" = long ] || steps=1000000
        linked "$1" -DPLAN_CHECK_OFF='"a long run"' tests/long/long.c && $B/$1 $steps ;;
    coverage)               # lines but those with a reason, branches (tests/coverage.sh)
        need clang
        JOBS=1 sh tests/coverage.sh ;;
    fuzz)                   # any bytes to what reads bytes, a minute for each reader (tests/fuzz)
        need clang
        sh tests/fuzz/fuzz.sh 60 ;;
    valgrind)
        need valgrind
        linked "$1" -g tests/compile/two_contexts.c &&
            valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=all $B/$1 &&
            linked "$1-gpt" -g examples/gpt.c &&
            valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=all $B/$1-gpt \
                --layers 2 --dim 16 --heads 2 --context 16 --batch 4 --steps 3 --checkpoint sqrt \
                --eval-every 0 --sample 3 ;;
    # ---- the programs ----
    packaging)              # make install, make dist, and a program that takes them by five tools
        sh tests/packaging/test_packaging.sh $B/$1 ;;
    boards)                 # make boards, and an archive by its own tool; a sketch in QEMU. make check-all: all of them
        skip_unless_changed $device
        tools=$(one_of arduino platformio modules)
        plain_object && export LINKED="${CC:-cc} -O1 -I. -DGRADCKPT_IMPLEMENTED $object" || return 1
        case $tools in *arduino* | *platformio*) TOOLS=$tools sh tests/packaging/test_boards.sh $B/$1 || return 1 ;; esac
        case $tools in *modules*) sh tests/packaging/test_modules.sh $B/$1-modules ;; esac ;;
    mpi)                    # several processes, by OpenMPI
        need mpicc mpicxx mpirun make
        for c in gcc clang; do
            have $c || continue
            for p in "examples/gpt.c -DGPT_MPI" "examples/accumulation.c -DACCUMULATION_MPI" tests/dist/mpi_transport.c \
                tests/dist/mpi_predict.c tests/bench/scaling.c; do
                OMPI_CC=$c mpicc -std=gnu99 $W -Isrc -Itests -Wstrict-prototypes -DGRADCKPT_IMPLEMENTED -c -o $B/$1.o $p || return 1
            done
        done
        mpicxx -std=c++11 -x c++ -DOMPI_SKIP_MPICXX $W -Isrc -Itests -DGRADCKPT_IMPLEMENTED -fsyntax-only tests/dist/mpi_transport.c || return 1
        one_make -s mpi-programs && sh tests/dist/test_mpi.sh ;;
    nccl)                   # examples/nccl.h compiles in both languages, and links; it is not run
        need nvcc
        root=${NCCL_HOME:-$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")}
        flags="-isystem $root/include -L$root/lib -L$root/lib64 -lnccl -lcudart"
        printf '#include <nccl.h>\nint main(void) { return 0; }\n' > $B/$1.c
        gcc $B/$1.c -o $B/$1 $flags 2> /dev/null || skip "no NCCL in $root (NCCL_HOME)"
        for c in "gcc -std=gnu99" "clang -std=gnu99" "g++ -std=c++11 -x c++"; do
            have ${c%% *} || continue
            $c $W -DGRADCKPT_IMPLEMENTED tests/compile/nccl.c -o $B/$1 $flags || return 1
        done ;;
    playground)             # in a headless browser, beside the native program
        need clang wasm-ld node ${CHROMIUM:-chromium}
        timeout 60 "${CHROMIUM:-chromium}" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
            --dump-dom about:blank 2> /dev/null | grep -q '<html' || skip "chromium does not start here"
        sh docs/playground/build.sh "$PWD/$B/$1.html" &&
            linked tiny docs/playground/tiny.c && linked relay docs/course/relay.c &&
            linked fits docs/playground/fits.c &&
            node tests/playground.mjs $B/$1.html $B/tiny $B/relay $B/fits ;;
    relay)                  # lesson 8: a training on four machines, and audits by them; by CUDA's simulation: cuda-asan
        plain_object && WORK=$B/$1-work MACHINES="native wasm mcu mpi" \
            LINKED="$plain -I. -DGRADCKPT_IMPLEMENTED $object -lpthread" sh docs/course/tools/relay.sh || return 1
        [ "$(grep -c . $B/$1-work/audits.txt)" -eq 4 ] || return 0
        echo "49 60 54 CUDA, simulated" >> $B/$1-work/audits.txt # as in the picture of the page
        $B/$1-work/picture $B/$1-work/steps.txt $B/$1-work/audits.txt | cmp - docs/relay.svg ;;
    reference)              # its search and looks in a headless browser; slides of the course
        need node "${CHROMIUM:-chromium}"
        timeout 60 "${CHROMIUM:-chromium}" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
            --dump-dom about:blank 2> /dev/null | grep -q '<html' || skip "chromium does not start here"
        MAKEFLAGS= make -s reference slides && node tests/reference.mjs build/reference/index.html &&
            node tests/slides.mjs build/slides.html ;;
    benches)                # they build without a warning; bench runs once, and no time is judged
        for source in tests/bench/*.c; do
            [ "$source" != tests/bench/scaling.c ] || continue # MPI's: see mpi
            ${CC:-cc} -std=gnu99 $W -Wstrict-prototypes -DGRADCKPT_IMPLEMENTED -Iexamples -Itests -Isrc -fsyntax-only "$source" ||
                return 1
        done
        linked "$1" tests/bench/bench.c &&
            $B/$1 --seconds 0 --only mlp --json $B/$1.json --markdown $B/$1.md &&
            $B/$1 --seconds 0 --only nano --budget 16M --json $B/$1-least.json &&
            grep -q '"model":"mlp"' $B/$1.json && grep -q '^| MLP' $B/$1.md &&
            ! $B/$1 --only nothing && ! $B/$1 --budget 1x && ! $B/$1 --seconds && $B/$1 --help ;;
    heuristics)             # each heuristic of the search is worth 0.5 % on the network, or needed by the test, that its row names
        one_make -s build/ablate build/test_baseline && sh tests/bench/heuristics.sh > $B/$1.md || { grep nothing $B/$1.md; return 1; }
        diff tests/bench/heuristics.md $B/$1.md ;; # if plans changed: review the new table, and keep it
    threads-gpt)            # OpenMP or not, one thread or several: one hash
        can ${CC:-cc} -fopenmp || skip "no OpenMP"
        linked "$1-serial" examples/gpt.c && openmp "$1-openmp" examples/gpt.c || return 1
        for run in "$B/$1-serial --threads 1" "$B/$1-openmp --threads 1" "$B/$1-openmp --threads 2" \
            "$B/$1-openmp --threads 3 --checkpoint sqrt --micro-batch 5" "$B/$1-serial --threads 4"; do
            $run --steps 6 --eval-every 0 --json - 2> /dev/null |
                sed -n 's/.*"weights_hash":"\([0-9a-f]*\)".*/\1/p'
        done > $B/$1.txt
        cat $B/$1.txt
        test "$(wc -l < $B/$1.txt)" -eq 5 && test "$(sort -u $B/$1.txt | wc -l)" -eq 1 ;;
    gpt-plans)              # at gpt's usual size: one hash, exact bytes
        linked "$1" examples/gpt.c || return 1
        for mode in store-all memory-poor segments sqrt; do
            for micro in 1 2 4 8; do
                $B/$1 --steps 6 --batch 8 --eval-every 0 --checkpoint $mode --micro-batch $micro --json - \
                    2> /dev/null | sed -n 's/.*"bytes":\([0-9]*\).*/\1/p; s/.*"bytes_measured":\([0-9]*\),"weights_hash":"\([0-9a-f]*\)".*/\1 \2/p' |
                    tr '\n' ' '
                echo "$mode $micro"
            done
        done > $B/$1.txt
        cat $B/$1.txt
        awk '$1 != $2 || (NR > 1 && $3 != hash) { bad = 1 } { hash = $3 } END { exit bad || NR != 16 }' $B/$1.txt &&
            mkdir -p $B/readme && cp $B/$1 $B/readme/gpt && sh tests/figures.sh gpt $B/readme ;;
    # ---- gradckpt_cuda.cu without a device: its tests run on tests/cuda/cuda_shim.h, and nvcc's output is checked
    # ----
    cuda-shim | cuda-shim-*)    # all tests, four schedules, streams that run at once (eager) or when waited for (lazy)
        need g++ make flock
        MAKEFLAGS= flock $B/cuda.lock make -s CC="${CC:-cc}" CXX=g++ $(cuda_tests build/shim/) || return 1
        for test in $(cuda_tests build/shim/); do
            [ "$test" != build/shim/test_cuda_shim ] || continue
            for schedule in 0 1 2 3; do
                case $1 in
                *-eager) lazy=0 ;;
                *-lazy) lazy=1 ;;
                *) lazy=$((schedule % 2)) ;;
                esac
                echo "== $test, schedule $schedule, lazy $lazy"
                CUDA_SHIM_SCHEDULE=$schedule CUDA_SHIM_LAZY=$lazy "$test" || return 1
            done
        done
        build/shim/test_cuda_shim ;;
    cuda-stages)            # what make gpu does on a device, all of it, in small
        need g++ make timeout
        ON=shim REPORT=$B/$1 MAKEFLAGS= CC="${CC:-cc}" CXX=g++ flock $B/cuda.lock sh tests/cuda/gpu.sh || return 1
        grep -q '^Equal bits: weights [0-9a-f]\{16\}\.$' $B/$1/gpu.md || return 1
        # budgets and plans that a device does not hold are refused before anything is computed
        for budget in "--budget 8MB" ""; do
            CUDA_SHIM_BYTES=1000000 build/gpt-shim --device cuda --layers 1 --steps 1 $budget 2>&1 |
                grep 'needs [0-9]* bytes, but the device has [0-9]* of its 1000000' || return 1
        done ;;
    cuda-indexes)           # no kernel multiplies 32-bit numbers for a 64-bit index; the three planted products are found
        query=$(command -v clang-query || ls /usr/lib/llvm-*/bin/clang-query 2> /dev/null | tail -n 1)
        [ -n "$query" ] || skip "no clang-query"
        { cat gradckpt_cuda.cu; echo 'int64_t planted(int i, int n, float *x) { int64_t at = i * n; return x[i * n] > *(x + i * n) ? at : 0; }'; } > $B/$1.cu
        "$query" -f tests/cuda/indexes.query $B/$1.cu -- -x c++ -std=c++17 -w -DGCKPT_CUDA_SHIM -I. \
            -include tests/cuda/cuda_shim.h > $B/$1.txt 2>&1
        [ "$(grep -c '^1 match\.' $B/$1.txt)" = 3 ] || { grep -v '^$' $B/$1.txt; return 1; } ;;
    cuda-asan | cuda-asan-wide) # a part of its tests, by the commit; the latter: all of them, and undefined behaviour
        need g++ make
        skip_unless_changed $cuda
        can g++ -fsanitize=address,undefined || skip "no sanitizers"
        a="-fsanitize=address $(grep -qsw fma /proc/cpuinfo && echo -mfma)"
        some="test_cuda $(one_of cuda_elementwise cuda_golden cuda_images cuda_products cuda_rows)"
        if [ "$1" = cuda-asan-wide ]; then
            a="$a -fsanitize=undefined"
            some=$(cuda_tests "")
        fi
        g++ -std=c++17 -O1 -ffp-contract=off $a -DGCKPT_CUDA_SHIM -DGCKPT_CUDA_SLOT_BYTES=4096 -I. \
            -include tests/cuda/cuda_shim.h -x c++ -c gradckpt_cuda.cu -o $B/$1.o || return 1
        libsrc asan-ubsan-gcc gcc $asan || return 1
        for test in $some; do
            echo "== $test"
            gcc $asan -DGRADCKPT_IMPLEMENTED -DGCKPT_CUDA_SHIM -I. -Isrc -Itests -c "tests/cuda/$test.c" \
                -o $B/$1-t.o &&
                g++ $a -fsanitize=undefined $B/$1-t.o $B/$1.o "$libsrc" -lm -lpthread -o "$B/$1-$test" &&
                ASAN_OPTIONS=detect_leaks=0 CUDA_SHIM_SCHEDULE=2 CUDA_SHIM_LAZY=1 "$B/$1-$test" 1 1 || return 1
        done
        ASAN_OPTIONS=detect_leaks=0 WORK=$B/$1-relay MACHINES="native cuda" CUDA_SHIM=$B/$1.o CXX="g++ $a -fsanitize=undefined" \
            LINKED="gcc $asan -I. -DGRADCKPT_IMPLEMENTED $libsrc -lpthread" sh docs/course/tools/relay.sh || return 1
        [ "$1" = cuda-asan-wide ] || return 0
        g++ -std=c++17 -O1 $a -DGCKPT_CUDA_SHIM -I. -Itests/cuda -include tests/cuda/cuda_shim.h -c tests/cuda/nccl_transport.cpp \
            -o $B/$1-e.o &&
            gcc $asan -DGRADCKPT_IMPLEMENTED -DGCKPT_CUDA_SHIM -I. -Isrc -Itests -c tests/cuda/nccl_ranks.c -o $B/$1-t.o &&
            g++ $a $B/$1-t.o $B/$1-e.o $B/$1.o "$libsrc" -lm -lpthread -o $B/$1-nccl &&
            ASAN_OPTIONS=detect_leaks=0 CUDA_SHIM_LAZY=1 $B/$1-nccl ;;
    cuda-refused)           # what rounds otherwise (as by nvcc without -fmad=false) is no backend
        need g++
        skip_unless_changed $cuda
        sed 's/base \* base - squared/gckpti_fma(base, base, -squared)/' gradckpt_cuda.cu > $B/$1.cu
        ! cmp -s gradckpt_cuda.cu $B/$1.cu || return 1
        ! g++ -E -D_MSC_VER=1940 -DGCKPT_CUDA_SHIM -I. -x c++ gradckpt_cuda.cu > /dev/null 2> $B/$1.txt && grep 'not MSVC' $B/$1.txt || return 1
        g++ -std=c++17 -O0 -DGCKPT_CUDA_SHIM -I. -include tests/cuda/cuda_shim.h -x c++ -c $B/$1.cu -o $B/$1.o &&
            libsrc wide $plain &&
            gcc -std=gnu99 -O0 -DGCKPT_CUDA_SHIM -I. -Isrc -Itests -c tests/cuda/test_cuda.c -o $B/$1-t.o &&
            g++ $B/$1-t.o $B/$1.o "$libsrc" -lm -lpthread -o $B/$1 || return 1
        ! $B/$1 > $B/$1.txt &&
            grep 'self-test: products and sums are contracted; compile gradckpt_cuda.cu by nvcc -fmad=false' $B/$1.txt ;;
    cuda-nvcc-*)            # no warning; no spills in products, convolutions, cells and attention; no wgmma that waits for
        # the one before (serialised: C7510 to C7515); every operation of exact mode is .rn
        need nvcc
        skip_unless_changed $cuda
        arch=${1#cuda-nvcc-}
        [ "$arch" != 90 ] || arch=90a # which has wgmma
        mkdir -p "$B/$1"
        began=$(date +%s)
        # -arch=sm_90a would compile for compute_90 as well
        nvcc -O3 -std=c++17 -fmad=false -gencode "arch=compute_$arch,code=sm_$arch" -Xptxas -v --keep --keep-dir "$B/$1" \
            -c gradckpt_cuda.cu -o "$B/$1/cuda.o" > "$B/$1/log" 2>&1 || { cat "$B/$1/log"; return 1; }
        echo "sm_$arch: $(($(date +%s) - began)) s, $(wc -c < "$B/$1/cuda.o") bytes"
        ! grep -iE 'warning|\(C751[0-5]\)' "$B/$1/log" || return 1
        awk '/Compiling entry/ { kernel = $0 }
             /spill stores/ && !/ 0 bytes spill stores/ { print kernel; print; if (kernel ~ /product|attention|windows|cells|column_sums|wgmma/) bad = 1 }
             END { exit bad }' "$B/$1/log" || return 1
        awk '/^\.(visible )?\.?(entry|func)/ || /\.entry/ { fast = /4fast/ }
             !fast && /^[^\/]*[ \t](add|sub|mul|fma|mad|div|sqrt|rcp|rsqrt|ex2|lg2|sin|cos|tanh)\.[a-z0-9.]*f(16|32|64)/ {
                 seen++
                 if (!/\.rn\./ || /\.ftz|\.approx/) { print; bad++ } }
             END { print seen + 0, "operations of exact mode,", bad + 0, "not .rn"; exit bad > 0 || !seen }' \
            "$B/$1"/gradckpt_cuda*.ptx ;;
    cuda-ptx)               # nvcc's kernels without a device: each launch leaves the memory that the shim leaves
        need nvcc g++ make python3
        python3 -c 'import numpy' 2> /dev/null || skip "no numpy"
        wgmma=$B/cuda-nvcc-90/gradckpt_cuda.ptx # that job's, or else
        [ "$wgmma" -nt gradckpt_cuda.cu ] || { wgmma=$B/$1-90a.ptx && nvcc -O3 -std=c++17 -fmad=false -arch=compute_90a -ptx gradckpt_cuda.cu -o "$wgmma"; } || return 1
        nvcc -O3 -std=c++17 -fmad=false -arch=sm_80 -ptx gradckpt_cuda.cu -o $B/$1.ptx &&
            g++ -std=c++17 -O1 -ffp-contract=off $(grep -qsw fma /proc/cpuinfo && echo -mfma) -DGCKPT_CUDA_SHIM \
                -DGCKPT_CUDA_SLOT_BYTES=4096 -I. -include tests/cuda/cuda_shim.h -x c++ \
                -c gradckpt_cuda.cu -o $B/$1.o && libsrc wide $plain || return 1
        runs=
        for test in test_cuda cuda_elementwise cuda_rows cuda_products cuda_images cuda_fast; do
            at=$B/$1-$test
            rm -rf "$at.dump"
            mkdir -p "$at.dump"
            gcc -std=gnu99 -O1 -DGCKPT_CUDA_SHIM -I. -Isrc -Itests -c "tests/cuda/$test.c" -o "$at.o" &&
                g++ "$at.o" $B/$1.o "$libsrc" -o "$at" -lm -pthread && GCKPT_SHIM_DUMP=$at.dump "$at" 1 4 || return 1
            runs="$runs $at $at.dump"
        done
        python3 tests/cuda/ptx/check.py $B/$1.ptx $runs && python3 tests/cuda/ptx/check.py "$wgmma" -w $runs || return 1
        rm -rf $B/$1-*.dump ;;
    layout)                  # gradckpt.h, gradckpt_cuda.cu are what src/ gives; budgets, layer headers; <= 100 columns, no tabs
        sh tests/layout/layout.sh src gradckpt.h && sh tests/layout/layout.sh src/cuda gradckpt_cuda.cu &&
            sh tests/layout/words.sh && sh tests/layout/prose.sh && sh tests/layout/order.sh src && sh tests/layout/mentions.sh src &&
            ! grep -n -E '^.{101,}' gradckpt.h gradckpt_cuda.cu &&
            ! grep -n "$(printf '\t')" gradckpt.h gradckpt_cuda.cu || return 1
        [ -f build/libsrc.a ] || return 0    # after make test: an edit of one file compiles that file
        one_make -s programs && touch src/planner/getters.c && one_make V=1 programs > $B/$1.txt || return 1
        test "$(grep -c -e ' -c -o ' $B/$1.txt)" -eq 1 && grep -q -e "-c -o build/src/planner/getters.o " $B/$1.txt ;;
    *)
        echo "no such check: $1"
        return 1 ;;
    esac
}

# One of each kind of compiler, language, sanitizer, machine and system; the slow ones begin first.
all="header asan-ubsan-gcc cross-aarch64-linux-gnu cross-s390x-linux-gnu cross-i686-linux-gnu cuda-asan tests-wide plans-wide
tsan-ranks mpi mcu gpt-plans threads-gpt valgrind two-contexts-openmp tsan-teams tsan-two-contexts
packaging boards playground relay reference benches port-mingw port-musl port-wasm port-tcc cuda-nvcc-90 cuda-refused
warnings-gcc warnings-clang warnings-g++ warnings-clang++ kernels-clang,-O2 avx512
debug hash-gcc,-O3,-funroll-loops,-ffp-contract=fast hash-gcc,-O2,-DGCKPT_NO_FAST,-DGCKPT_FORCE_SOFT_FMA
hash-gcc,-Os,-DGCKPT_NO_STDIO,-DNDEBUG hash-clang,-O2,-mfma,-ffp-contract=fast hash-g++,-std=c++11,-O1
include-alone include-renamed include-two-units include-c-and-cxx
symbols
fast-math-refused power firmware no-heap nccl macros features editions modules layout contract long"
more="asan-ubsan-clang cuda-asan-wide faults-wide cuda-shim cuda-stages cuda-indexes cuda-ptx cuda-nvcc-100 cuda-nvcc-80
warnings-gcc-c17 warnings-g++-cxx17 firmware-wide firmware-clang wide-cross-arm-linux-gnueabihf wide-cross-riscv64-linux-gnu
wide-cross-aarch64-linux-gnu wide-cross-s390x-linux-gnu wide-cross-i686-linux-gnu
hash-gcc,-O1 hash-gcc,-O2 hash-gcc,-O3 hash-clang,-O1 hash-clang,-O2 hash-clang,-O3
hash-gcc,-O2,-fopenmp hash-gcc,-O2,-mfma hash-gcc,-O3,-march=native hash-gcc,-O3,-flto hash-clang,-O3,-march=native
hash-gcc,-O3,-march=native,-flto hash-clang,-O3,-march=native,-flto hash-gcc,-O2,-DGCKPT_NO_STDIO,-DNDEBUG
hash-gcc,-O2,-DNDEBUG hash-gcc,-O2,-DGCKPT_NO_FAST hash-clang,-O2,-DGCKPT_NO_FAST hash-gcc,-O2,-DGCKPT_FORCE_SOFT_FMA
hash-clang,-O2,-mfma hash-clang,-O3,-flto hash-gcc,-O3,-flto,-mfma hash-gcc,-Os
kernels-gcc,-O3,-flto,-mfma kernels-gcc,-O2,-mfma kernels-gcc,-O0 kernels-clang,-O3,-mfma
hash-clang,-O2,-DGCKPT_FORCE_SOFT_FMA hash-gcc,-O2,-DGCKPT_NO_STDIO hash-gcc,-O2,-DGCKPT_STATIC
wide-port-mingw wide-port-musl wide-port-wasm wide-port-tcc
hash-g++,-std=c++11,-O2 hash-g++,-std=c++17,-O3 hash-clang++,-std=c++11,-O2 hash-clang++,-std=c++17,-O2
scripts heuristics cuda-shim-eager cuda-shim-lazy fuzz coverage power-cut power-cut-fat power-cut-wide long-wide"

if [ "$1" = list ]; then
    echo "$all
$more"
    exit 0
fi
if [ "$1" = --run ]; then       # one check
    (run_check "$2")
    exit
fi
if [ "$1" = --one ]; then       # one check, as xargs calls it: its line, and what it took
    log=$B/$2.log
    started=$(date +%s)
    if [ "$2" = unit ]; then
        sh tests/times.sh unit
        exit 0
    fi
    # a check that never ends fails after 20 minutes (2 hours in make check-all)
    limit=
    ! have timeout || limit="timeout -k 10 $([ -n "$CHECK_ALL" ] && echo 7200 || echo 1200)"
    sh tests/times.sh run "$2" $limit sh "$0" --run "$2" > "$log" 2>&1
    status=$?
    [ $status -ne 124 ] || echo "not done after the seconds of: $limit" >> "$log"
    took=$(($(date +%s) - started))
    if [ $status -eq 77 ]; then
        echo "skip $2: $(sed -n 's/^skip: //p' "$log" | tail -n 1)"
    elif [ $status -eq 0 ]; then
        echo "pass $2 ($took s)$(sed -n 's/^skip: /, without a part: /p' "$log" | tr -d '\n')"
    else
        tail -n 15 "$log" | sed 's/^/    /'
        echo "FAIL $2 ($took s; $log)"
    fi
    exit 0
fi
table=show
case $* in
'' | all)
    table=table
    [ -z "$1" ] || export CHECK_ALL=1 ITERATIONS=third
    set -- $all ${1:+$more} ;;
*)
    export CHECK_NAMED=1 ;;
esac
echo "seed $SEED"
[ -n "$TIMES_BEGUN" ] || sh tests/times.sh clear # or .ci/run did, before make test
printf '%s\n' unit "$@" unit | xargs -P "$JOBS" -I NAME sh "$0" --one NAME | tee $B/result.txt
sh tests/times.sh $table > $B/times.txt || echo "FAIL times: see FAIL in the table" >> $B/result.txt
cat $B/times.txt
grep -h -e '^FAIL ' -e '  FAIL: ' $B/result.txt $B/times.txt # once more, where they are seen
p=$(grep -c '^pass ' $B/result.txt)
f=$(grep -c '^FAIL ' $B/result.txt)
s=$(grep -c '^skip ' $B/result.txt)
[ "$s" -eq 0 ] || echo "$s skipped"
if [ -n "$CHECK_ALL" ] && [ "$f" -eq 0 ] && ! grep -qE '^skip (cuda|mcu|boards|firmware)' $B/result.txt && git diff --quiet HEAD 2> /dev/null; then
    git rev-parse HEAD > tests/last_full # the files are as committed, and no job that it lets others skip was skipped
fi
echo "check: $p passed, $f failed"
[ "$f" -eq 0 ] && [ "$p" -gt 0 ]
