#!/bin/sh
# Tests training by several processes under OpenMPI (make mpi, which builds the programs first). There are more ranks
# than processors; the test with two hosts uses network namespaces, if this user may create them.
work=build/mpi
. tests/checks.sh
began=$(date +%s)

if ! mpirun --version 2> "$work/log" | grep -q 'Open MPI'; then
    echo "skip: no OpenMPI"
    exit 77
fi
root=
[ "$(id -u)" -ne 0 ] || root=--allow-run-as-root
export OMPI_MCA_btl_base_warn_component_unused=0 OMPI_MCA_mpi_yield_when_idle=1
# OpenMPI spins while it waits. All ranks run on one processor, so that this spinning is not counted once for each
# processor and rank; the CPU time of this check is then mostly that of the programs.
pin=
! command -v taskset > "$work/log" || pin="taskset -c $(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')"
# ranks N PROGRAM...: runs N ranks of a program. With --enable-recovery in $how, a killed rank does not end the others.
how=
ranks()
{
    n=$1
    shift
    timeout 60 $pin mpirun $root --oversubscribe --mca orte_base_help_aggregate 0 $how -n "$n" "$@"
}

# field FILE EVENT KEY: prints the value of the key in the first line with this event
field()
{
    sed -n "s/^{\"event\":\"$2\".*\"$3\":\"\{0,1\}\([^,\"}]*\).*/\1/p" "$1" | head -n 1
}

# losses FILE: prints the losses of all steps and evaluations, with norms and numbers of targets
losses()
{
    sed -n 's/.*"step":\([0-9]*\),"loss":\([^,]*\),"grad_norm":\([^,]*\),.*"targets":\([0-9]*\).*/\1 \2 \3 \4/p
        s/.*"step":\([0-9]*\),"val_loss":\([^,]*\).*/\1 \2/p' "$1"
}

# ---- examples/mpi.h alone ----------------------------------------------------------------------------------
for n in 2 4 8; do
    check "mpi.h by $n ranks" ranks $n build/mpi_transport
done
if awk '/MemAvailable/ { exit !($2 > 6000000) }' /proc/meminfo; then
    check "mpi.h: more than 2^31 bytes" ranks 2 build/mpi_transport large
else
    echo "skip: more than 2^31 bytes: less than 6 GB are free"
fi

# ---- one process, or many: the same losses and weights ------------------------------------------------------
small="--data examples/shakespeare.txt --layers 2 --heads 2 --dim 48 --context 16 --batch 9 --threads 1"
small="$small --warmup 2 --lr 3e-3 --dropout 0.1 --eval-iters 2"
run="$small --steps 4 --eval-every 2 --virtual-ranks 8"
check "one process" sh -c "build/gpt $run --json $work/one.json && build/gpt-mpi $run --json $work/alone.json"
check "its build for MPI, alone" test "$(losses "$work/one.json")" = "$(losses "$work/alone.json")"
budget=$(field "$work/one.json" plan bytes)
expected="$(losses "$work/one.json") $(field "$work/one.json" end weights_hash)"
# same WHAT FILE: checks that the results in FILE equal those of one process, within the planned bytes
same()
{
    check "$1" test "$(losses "$2") $(field "$2" end weights_hash)" = "$expected"
    check "$1: bytes as planned" test "$(field "$2" plan bytes)" = "$(field "$2" end bytes_measured)" -a \
        -n "$(field "$2" plan bytes)"
}
for n in 1 2 4 8; do
    for shard in none state gradients values; do
        for plan in "--checkpoint store-all --micro-batch 2" "--checkpoint optimal --budget $budget --micro-batch 1"; do
            check "$n ranks, --shard $shard $plan" ranks $n build/gpt-mpi $run --shard $shard $plan \
                --json "$work/many.json"
            same "$n ranks, --shard $shard $plan: results" "$work/many.json"
        done
    done
done
# A ledger has the same bytes for every number of processes and every way to shard, and any of them audits it.
check "a ledger by one process" build/gpt $run --ledger "$work/one.ledger" --ledger-every 2
for shard in none state gradients values; do
    rm -f "$work/many.ledger"
    check "a ledger by 4 ranks, --shard $shard" ranks 4 build/gpt-mpi $run --shard $shard --ledger "$work/many.ledger" --ledger-every 2
    check "a ledger by 4 ranks, --shard $shard: the same bytes" cmp "$work/one.ledger" "$work/many.ledger"
    check "2 ranks audit, --shard $shard" sh -c "build/audit $work/one.ledger --step all \
        --program 'mpirun $root --oversubscribe -n 2 build/gpt-mpi --shard $shard' | grep '^audit  equal: 3 records'"
