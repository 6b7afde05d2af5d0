#!/bin/sh
# Works off a list and keeps no state but how far it is: it tells spotburst, and is told where to go on.
#
#   sh items.sh TASK ITEMS PAUSE FOLDER
set -eu
task=$1 items=$2 pause=$3 folder=$4

echo "task $task begins after item ${SPOTBURST_COMPLETED:-0}"
for item in $(seq $((${SPOTBURST_COMPLETED:-0} + 1)) "$items"); do
    sleep "$pause"
    # An item that was being worked on at a reclaim is done again, so its result has a name of its own.
    echo "result of item $item" >"$folder/$task-$item.new"
    mv "$folder/$task-$item.new" "$folder/$task-$item"
    spotburst progress "$item" "$items"
done
echo "task $task is done"
