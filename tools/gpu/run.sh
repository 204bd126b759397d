#!/bin/sh
# run.sh start BUNDLE WORK [JIT]  |  run.sh model GGUF WORK  |  run.sh collect WORK OUT SECONDS  |  run.sh stop WORK
# start: unpack (JIT: kernels that an earlier machine compiled), make the dummy model, begin one lane for each GPU in the background.
# collect: wait for the lanes, then pack what there is. stop: end what runs and show what is left.
set -u
running() { # processes whose command line or title holds the text
    for folder in /proc/[0-9]*; do
        tr '\0' ' ' <"$folder/cmdline" 2>/dev/null | grep -q -- "$1" && [ "${folder#/proc/}" != $$ ] && echo "${folder#/proc/}"
    done
}
here=$(cd "$(dirname "$0")" && pwd)
case $1 in
start)
    bundle=$2 work=$3
    mkdir -p "$work/bundle" "$work/out" "$work/lead"
    cp -r "$here/../../src" "$here/../../tools" "$work/lead" # a later call may bring other sources
    here=$work/lead/tools/gpu
    nvidia-smi --query-gpu=index,name,memory.used,memory.total,driver_version --format=csv
    tar -C "$work/bundle" -xJf "$bundle"
    [ -n "${4:-}" ] && tar -C "$HOME" -xJf "$4"
    (cd "$work/bundle" && python3 -m compileall -q -j 0 sglang-*/sglang sglang-*/transformers shared >/dev/null 2>&1)
    PYTHONPATH="$work/bundle/sglang-0.5.12.post1:$work/bundle/shared" python3 "$here/make_model.py" hybrid "$work/q3n"
    setsid nvidia-smi --query-gpu=timestamp,index,memory.used,utilization.gpu --format=csv,noheader,nounits -l 2 >"$work/out/gpu.csv" 2>&1 &
    gpus=$(nvidia-smi -L | wc -l) cores=$(nproc)
    if [ "$gpus" -ge 2 ]; then
        setsid taskset -c 0-$((cores / 2 - 1)) "$here/lane.sh" 0 "$work" tune ngram again >/dev/null 2>&1 &
        setsid taskset -c $((cores / 2))-$((cores - 1)) "$here/lane.sh" 1 "$work" grid >/dev/null 2>&1 &
    else
        setsid "$here/lane.sh" 0 "$work" tune grid >/dev/null 2>&1 &
    fi ;;
model) PYTHONPATH="$3/bundle/sglang-0.5.12.post1:$3/bundle/shared" python3 "$here/make_model.py" llama "$2" "$3/smollm2.new" && mv "$3/smollm2.new" "$3/smollm2" ;;
collect)
    work=$2 out=$3 until=$(($(date +%s) + $4)) lanes=$(nvidia-smi -L | wc -l)
    [ "$lanes" -gt 2 ] && lanes=2
    while [ "$(date +%s)" -lt "$until" ] && [ "$(ls "$work" | grep -c '^lane.*done$')" -lt "$lanes" ]; do sleep 1; done
    cat "$work"/out/lane*.log
    for log in "$work"/out/*.narration; do echo "== $log"; grep -E "start |ready|verdict|fail|error|left" "$log" | cut -c1-130 | tail -n 24; done
    tail -n 2 "$work/out/gpu.csv"
    tar -C "$work" --exclude=traces -cJf "$out/campaigns.tar.xz" out $(cd "$work" && ls -d home*) ;;
stop)
    work=$2
    touch "$work/stop"
    # leadline ends its server when it is asked to end
    for pid in $(running ' -m leadline tune '); do kill -TERM "$pid"; done
    for second in $(seq 60); do
        [ "$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | awk '{ s += $1 } END { print s < 100 }')" = 1 ] && break
        sleep 1
    done
    nvidia-smi --query-gpu=index,memory.used --format=csv
    echo "servers left: $(running 'sglang' | wc -l)"
    echo "listening:"
    awk '$4 == "0A" { print $2 }' /proc/net/tcp /proc/net/tcp6 | sort -u ;;
esac
