#!/bin/sh
# The table of docs/distributed.md: a step by 1, 2, 4 and 8 processes of one thread each (make scaling).
ranks()
{
    n=$1
    shift
    OMP_NUM_THREADS=1 mpirun $([ "$(id -u)" -ne 0 ] || echo --allow-run-as-root) --oversubscribe -n "$n" "$@"
}
echo '| ranks | mode | ms a step | exchanges under way, ms | of that hidden | MB a rank sent | least, MB | planned bytes a rank | weights |'
echo '|---|---|---|---|---|---|---|---|---|'
for n in 1 2 4 8; do
    for mode in exact fast state gradients values; do
        [ "$n" -gt 1 ] || [ $mode = exact ] || continue
        ranks $n build/scaling $mode || exit 1
    done
done
