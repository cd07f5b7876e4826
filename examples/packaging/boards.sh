#!/bin/sh
# Run by make boards. Packs the header for Arduino, PlatformIO, ESP-IDF and Zephyr, into build/boards or the given folder.
# Every examples/packaging/*/archive.sh makes one archive. It runs in the repository's root, takes the folder for the
# archive, and uses these variables: CC; LINKED, the command that compiles a program for this machine; version, the
# header's version; host, a folder for programs compiled for this machine.
#
#     sh examples/packaging/boards.sh [FOLDER]
CC=${CC:-cc}
LINKED=${LINKED:-$CC -std=gnu99 -O1 -I.}
version=$(awk '/define GCKPT_VERSION_/ { v = v s $3; s = "." } END { print v }' gradckpt.h)
host=$(mktemp -d) # for programs that print plans
trap 'rm -rf "$host"' EXIT
export CC LINKED version host
folder=${1:-build/boards}
rm -rf "$folder"
mkdir -p "$folder" || exit 1
for recipe in examples/packaging/*/archive.sh; do
    sh "$recipe" "$folder" || { echo "$recipe: no archive" >&2 && exit 1; }
done
ls "$folder"/*-"$version".*
