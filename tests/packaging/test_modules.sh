#!/bin/sh
# Tests the ESP-IDF component and the Zephyr module that `make boards` writes: the contents of the archives, their
# manifests and Kconfig files with those systems' tools from pip, and their examples. The examples are compiled by
# CMake and run in QEMU, on the instruction set of an ESP32-C3 and on a Cortex-M3, and on this machine, and must give
# the hash that the archive names. The build systems are replaced by small ones (tests/packaging/modules); if IDF_PATH
# names an ESP-IDF, the example is also compiled by it for the target linux. Tools that are not installed are skipped
# and named.
work=${1:-build/modules}
. tests/checks.sh
work=$(cd "$work" && pwd)
at=$PWD
in=$at/tests/packaging/modules
mcu=$at/examples/mcu
version=$(awk '/define GCKPT_VERSION_/ { v = v s $3; s = "." } END { print v }' gradckpt.h)
idf=$work/idf/gradckpt
zephyr=$work/zephyr/gradckpt

have()
{
    for tool in "$@"; do
        command -v "$tool" > /dev/null 2>&1 || {
            echo "skip: no $tool"
            return 1
        }
    done
}

fails()
{
    ! "$@"
}

# ---- the archives (test_boards.sh tests that making them twice gives the same bytes) ----
mkdir -p "$work/idf" "$work/zephyr"
check "ESP-IDF: the archive" sh examples/packaging/esp-idf/archive.sh "$work/out"
check "Zephyr: the archive" sh examples/packaging/zephyr/archive.sh "$work/out"
check "ESP-IDF: unpacked" tar -xzf "$work/out/gradckpt-esp-idf-$version.tar.gz" -C "$work/idf"
check "Zephyr: unpacked" tar -xzf "$work/out/gradckpt-zephyr-$version.tar.gz" -C "$work/zephyr"
holds()                 # holds FOLDER: these files, by name, and no other
{
    (cd "$1" && find . -type f | sort) > "$work/files" && sort | diff - "$work/files"
}
check "ESP-IDF: its files" holds "$idf" << 'end'
./CMakeLists.txt
./Kconfig
./Kconfig.parts
./LICENSE
./README.md
./examples/regression/CMakeLists.txt
./examples/regression/README.md
./examples/regression/host/plan.c
./examples/regression/main/CMakeLists.txt
./examples/regression/main/main.c
./examples/regression/main/regression.h
./examples/regression/main/regression_plan.h
./examples/regression/sdkconfig.defaults
./gradckpt.c
./idf_component.yml
./include/gradckpt.h
end
check "Zephyr: its files" holds "$zephyr" << 'end'
./LICENSE
./README.md
./include/gradckpt.h
./samples/regression/CMakeLists.txt
./samples/regression/README.md
./samples/regression/host/plan.c
./samples/regression/prj.conf
./samples/regression/sample.yaml
./samples/regression/src/main.c
./samples/regression/src/regression.h
./samples/regression/src/regression_plan.h
./src/gradckpt.c
./zephyr/CMakeLists.txt
./zephyr/Kconfig
./zephyr/Kconfig.parts
./zephyr/module.yml
end
for made in "$idf" "$zephyr"; do
    check "the header and the licence" sh -c "cmp gradckpt.h $made/include/gradckpt.h && cmp LICENSE $made/LICENSE"
    check "nothing is left to fill in, and no place is named" sh -c "! grep -rE '@[A-Z]+@|$at' $made"
    check "README.md has the version" grep -q "^# gradckpt $version for " "$made/README.md"
done
manifest()              # a line of the form KEY: VALUE, each
{
    while read -r line; do
        grep -qxF "$line" "$1" || { echo "not there: $line"; return 1; }
    done
}
check "ESP-IDF: the manifest" manifest "$idf/idf_component.yml" << end
version: "$version"
license: MIT
end
check "ESP-IDF: the manifest's example is there" grep -q "^project(" \
    "$idf/$(sed -n 's/^  - path: //p' "$idf/idf_component.yml")/CMakeLists.txt"
