#!/bin/sh
# lane.sh GPU WORK STEP...: campaigns one after the other on one GPU. Steps: tune grid joint vllm ngram. WORK holds bundle/, q3n/, smollm2/.
set -u
gpu=$1 work=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
export CUDA_VISIBLE_DEVICES=$gpu LEADLINE_HOME=$work/home$gpu PYTHONUNBUFFERED=1
mkdir -p "$work/out" && cd "$work/out" || exit
at() { export PYTHONPATH="$here/../../src:$1:$work/bundle/shared"; }
port=$((31000 + 100 * gpu))
for step in "$@"; do
    port=$((port + 1))
    at "$work/bundle/sglang-0.5.12.post1"
    case $step in
    tune) "$here/campaign.sh" tune "$work/q3n" $port 3 ;;
    grid) # every depth with the running requests the frontier predicts to be the most; nothing is left to choose
        "$here/campaign.sh" grid "$work/q3n" $port 1 --max-launches 10 --max-minutes 21 --ask "NEXTN 10 max_running_requests=23" \
            --ask "NEXTN 3 max_running_requests=34" --ask "NEXTN 5 max_running_requests=30" --ask "NEXTN 8 max_running_requests=25" \
            --ask "NEXTN 6 max_running_requests=28" --ask "NEXTN 2 max_running_requests=37" --ask "NEXTN 4 max_running_requests=32" ;;
    joint) at "$work/bundle/sglang-0.5.13.post1"
        "$here/campaign.sh" joint "$work/q3n" $port 3 --max-launches 5 --max-minutes 9 --concurrency 1,16 --ask "NEXTN 10" --ask "NEXTN 5" ;;
    vllm | ngram)
        until [ -f "$work/smollm2/model.safetensors" ]; do [ -f "$work/stop" ] && exit; sleep 1; done
        if [ "$step" = vllm ]; then
            [ -d "$work/vllm-0.22.1" ] || continue
            at "$work/vllm-0.22.1:$work/bundle/sglang-0.5.12.post1"
            "$here/real.sh" vllm "$work/smollm2" $port vllm
        else
            "$here/real.sh" ngram "$work/smollm2" $port sglang
        fi ;;
    esac
done >>"$work/out/lane$gpu.log" 2>&1
echo done >"$work/lane$gpu.done"