done
check "other virtual ranks, other bits" test "$(build/gpt $small --steps 4 --eval-every 0 --virtual-ranks 4 --json - 2> "$work/log" |
    sed -n 's/.*"weights_hash":"\([^"]*\).*/\1/p')" != "${expected##* }"
check "text and samples by one process only" sh -c "build/gpt $run --sample 20 | sed '/^sample/,\$!d; /^end/d' > $work/sampled &&
    mpirun $root --oversubscribe -n 4 build/gpt-mpi $run --shard values --sample 20 > $work/many.out &&
    sed '/^sample/,\$!d; /^end/d' $work/many.out | cmp - $work/sampled && test \"\$(grep -c '^end ' $work/many.out)\" = 1"

# ---- if one process refuses, all refuse ------------------------------------------------------------------
# refused STATUS PATTERN N OPTION...: checks that all N ranks end with the status, and that one prints a line that
# matches
refused()
{
    status=$1 pattern=$2
    shift 2
    check "refused: $pattern" fails_with "$status" "$pattern" ranks "$@"
}
refused 1 'set desc.ranks.virtual_ranks to 4 or more' 4 build/gpt-mpi $small --steps 2 --virtual-ranks 2
refused 2 'shard' 2 build/gpt-mpi $small --shard all
refused 1 'power of two' 3 build/gpt-mpi $small --virtual-ranks 4
refused 1 'No such file' 2 sh -c "exec build/gpt-mpi $run --data \$([ \$OMPI_COMM_WORLD_RANK = 0 ] && echo README.md || echo none)"
refused 1 'differ' 2 sh -c "exec build/gpt-mpi $run --lr 1e-\$((3 + OMPI_COMM_WORLD_RANK))"
check "--help by one process only" sh -c "test \"\$(mpirun $root --oversubscribe -n 2 build/gpt-mpi --help | grep -c '^Exit')\" = 1"
[ ! -w /dev/full ] || refused 1 '/dev/full' 2 build/gpt-mpi $run --json /dev/full

# ---- the accumulation fault (means of unequal micro-batches), by processes with unequal numbers of tokens -------
for n in 1 2 4; do
    check "accumulation by $n ranks" sh -c "mpirun $root --oversubscribe -n $n build/accumulation-mpi $work/$n.svg 40 > $work/accumulation.$n"
    check "by $n ranks: the right way's bits" test "$(grep '^4 virtual ranks  ' "$work/accumulation.$n")" = \
        "$(grep '^4 virtual ranks  ' "$work/accumulation.1")"
done
for n in 2 4; do
    check "by $n ranks: means of means end with too much loss" grep -q '^mean of means *ranks .* 0\.[01][1-9][0-9]* too much' \
        "$work/accumulation.$n"
done

# ---- ranks that die or hang --------------------------------------------------------------------------------
kill_all()
{
    for pid in $(cat "$work"/pid.* 2> /dev/null); do
        kill -KILL "$pid" 2> /dev/null
    done
    rm -f "$work"/pid.*
}
# all_ended SECONDS: returns 0 once no rank is alive, except perhaps rank number $but; returns 1 after SECONDS
all_ended()
{
    tenths=0
    while [ $tenths -lt $(($1 * 10)) ]; do
        alive=0
        for rank in 0 1 2 3; do
            [ "$rank" = "$but" ] || ! kill -0 "$(cat "$work/pid.$rank")" 2> /dev/null || alive=1
        done
        [ $alive -ne 0 ] || return 0
        sleep 0.1
        tenths=$((tenths + 1))
    done
    return 1
}
trap kill_all EXIT
# faulted SIGNAL RANK PATTERN OPTION...: trains with 4 ranks, and sends RANK the signal once an event matches the
# pattern
faulted()
{
    signal=$1 rank=$2 pattern=$3
    shift 3
    kill_all
    rm -f "$work/faulted.json"
    ranks 4 sh -c "echo \$\$ > $work/pid.\$OMPI_COMM_WORLD_RANK; exec build/gpt-mpi $* --timeout 3 --json $work/faulted.json" \
        > "$work/faulted.out" 2>&1 &
    mpirun=$!
    wait_for "$work/faulted.json" "$pattern"
    kill "-$signal" "$(cat "$work/pid.$rank")"
    but=
    [ "$signal" != STOP ] || but=$rank
    check "SIG$signal to rank $rank at $pattern: the others end" all_ended 20
    [ -z "$but" ] || kill -KILL "$(cat "$work/pid.$rank")" 2> /dev/null
    wait $mpirun
}
long="$small --eval-every 0 --virtual-ranks 8 --seed 5"
saving="$long --save $work/faulted.index --save-every 1"
# resumed N OPTION...: resumes the interrupted training by N ranks for two more steps; the bits must be those of one
# process
resumed()
{
    n=$1
    shift
    check "it goes on by $n ranks" ranks $n build/gpt-mpi --resume "$work/faulted.index" --steps 0 --json "$work/at.json"
    at=$(field "$work/at.json" end step)
    check "from step ${at:-none}" ranks $n build/gpt-mpi --resume "$work/faulted.index" --steps $((${at:-0} + 2)) "$@" \
        --json "$work/on.json"
    build/gpt $long --steps $((${at:-0} + 2)) --json "$work/whole.json" > "$work/log" 2>&1
    check "to the same bits by $n ranks" test "$(field "$work/on.json" end weights_hash)" = \
        "$(field "$work/whole.json" end weights_hash)" -a -n "$(field "$work/whole.json" end weights_hash)"
}
faulted KILL 1 '"step":2,' $saving --steps 100000 --shard values
resumed 2 --shard state
how=--enable-recovery           # the ranks that are not killed must end by themselves
faulted KILL 3 '"step":3,' $saving --steps 100000
check "and say why" grep -q 'does not answer' "$work/faulted.out"
resumed 1
faulted KILL 0 '"step":5,' $saving --steps 100000 --shard gradients
resumed 8 --shard values
faulted STOP 2 '"step":4,' $saving --steps 100000 --shard state
check "and say why" grep -q 'does not answer' "$work/faulted.out"
resumed 4
faulted KILL 2 '"event":"plan"' $long --steps 100000
how=
faulted TERM 1 '"step":3,' $saving --steps 100000 --shard values
check "an interrupt of one ends all, saved" grep -q '^interrupted; continue with --resume .*faulted.index' "$work/faulted.out"
resumed 2 --shard values

# ---- hosts -------------------------------------------------------------------------------------------------
remove_hosts()
{
    ip link del gckpt-bridge 2> /dev/null
    for i in 1 2; do
        ip link del gckpt-$i 2> /dev/null # else a process there would keep the link alive
        ip netns del gckpt-$i 2> /dev/null
    done
}
make_hosts()
{
    ip link add gckpt-bridge type bridge && ip addr add 10.77.0.254/24 dev gckpt-bridge &&
        ip link set gckpt-bridge up || return 1
    for i in 1 2; do
        ip netns add gckpt-$i && ip link add gckpt-$i type veth peer name eth0 netns gckpt-$i &&
            ip link set gckpt-$i master gckpt-bridge up && ip -n gckpt-$i addr add 10.77.0.$i/24 dev eth0 &&
            ip -n gckpt-$i link set eth0 up && ip -n gckpt-$i link set lo up || return 1
    done
}
trap 'kill_all; remove_hosts' EXIT
remove_hosts
if [ "$(id -u)" -ne 0 ] || ! make_hosts > "$work/log" 2>&1; then
    echo "skip: hosts: no network namespaces here"
else
    printf '#!/bin/sh\nhost=gckpt-${1##*.}\nshift\nexec ip netns exec $host unshare -u sh -c "hostname $host; $*"\n' \
        > "$work/enter"
    chmod +x "$work/enter"
    on="--mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24"
    on="$on --mca plm_rsh_agent $PWD/$work/enter --host 10.77.0.1:2,10.77.0.2:2"
    how=$on
    for shard in none values; do
        check "two hosts, --shard $shard" ranks 4 build/gpt-mpi $run --shard $shard --json "$work/many.json"
        same "two hosts, --shard $shard: results" "$work/many.json"
    done
    how="$on --enable-recovery"
    kill_all
    rm -f "$work/faulted.json"
    ranks 4 sh -c "echo \$\$ > $work/pid.\$OMPI_COMM_WORLD_RANK; exec build/gpt-mpi $long --steps 100000 --timeout 3 \
        --json $work/faulted.json" > "$work/faulted.out" 2>&1 &
    mpirun=$!
    wait_for "$work/faulted.json" '"step":3,'
    ip link set gckpt-2 down
    but=
    check "a host whose cable is cut: all end" all_ended 20
    ip link set gckpt-2 up # mpirun itself needs the link to end
    wait $mpirun
    remove_hosts
fi
echo "$(($(date +%s) - began)) seconds"
report mpi