named()                 # what module.yml names is there
{
    yml=$zephyr/zephyr/module.yml
    grep -qx 'name: gradckpt' "$yml" && [ -f "$zephyr/$(sed -n 's/^  cmake: //p' "$yml")/CMakeLists.txt" ] &&
        [ -f "$zephyr/$(sed -n 's/^  kconfig: //p' "$yml")" ] &&
        ls "$zephyr/$(sed -n 's/^  - //p' "$yml")"/*/sample.yaml
}
check "Zephyr: module.yml" named

# ---- the hash at the end of the training: the host's program prints it, and the texts in the archives must name it
# ----
${CC:-cc} -O0 -std=gnu99 -Wall -Wextra -Werror -I. -I"$idf/examples/regression/main" \
    examples/packaging/regression/host.c -o "$work/host" &&
    "$work/host" > "$work/want"
check "it learns" awk '/^step 0:/ { first = $4 } /^step 199:/ { last = $4 } END { exit !(last * 100 < first) }' \
    "$work/want"
check "the README tells what it says" sh -c "for made in $idf/examples $zephyr/samples; do
    sed -n '/^\`\`\`text/,/^\`\`\`/p' \$made/regression/README.md | sed '1d;\$d' | diff $work/want - || exit 1; done"
check "Zephyr: sample.yaml waits for the hash" grep -qxF "      - \"$(tail -n 1 "$work/want")\"" \
    "$zephyr/samples/regression/sample.yaml"
check "one example in both" sh -c "for file in regression.h regression_plan.h; do
    cmp $idf/examples/regression/main/\$file $zephyr/samples/regression/src/\$file || exit 1; done"

# ---- Kconfig has an option for every switch of the header, as docs/building.md lists them, and no other option ----
grep -E '^ *# *(if|ifdef|ifndef|elif|define|undef) ' gradckpt.h |
    grep -oE 'GCKPT_NO_[A-Z0-9_]+' | sort -u > "$work/asked"
check "there are switches" [ "$(wc -l < "$work/asked")" -ge 23 ]
for parts in "$idf/Kconfig.parts" "$zephyr/zephyr/Kconfig.parts"; do
    check "an option for each switch" sh -c "sed -n 's/^config GRADCKPT_/GCKPT_/p' $parts | sort | diff $work/asked -"
    check "with the words of docs/building.md" sh -c "tr -s '\\n\\t ' ' ' < $parts |
        grep -q 'GCKPT_NO_FRONTIER: frontiers config' &&
        [ \$(grep -c 'GCKPT_NO_[A-Z0-9_]*: [^ ]' $parts) = \$(grep -c . $work/asked) ]"
done

# sets OUT KIND FRAGMENT: parses the configuration in the file FRAGMENT by the Kconfig tool of KIND, which is idf or
# zephyr, and writes the resulting settings to OUT as commands of CMake
sets()
{
    if [ "$2" = idf ]; then
        rm -f "$work/sdkconfig"
        python3 -m kconfgen --kconfig "$in/esp-idf/Kconfig" --env COMPONENT="$idf" --config "$work/sdkconfig" \
            --defaults "$3" --output cmake "$1" > "$work/kconfgen" 2>&1 &&
            ! grep -iE 'unknown|warning|error' "$work/kconfgen"
    else
        python3 "$in/zephyr_config.py" "$zephyr" "$3" > "$1"
    fi
}
# should OUT KIND FRAGMENT: like sets, but without the parser: writes the settings that the parser must give. It is used
# if the parser is not installed.
should()
{
    sed -n 's/^\(CONFIG_GRADCKPT[A-Z0-9_]*\)=y$/set(\1 y)/p' "$3"
    echo 'set(CONFIG_GRADCKPT_NO_FAST y)'
    [ "$2" = idf ] || echo 'set(CONFIG_GRADCKPT_NO_STDIO y)'
    grep -q BODIES "$3" || echo 'set(CONFIG_GRADCKPT_SMALL y)'
} > "$1"
has()                   # has PACKAGE COMMAND...: returns whether the package is installed, which the command tests
{
    package=$1
    shift
    "$@" > /dev/null 2>&1 || {
        echo "skip: no $package"
        return 1
    }
}
echo CONFIG_GRADCKPT_NO_SUCH=y > "$work/wrong"
printf 'CONFIG_GRADCKPT_BODIES=y\nCONFIG_GRADCKPT_NO_RANKS=y\n' > "$work/bodies"
{ sed 's/^GCKPT_\(.*\)/CONFIG_GRADCKPT_\1=y/' "$work/asked"; echo CONFIG_GRADCKPT_BODIES=y; } > "$work/all"
sed '$a CONFIG_GRADCKPT=y' "$work/bodies" > "$work/bodies.conf"
sed '$a CONFIG_GRADCKPT=y' "$work/all" > "$work/all.conf"
config=should
if has esp-idf-kconfig python3 -c "import kconfgen"; then
    config=sets
    check "ESP-IDF: kconfcheck" python3 -m kconfcheck "$idf/Kconfig" "$idf/Kconfig.parts"
    check "ESP-IDF: an option that is not there is found" fails sets "$work/wrong.cmake" idf "$work/wrong"
fi
check "ESP-IDF: Kconfig takes the example's lines" $config "$work/idf.cmake" idf \
    "$idf/examples/regression/sdkconfig.defaults"
check "ESP-IDF: all left out" $config "$work/idf-all.cmake" idf "$work/all"
config=should
if has kconfiglib python3 "$in/zephyr_config.py"; then
    config=sets
    check "Zephyr: an option that is not there is found" fails sets "$work/wrong.cmake" zephyr "$work/wrong"
fi
check "Zephyr: Kconfig takes the sample's lines" $config "$work/zephyr.cmake" zephyr \
    "$zephyr/samples/regression/prj.conf"
check "Zephyr: all left out" $config "$work/zephyr-all.cmake" zephyr "$work/all.conf"
check "Zephyr: the bodies" $config "$work/zephyr-bodies.cmake" zephyr "$work/bodies.conf"

# ---- the registry's own tool ----
if have compote; then
    check "compote manifest lint" compote -W manifest lint "$idf"
    packed()
    {
        compote component pack --project-dir "$idf" --name gradckpt --dest-dir "$work/packed" &&
            tar -tzf "$work/packed/gradckpt_$version.tgz" > "$work/files" &&
            for file in gradckpt.c include/gradckpt.h Kconfig Kconfig.parts CMakeLists.txt LICENSE; do
                grep -x "\(\./\)*$file" "$work/files" || return 1
            done
    }
    check "compote component pack" packed
fi

# ---- CMake: which definitions the options of Kconfig become; the examples are compiled and run ----
warnings="-Wall -Wextra -Werror"
nano="-specs=nano.specs -specs=nosys.specs"
small="-Os -ffunction-sections -fdata-sections $warnings -I$mcu"
clock="-DBOARD_HZ=25000000u -DWATCHDOG=0x40008000u -DWATCHDOG_HZ=25000000u"
link="-nostartfiles -T $mcu/mcu.ld -Wl,--gc-sections,--defsym=flash_size=64K,--defsym=ram_size=16K"
# configured KIND NAME SETTINGS SOURCE BOARD OPTION..: configures the project SOURCE in $work/NAME
configured()
{
    kind=$1 name=$2 settings=$3 source=$4 board=$5
    shift 5
    rm -rf "$work/$name"
    IDF_PATH="$in/esp-idf" ZEPHYR_BASE="$in/zephyr" cmake -S "$source" -B "$work/$name" -DCONFIG="$settings" \
        -DBOARD="$board" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON "$@"
}
on_riscv()              # on_riscv NAME SETTINGS
{
    configured idf "$1" "$2" "$idf/examples/regression" "$mcu/riscv.c;$mcu/semihosting.c;$in/esp-idf/app_main.c" \
        -DCMAKE_SYSTEM_NAME=Generic -DCMAKE_C_COMPILER=riscv64-unknown-elf-gcc \
        -DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY \
        -DCMAKE_C_FLAGS="-march=rv32imc -misa-spec=2.2 -mabi=ilp32 -std=gnu17 -specs=picolibc.specs $small" \
        -DCMAKE_EXE_LINKER_FLAGS="$link,--defsym=flash_at=0x80000000,--defsym=ram_at=0x80100000"
}
on_m3()                 # on_m3 NAME SETTINGS
{
    configured zephyr "$1" "$2" "$zephyr/samples/regression" "$mcu/cortex_m.c;$mcu/semihosting.c" \
        -DCMAKE_SYSTEM_NAME=Generic -DCMAKE_C_COMPILER=arm-none-eabi-gcc \
        -DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY \
        -DCMAKE_C_FLAGS="-mcpu=cortex-m3 -mthumb -std=c17 -ffreestanding $nano $small $clock" \
        -DCMAKE_EXE_LINKER_FLAGS="$link,--defsym=flash_at=0,--defsym=ram_at=0x20000000,--defsym=end=board_ram_end"
}
here()                  # here NAME SETTINGS SOURCE
{
    configured zephyr "$1" "$2" "$3" "$mcu/host.c" -DCMAKE_C_FLAGS="-O0 $warnings -I$mcu"
}
# defined NAME FILE SWITCH..: checks that the command that compiles FILE in NAME defines these switches and no other
# switch of gradckpt
defined()
{
    name=$1 file=$2
    shift 2
    grep '"command".*/'"$file\"" "$work/$name/compile_commands.json" | grep -o 'GCKPT_[A-Z0-9_]*' | sort -u > "$work/defined"
    printf '%s\n' "$@" | sort | diff "$work/defined" -
}
# exact NAME FILE: checks that FILE is compiled in NAME without fusing products and sums
exact() { grep '"command".* -ffp-contract=off .*/'"$2\"" "$work/$1/compile_commands.json"; }
without=$(sed -n 's/^ \* It runs with \(.*\), too\. \*\/$/\1/p' "$idf/examples/regression/main/regression_plan.h" | tr -d ,)
qemu="-nographic -monitor none -serial none -semihosting-config enable=on,target=native -kernel"
says()                  # says WANT COMMAND...
{
    want=$1
    shift
    timeout 100 "$@" > "$work/said" 2>&1
    diff "$want" "$work/said"
}

