#!/bin/sh
# Tests the archives that make boards writes for Arduino and PlatformIO. Each archive is unpacked, and its layout is
# checked field by field. Its sketches are compiled by arduino-builder and by PlatformIO for a board in QEMU
# (tests/packaging/arduino has boards.txt, platform.txt and a core; tests/packaging/platformio the same for
# PlatformIO), and must print the same there as on this machine. Uses no network. Tools that are not installed are
# skipped and named.
work=${1:-build/boards-test}
. tests/checks.sh
CC=${CC:-cc}
CXX=${CXX:-c++}
here=tests/packaging
core=$here/arduino/test/qemu/cores/qemu
work=$(cd "$work" && pwd)
version=$(awk '/define GCKPT_VERSION_/ { v = v s $3; s = "." } END { print v }' gradckpt.h)
export REPOSITORY="$PWD" LC_ALL=C

have()
{
    for tool in "$@"; do
        command -v "$tool" > /dev/null 2>&1 || {
            echo "skip: no $tool"
            return 1
        }
    done
}

boards=$work/boards
check "make boards" sh examples/packaging/boards.sh "$boards"
again()                 # later and elsewhere: the same bytes
{
    sh examples/packaging/boards.sh "$work/again/some where" || return 1
    for archive in "$boards"/*-"$version".*; do
        cmp "$archive" "$work/again/some where/${archive##*/}" || return 1
    done
}
check "again: the same bytes" again

# ---- Arduino ----
have unzip || report boards || exit 1
mkdir -p "$work/libraries"
check "Arduino: unpacked" unzip -q "$boards/gradckpt-arduino-$version.zip" -d "$work/libraries"
library=$work/libraries/gradckpt
sketches=$(ls "$library/examples")
check "Arduino: three sketches" [ "$(echo $sketches)" = "Anomaly Blink Keywords" ]
layout()                # nothing else: what lies in src/ is compiled, its headers are offered to sketches
{
    [ "$(ls "$library" | tr '\n' ' ')" = "LICENSE README.md examples extras keywords.txt library.properties src " ] &&
        [ "$(ls "$library/src")" = gradckpt.h ] && cmp "$library/src/gradckpt.h" gradckpt.h &&
        cmp "$library/LICENSE" LICENSE || return 1
    for sketch in $sketches; do # a program in C or C++ there would be compiled, too
        [ -f "$library/examples/$sketch/$sketch.ino" ] &&
            [ -z "$(ls "$library/examples/$sketch" | grep -v "^$sketch.ino\$" | grep -v '\.h$')" ] || return 1
    done
}
check "Arduino: the layout" layout
field() { sed -n "s/^$1=//p" "$library/library.properties"; }
properties()            # the library specification 2.2: what there must be, and what may
{
    for name in name version author maintainer sentence paragraph category url architectures; do
        [ "$(field $name | grep -c .)" = 1 ] || { echo "$name: none or several" && return 1; }
    done
    ! grep -vE '^(name|version|author|maintainer|sentence|paragraph|category|url|architectures|includes|license)=[^ ]' \
        "$library/library.properties" || return 1
    categories='Display|Communication|Signal Input/Output|Sensors|Device Control|Timing|Data Storage|Data Processing'
    [ "$(field name)" = gradckpt ] && [ "$(field version)" = "$version" ] && field category | grep -xE "$categories|Other" &&
        [ "$(field license)" = "$(sed -n 's/^\([A-Z]*\) License$/\1/p' LICENSE)" ] &&
        field url | grep -E '^https?://[^ ]+$' && field architectures | grep -xE '[a-z0-9_*]+(,[a-z0-9_*]+)*' &&
        [ -f "$library/src/$(field includes)" ]
}
check "Arduino: library.properties" properties
keywords()              # true tabs; every function; types are types; constants are constants
{
    ! grep -vE '^(#.*|[A-Za-z0-9_]+	(KEYWORD1|KEYWORD2|LITERAL1))?$' "$library/keywords.txt" &&
        [ -z "$(cut -f 1 "$library/keywords.txt" | grep . | sort | uniq -d)" ] || return 1
    sed -n '/^#endif .* GRADCKPT_H /q; /^GCKPT_API/s/[^(]*[ *]\(gckpt_[a-z0-9_]*\)(.*/\1/p' gradckpt.h |
        sort > "$work/functions"
    sed -n 's/	KEYWORD2$//p' "$library/keywords.txt" | grep '^gckpt_' | sort | diff - "$work/functions" || return 1
    awk -F '\t' 'BEGIN { print "#include \"gradckpt.h\"" }
        $2 == "KEYWORD1" { print $1, "*t" NR ";" }
        $1 ~ /_NO_|GRADCKPT|_(API|FREE|REALLOC|SMALL|STATIC|FORCE_SOFT_FMA)$/ { next } # for a sketch to define
        $2 == "LITERAL1" { print "enum { v" NR " = " $1 " };" }' "$library/keywords.txt" > "$work/keywords.c"
    [ "$(grep -c . "$work/keywords.c")" -gt 150 ] && $CC -std=gnu99 -I. -fsyntax-only "$work/keywords.c"
}
check "Arduino: keywords.txt" keywords

