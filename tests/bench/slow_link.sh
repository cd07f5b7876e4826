#!/bin/sh
# Prints a Markdown table of a step on two ranks in network namespaces with a limited link (make slow-link). Needs
# root, ip and tc; the ranks have a higher priority than other programs.
a=gckpt-$$-0 b=gckpt-$$-1
if [ "$(id -u)" -ne 0 ] || ! ip netns add $a 2> /dev/null; then
    echo 'limited: skipped: it takes root, ip netns and tc'
    exit 0
fi
trap 'ip netns del $a; ip netns del $b' EXIT
ip netns add $b && ip link add one netns $a type veth peer name two netns $b || exit 1
ip -n $a addr add 10.9.8.1/30 dev one && ip -n $b addr add 10.9.8.2/30 dev two || exit 1
ip -n $a link set one up && ip -n $b link set two up || exit 1
echo '| link | measured, Mb/s | mode | gathers | ms a step | predicted (waiting) | exchanges under way, ms | planned bytes a rank | weights |'
echo '|---|---|---|---|---|---|---|---|---|'
for rate in ${RATES:-500 1000 2500}; do
    tc -n $a qdisc replace dev one root tbf rate ${rate}mbit burst 256kb latency 20ms &&
        tc -n $b qdisc replace dev two root tbf rate ${rate}mbit burst 256kb latency 20ms || exit 1
    OMP_NUM_THREADS=1 nice -n -19 ip netns exec $a build/limited 0 10.9.8.1 10.9.8.2 "$rate Mb/s" &
    OMP_NUM_THREADS=1 nice -n -19 ip netns exec $b build/limited 1 10.9.8.2 10.9.8.1 "$rate Mb/s" || exit 1
    wait $! || exit 1
done
