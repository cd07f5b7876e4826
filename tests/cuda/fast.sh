#!/bin/sh
# fast.sh - estimates the speed of GCKPT_BF16_FAST without a device. It prints a table about the machine code that nvcc
# generates for each kernel, and the time of a step of GPT-2 124M at measured rates (tests/bench/launches.cu).
#
#     sh tests/cuda/fast.sh [ARCH]             tables for sm_ARCH (90a); needs nvcc, cuobjdump and nvdisasm in PATH
#
# For each kernel the table has registers, spills, and counts of instructions in one iteration of the loop around its
# mma: all instructions (for attention also those for infinite operands, which rarely run), mma, ldmatrix, copies of 16
# bytes (cp.async), and other instructions per copy. A nested loop counts as many times as it iterates, and only on the
# path for addresses that are multiples of 16. For kernels by wgmma, a second table has the innermost loop with most wgmma:
# all instructions, wgmma, loads by TMA (of the thread that issues them) and waits for mbarriers. There a nested loop counts
# once: it issues a load, or runs again only where a wait is not over.
cd "$(dirname "$0")/../.." || exit 1
arch=${1:-90a}
B=build/fast-$arch
mkdir -p "$B"
make -s build/launches || exit 1
nvcc -O3 -std=c++17 -fmad=false -arch="sm_$arch" -Xptxas -v -c gradckpt_cuda.cu -o "$B/cuda.o" > "$B/log" 2>&1 ||
    { cat "$B/log"; exit 1; }
cuobjdump -sass "$B/cuda.o" > "$B/sass" || exit 1

