#!/bin/sh
# Prints a Markdown table of the time of a step on 1, 2, 4 and 8 processes of one thread each (make scaling). If root
# starts this script, the processes get a higher priority than other programs.
root= before=
[ "$(id -u)" -ne 0 ] || root=--allow-run-as-root before='nice -n -19'
ranks()
{
    n=$1
    shift
    OMP_NUM_THREADS=1 $before mpirun $root --oversubscribe -n "$n" "$@"
}
echo '| ranks | mode | ms a step | exchanges under way, ms | of that hidden | MB a rank sent | least, MB | planned bytes a rank | weights |'
echo '|---|---|---|---|---|---|---|---|---|'
for n in 1 2 4 8; do
    for mode in exact fast state gradients values; do
        [ "$n" -gt 1 ] || [ $mode = exact ] || continue
        ranks $n build/scaling $mode || exit 1
    done
done
