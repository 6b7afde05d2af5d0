#!/bin/sh
# Heat in a rod, in shell and awk: a program in any language that keeps its state in files.
#
#   sh heat.sh STEPS PAUSE RESULT
#
# It does three things that spotburst asks of such a program: its state is in one folder, it begins with what it finds there, and it
# writes a file under another name and renames it.
set -eu
steps=$1 pause=$2 result=$3
rod=${SPOTBURST_STATE_DIR:-.}/rod

if [ ! -f "$rod" ]; then
    awk 'BEGIN { print 0; for (i = 1; i <= 40; i++) print i == 1 ? 100 : 0 }' >"$rod.new"
    mv "$rod.new" "$rod"
fi
step=$(head -n 1 "$rod")
echo "begins at step $step"

while [ "$step" -lt "$steps" ]; do
    step=$((step + 1))
    awk -v step="$step" '
        NR > 1 { heat[++n] = $1 }
        END {
            print step
            for (i = 1; i <= n; i++)
                printf "%.17g\n", i == 1 || i == n ? heat[i] : heat[i] + (heat[i - 1] - 2 * heat[i] + heat[i + 1]) / 4
        }' "$rod" >"$rod.new"
    mv "$rod.new" "$rod"
    sleep "$pause"
done
cp "$rod" "$result"
echo "done after $steps steps"