rm -f "$B/wgmma"
awk -v wgmma="$B/wgmma" '
FILENAME ~ /log$/ {
    if (/Compiling entry/) { split($0, part, "\047"); name = part[2] }
    else if (/spill stores/) spills[name] = $5
    else if (/Used/) for (i = 1; i < NF; i++) if ($(i + 1) ~ /^registers/) registers[name] = $i
    next
}
# A backward jump closes a loop. The number of iterations of a loop nested in the widest loop follows from known totals
# of that loop: in products with tiles of 128 x 128, a thread executes 64 mma and copies each operand 4 times; in those
# with tiles of 64 x 64, 16 mma and 2 copies. Among the paths through the widest loop, the function takes one with the
# most copies and ldmatrix (or wgmma and TMA loads); among these, the shortest.
function finish(    i, j, best, mma, total, copies, matrices, waits, own, copying, times, cost, next_of, last, needed)
{
    if (!n || name !~ /4fast/ || name ~ /map_kernel/) return
    for (i = 1; i <= jumps; i++) jump[jump_from[i]] = at[jump_to[i]]
    mma = matrices = copies = waits = total = 0
    needed = by_wgmma ? "^(HGMMA|UTMALDG)" : "^(LDGSTS|LDSM)"
    best = by_wgmma ? innermost() : widest()
    if (best) {
        for (j = from[best]; j <= to[best]; j++) weight[j] = 1
        for (i = 1; i <= loops; i++) {
            if (by_wgmma || i == best || from[i] < from[best] || to[i] > to[best]) continue
            own = copying = 0
            for (j = from[i]; j <= to[i]; j++) {
                own += op[j] ~ /^HMMA/
                copying += op[j] ~ /^LDGSTS/
            }
            times = own ? turns(name, 64, 16, own) / own : copying ? turns(name, 4, 2, 4) / copying : 0
            for (j = from[i]; j <= to[i]; j++) weight[j] = times
        }
        last = to[best]
        cost[last] = 0
        for (j = last - 1; j >= from[best]; j--) {
            next_of[j] = j + 1
            if (jump[j] > j && jump[j] <= last && (always[j] || cost[jump[j]] < cost[j + 1])) next_of[j] = jump[j]
            cost[j] = cost[next_of[j]] + weight[j] * (op[j] ~ needed ? -1000 : 1)
        }
        for (j = from[best]; j; j = j < last ? next_of[j] : 0) {
            total += weight[j]
            mma += weight[j] * (op[j] ~ (by_wgmma ? "^HGMMA" : "^HMMA"))
            matrices += weight[j] * (op[j] ~ /^LDSM/)
            copies += weight[j] * (op[j] ~ /^(LDGSTS|UTMALDG)/)
            waits += weight[j] * (op[j] ~ /^SYNCS\.PHASECHK/)
        }
    }
    if (by_wgmma) {
        printf "| %s | %d | %d | %d | %d | %d | %d |\n", short(name), registers[name], spills[name], total, mma, copies, waits > wgmma
        return
    }
    printf "| %s | %d | %d |", short(name), registers[name], spills[name]
    if (best && copies) printf " %d | %d | %d | %d | %.1f |\n", total, mma, matrices, copies, (total - mma - matrices) / copies
    else print " - | - | - | - | - |"
}
function widest(    i, j, own, best) # loop that has an mma
{
    for (i = 1; i <= loops; i++) {
        own = 0
        for (j = from[i]; j <= to[i]; j++) own += op[j] ~ /^HMMA/
        if (own && (!best || to[i] - from[i] > to[best] - from[best])) best = i
    }
    return best
}
function innermost(    i, j, best) # of the loops with wgmma that contain no other, the one with most, then the shortest
{
    for (i = 1; i <= loops; i++) {
        count[i] = 0
        for (j = from[i]; j <= to[i]; j++) count[i] += op[j] ~ /^HGMMA/
    }
    for (i = 1; i <= loops; i++) {
        for (j = 1; j <= loops; j++)
            if (j != i && count[j] && from[j] >= from[i] && to[j] <= to[i]) break
        if (j > loops && count[i] && (!best || count[i] > count[best] ||
            (count[i] == count[best] && to[i] - from[i] < to[best] - from[best]))) best = i
    }
    return best
}
function turns(name, large, small, other)
{
    return name ~ /product_kernelILi128/ ? large : name ~ /product_kernelILi64/ ? small : other
}
function short(name)
{
    sub(/.*4fast[0-9]+/, "", name)
    sub(/EEvNS.*/, "", name)
    sub(/E?NS_6Values.*|EPKf.*|ENS0_.*|Ei.*/, "", name)
    gsub(/ILi|ELi/, " ", name)
    gsub(/ELNS0_8EpilogueE0/, " store", name)
    gsub(/ELNS0_8EpilogueE1/, " stats", name)
    gsub(/ELNS0_8EpilogueE2/, " gradients", name)
    gsub(/ELb|ILb/, " ", name)
    sub(/E+$/, "", name)
    return name
}
/Function :/ { finish(); name = $3; n = loops = jumps = by_wgmma = 0; split("", at); split("", jump); split("", always); next }
/^ +\/\*[0-9a-f]+\*\// {
    n++
    at[$1] = n
    word = $2 ~ /^@/ ? $3 : $2
    op[n] = word
    by_wgmma += word ~ /^HGMMA/
    if (word ~ /^BRA/ && match($0, /0x[0-9a-f]+ ;/)) {
        target = "/*" sprintf("%4s", substr($0, RSTART + 2, RLENGTH - 4)) "*/"
        gsub(/ /, "0", target)
        if (target in at && at[target] < n) { from[++loops] = at[target]; to[loops] = n }
        jump_from[++jumps] = n
        jump_to[jumps] = target
        always[n] = $2 !~ /^@/ && $0 !~ /BRA !?U?P[0-9]/
    }
}
END { finish() }' "$B/log" "$B/sass" | sort > "$B/kernels"
echo "| kernel | registers | spills | instructions | mma | ldmatrix | copies | others a copy |"
echo "|---|---|---|---|---|---|---|---|"
cat "$B/kernels"
if [ -s "$B/wgmma" ]; then
    echo
    echo "| kernel by wgmma | registers | spills | instructions | wgmma | TMA loads | mbarrier waits |"
    echo "|---|---|---|---|---|---|---|"
    sort "$B/wgmma"
fi
echo
build/launches 16
