# power_cut.sh - cuts the power within saves on real file systems: sh tests/power_cut/power_cut.sh [ITERATIONS [FS..]]
#
# A device records the blocks and flushes of a save. Every beginning of this record, and ITERATIONS (1000)
# reorderings, are mounted and loaded, for each kind of save and each file system (blocks.py, saves.c). FS is ext4
# with two sets of options, btrfs and xfs, if mkfs and the kernel support them, and vfat, alone and after fsck.vfat,
# in user-mode Linux (linux.uml, guest.c). Then saves that omit an fsync are tested: they must fail. Needs python3,
# root, /dev/fuse, and loop devices or linux.uml; if one is missing, names it and exits with status 77.
# tests/power_cut/test_cuts.c, a part of make test, needs none of these, since it uses a model of the least that file
# systems promise. CC, LINKED (compiler, options and object of the header) as for other scripts.
B=build/power
tries=${1:-1000}
[ $# -eq 0 ] || shift
systems=${*:-ext4 ext4,noauto_da_alloc,data=writeback btrfs xfs vfat vfat,fsck}
skip()
{
    echo "skip: $*"
    exit 77
}
command -v python3 > /dev/null || skip "no python3"
[ "$(uname)" = Linux ] || skip "loop devices and FUSE of Linux are needed"
[ "$(id -u)" -eq 0 ] || skip "power cuts of blocks need root"
[ -c /dev/fuse ] || skip "no /dev/fuse"
[ -c /dev/loop-control ] || command -v linux.uml > /dev/null || skip "no loop devices, no user-mode Linux"
mkdir -p $B
if [ -z "$LINKED" ]; then
    MAKEFLAGS= make -s build/gradckpt.o || exit 1
    LINKED="${CC:-cc} -O1 -std=gnu99 -DGRADCKPT_IMPLEMENTED -I. build/gradckpt.o $(grep -o -e -fopenmp build/options)"
fi
$LINKED -DPLAN_CHECK_OFF='"only saves count"' -Isrc -Itests -Iexamples tests/power_cut/saves.c -lm -lpthread -o $B/saves || exit 1
${CC:-cc} -O1 -std=gnu99 tests/power_cut/guest.c -o $B/guest || exit 1
export OMP_NUM_THREADS=1
failed=0 ran=0
cut() # cut FS KIND SAVES ITERATIONS
{
    python3 tests/power_cut/blocks.py $B/saves "$2" "$1" "$3" "$4"
}
for fs in $systems; do
    for kind in one ranks train folder; do
        cut "$fs" $kind 4 "$tries"
        case $? in
        0) ran=1 ;;
        77) break ;;
        *) failed=1 ;;
        esac
    done
done
[ $ran -eq 1 ] || [ $failed -eq 1 ] || exit 77
found() # found FS KIND BROKEN
{
    POWER_BREAK=$3 cut "$1" "$2" 4 10 > $B/broken.txt
    status=$?
    sed -n "s/^$2 on /without fsync ($3): &/p" $B/broken.txt
    if [ $status -ne 77 ] && ! grep -q ' [1-9][0-9]* wrong;' $B/broken.txt; then
        echo "FAIL: saves ($2) on $1 without fsync ($3) are not found"
        failed=1
    fi
}
for fs in ext4,noauto_da_alloc vfat; do
    case " $systems" in *" ${fs%%,*}"*) ;; *) continue ;; esac
    for broken in file all; do
        for kind in one ranks; do
            found $fs $kind $broken
        done
    done
done
exit $failed
