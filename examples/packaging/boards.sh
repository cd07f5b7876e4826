#!/bin/sh
# make boards: the header as boards' own tools take it, an archive each, in build/boards or the folder that is named.
# Every examples/packaging/*/archive.sh makes one: it is run in the repository's root, gets the folder for the archive,
# and has from here: CC; LINKED, which compiles a program of public names for this machine; version, the header's; host,
# a folder for such programs.
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