# ---- sketches, on this machine ----
warnings="-Wall -Wextra -Werror -Wno-unused-function"
mkdir -p "$work/host"
check "the core compiles here" $CC -O1 -Iexamples/mcu -c examples/mcu/host.c -o "$work/host/host.o"
on_host()               # on_host SKETCH: as Arduino's tools have it, without their prototypes
{
    ino=$library/examples/$1/$1.ino
    printf '#include <Arduino.h>\n#line 1 "%s.ino"\n' "$1" | cat - "$ino" > "$work/host/$1.cpp" &&
        $CXX -std=gnu++11 -O1 $warnings -I$core -Iexamples/mcu -I"$library/src" -I"$library/examples/$1" \
            "$work/host/$1.cpp" $core/main.cpp "$work/host/host.o" -o "$work/host/$1" &&
        timeout 100 "$work/host/$1" > "$work/$1.want"
}
says()                  # says SKETCH: what shows that it does what it is for
{
    awk -v sketch="$1" '
        /anomaly$/ { found++ }
        /alarm$|overlooked$/ { wrong++ }
        /^before/ { before = $2 }
        /^after/ { after = $2 }
        /^mean/ { first = first ? first : $4; last = $4 }
        /ms: on$/ { on++ }
        sketch == "Anomaly" { fine = found >= 10 && wrong <= 2 }
        sketch == "Keywords" { fine = after > before && after >= 20 }
        sketch == "Blink" { fine = last * 100 < first && on > 40 }
        { print }
        END { exit !fine }' "$work/$1.want"
}
for sketch in $sketches; do
    check "$sketch on this machine" on_host "$sketch"
    check "$sketch does what it is for" says "$sketch"
done

# ---- sketches, on the board in QEMU ----
in_qemu()               # in_qemu ELF SKETCH
{
    timeout 100 qemu-system-arm -M mps2-an386 -nographic -monitor none -serial none \
        -semihosting-config enable=on,target=native -kernel "$1" > "$work/out" 2>&1 && diff "$work/out" "$work/$2.want"
}
builder=/usr/share/arduino-builder
by_builder()            # by_builder SKETCH: found, preprocessed, compiled and linked by the tool of Arduino's IDE 1
{
    mkdir -p "$work/arduino-$1" &&
        arduino-builder -compile -hardware $builder -hardware $here/arduino -tools $builder \
            -libraries "$work/libraries" -fqbn test:qemu:mps2 -prefs="repository.path=$PWD" -warnings all -build-path "$work/arduino-$1" \
            "$library/examples/$1/$1.ino" && in_qemu "$work/arduino-$1/$1.ino.elf" "$1"
}
figures()               # of the README, in KB, rounded up: RAM with the stack, flash
{
    takes=$(arm-none-eabi-size "$work/arduino-Blink/Blink.ino.elf" | awk 'NR == 2 {
        ram = int(($2 + $3 + 999) / 1000)
        printf "takes %d KB of RAM, 3 of them for the stack, and %d KB of flash", ram, ($1 + $2 + 999) / 1000 }')
    echo "Blink $takes" && tr '\n' ' ' < "$library/README.md" | grep -F "Blink $takes"
}
# TOOLS: the tools that build the sketches (arduino, platformio); if TOOLS is empty, both
tools() { case " ${TOOLS:-$1} " in *" $1 "*) ;; *) return 1 ;; esac; }
if tools arduino && have arm-none-eabi-g++ qemu-system-arm arduino-builder; then
    for sketch in $sketches; do
        check "Arduino: $sketch by arduino-builder, in QEMU" by_builder "$sketch"
    done
    check "Arduino: the README's figures of Blink" figures