if have cmake riscv64-unknown-elf-gcc qemu-system-riscv32; then
    check "ESP-IDF: configured" on_riscv rv32imc "$work/idf.cmake"
    check "ESP-IDF: the plan's parts, GCKPT_SMALL and NO_FAST are defined" \
        defined rv32imc main.c $without GCKPT_SMALL GCKPT_NO_FAST
    check "ESP-IDF: what requires the component fuses no products and sums" exact rv32imc main.c
    check "ESP-IDF: compiled for an ESP32-C3's instruction set" cmake --build "$work/rv32imc"
    check "ESP-IDF: runs in QEMU, without an FPU, to the host's hash" says "$work/want" qemu-system-riscv32 -bios none \
        -M virt -cpu rv32,f=false,d=false $qemu "$work/rv32imc/regression.elf"
    check "ESP-IDF: configured with all left out" on_riscv rv32imc-all "$work/idf-all.cmake"
    check "ESP-IDF: all are defined for the bodies" defined rv32imc-all gradckpt.c $(cat "$work/asked")
    check "ESP-IDF: and for what requires the component" defined rv32imc-all main.c $(cat "$work/asked")
    check "ESP-IDF: the bodies compile, without a warning" cmake --build "$work/rv32imc-all" --target __idf_gradckpt
    check "ESP-IDF: the bodies are optimised" grep '"command".* -O2 .*/gradckpt\.c"' "$work/rv32imc-all/compile_commands.json"