fi

# ---- PlatformIO ----
check "PlatformIO: unpacked" tar -xzf "$boards/gradckpt-platformio-$version.tar.gz" -C "$work"
package=$work/gradckpt
same_files()            # Arduino's, with another manifest
{
    diff -r "$library" "$package" > "$work/differ"
    sort "$work/differ" && [ "$(sed -n 's/^Only in .*: //p' "$work/differ" | sort | tr '\n' ' ')" = \
        "keywords.txt library.json library.properties " ] && [ "$(wc -l < "$work/differ")" -eq 3 ]
}
check "PlatformIO: Arduino's files" same_files
manifest()
{
    python3 - "$package" "$version" << 'end'
import json, os, sys
package, version = sys.argv[1:]
with open(os.path.join(package, "library.json")) as file:
    said = json.load(file)
assert set(said) <= {"name", "version", "description", "keywords", "license", "authors", "frameworks", "platforms",
                     "headers", "export", "examples"}, set(said)
assert said["name"] == "gradckpt" and said["version"] == version and said["license"] == "MIT"
assert len(said["description"]) <= 255 and said["frameworks"] == said["platforms"] == "*"
assert os.path.isfile(os.path.join(package, "src", said["headers"]))
assert sorted(said["export"]["include"] + ["library.json"]) == sorted(os.listdir(package))
examples = os.path.join(package, "examples")
assert sorted(e["name"] for e in said["examples"]) == sorted(os.listdir(examples))
for example in said["examples"]:
    assert sorted(example["files"]) == sorted(os.listdir(os.path.join(package, example["base"]))), example
end
}
! have python3 || check "PlatformIO: library.json" manifest
# Runs SCons instead of the package that PlatformIO would download.
with_scons()
{
    mkdir -p "$1/packages/tool-scons" && python3 - "$1/packages/tool-scons" << 'end'
import json, os, sys
from platformio.dependencies import get_core_dependencies
package = {"name": "tool-scons", "version": get_core_dependencies()["tool-scons"].lstrip("~")}
installed = dict(package, type="tool", spec={"owner": "platformio", "name": "tool-scons"})
for name, text in (("package.json", json.dumps(package)), (".piopm", json.dumps(installed)),
                   ("scons.py", "from SCons.Script import main; main()\n")):
    with open(os.path.join(sys.argv[1], name), "w") as file:
        file.write(text)
end
}
packs()                 # its check of the manifest; of licences it fetches a list, so that goes without
{
    cp -R "$package" "$work/packed" && grep -v '"license"' "$package/library.json" > "$work/packed/library.json" &&
        pio pkg pack -o "$work/packed.tar.gz" "$work/packed" && tar -tzf "$work/packed.tar.gz" | grep -x src/gradckpt.h
}
by_pio()                # by_pio SKETCH
{
    mkdir -p "$work/pio/$1/src" && cp $here/platformio/platformio.ini "$work/pio/$1" &&
        cp "$package/examples/$1"/* "$work/pio/$1/src" && pio run -d "$work/pio/$1" &&
        in_qemu "$work/pio/$1/.pio/build/mps2/firmware.elf" "$1"
}
have_scons() { python3 -c 'import platformio, SCons' 2> /dev/null || { echo "skip: no SCons beside pio" && false; }; }
if tools platformio && have pio && have_scons; then
    export GRADCKPT_ARCHIVE="file://$boards/gradckpt-platformio-$version.tar.gz"
    export PLATFORMIO_CORE_DIR="$work/pio/core" PLATFORMIO_SETTING_ENABLE_TELEMETRY=no
    export PLATFORMIO_SETTING_CHECK_PLATFORMIO_INTERVAL=9999 PLATFORMIO_SETTING_CHECK_PRUNE_SYSTEM_THRESHOLD=0
    check "PlatformIO: pio pkg pack" packs
    check "PlatformIO: SCons" with_scons "$PLATFORMIO_CORE_DIR"
    cp -R $here/platformio/platform "$work/pio"
    if have arm-none-eabi-g++ qemu-system-arm; then
        for sketch in $sketches; do
            check "PlatformIO: $sketch by pio run, in QEMU" by_pio "$sketch"
        done
    fi
fi
report boards