fi
if [ -z "$IDF_PATH" ]; then
    echo "skip: no ESP-IDF (IDF_PATH)"
elif have cmake ninja; then
    by_idf()            # whose tasks go on when app_main has ended
    {
        cmake -G Ninja -S "$idf/examples/regression" -B "$work/linux" -DIDF_TARGET=linux -DPYTHON_DEPS_CHECKED=1 &&
            ninja -C "$work/linux" || return 1
        timeout 5 "$work/linux/regression.elf" | grep -E '^(step|weights) ' | diff "$work/want" -
    }
    check "ESP-IDF itself: compiled for its target linux, runs to the same hash" by_idf
    check "ESP-IDF itself: defines the same" defined linux main.c $without GCKPT_SMALL GCKPT_NO_FAST
fi
if have cmake arm-none-eabi-gcc qemu-system-arm; then
    check "Zephyr: configured" on_m3 m3 "$work/zephyr.cmake"
    check "Zephyr: the plan's parts, GCKPT_SMALL, NO_FAST and NO_STDIO are defined" \
        defined m3 main.c $without GCKPT_SMALL GCKPT_NO_FAST GCKPT_NO_STDIO
    check "Zephyr: the application fuses no products and sums" exact m3 main.c
    check "Zephyr: compiled for a Cortex-M3" cmake --build "$work/m3"
    check "Zephyr: runs in QEMU to the host's hash" says "$work/want" qemu-system-arm -M mps2-an385 $qemu "$work/m3/zephyr_final"
    check "Zephyr: configured with all left out" on_m3 m3-all "$work/zephyr-all.cmake"
    check "Zephyr: all are defined for the bodies" defined m3-all gradckpt.c $(cat "$work/asked")
    check "Zephyr: and for the application" defined m3-all main.c $(cat "$work/asked")
fi
if have cmake; then
    check "Zephyr: the sample, here" here native "$work/zephyr.cmake" "$zephyr/samples/regression"
    check "Zephyr: compiled here" cmake --build "$work/native"
    check "Zephyr: runs here to the same hash" says "$work/want" "$work/native/zephyr_final"
    # An application that makes a plan when it runs, so that the module must contain the function bodies.
    mkdir -p "$work/application/src"
    cp examples/packaging/program/main.c "$work/application/src"
    sed "s,/\.\./\.\.),/../zephyr/gradckpt)," "$zephyr/samples/regression/CMakeLists.txt" > "$work/application/CMakeLists.txt"
    echo "gradckpt $version: loss 0.081336, weights 9101343a2e720f1f" > "$work/golden"
    check "Zephyr: an application and the bodies" here planned "$work/zephyr-bodies.cmake" "$work/application"
    check "Zephyr: they have the same switches" sh -c "[ \$(grep -c 'GCKPT_NO_FAST -DGCKPT_NO_RANKS -DGCKPT_NO_STDIO' \
        $work/planned/compile_commands.json) -ge 2 ]"
    check "Zephyr: compiled, with the module's bodies" cmake --build "$work/planned"
    check "Zephyr: plans and trains to the golden bits" says "$work/golden" "$work/planned/zephyr_final"
fi
report modules
