#!/bin/sh
# lane.sh GPU WORK STEP...: campaigns one after the other on one GPU. Steps: tune grid again joint vllm ngram. WORK holds bundle/, q3n/, smollm2/.
# UNTIL (seconds since the epoch) is when the last of them must have ended. WORK/again (two labels, separated by a semicolon) is what `again` compares.
set -u
gpu=$1 work=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
export CUDA_VISIBLE_DEVICES=$gpu LEADLINE_HOME=$work/home$gpu PYTHONUNBUFFERED=1
mkdir -p "$work/out" && cd "$work/out" || exit
at() { export PYTHONPATH="$here/../../src:$1:$work/bundle/shared"; }
minutes() { # minutes MOST [SPARE]: what is left, SPARE added, at most MOST
    awk -v until="${UNTIL:-9999999999}" -v now="$(date +%s)" -v most="$1" -v spare="${2:-0}" \
        'BEGIN { left = (until - now) / 60 + spare; printf "%.1f", left < most ? (left > 0.1 ? left : 0.1) : most }'
}
port=$((31000 + 100 * gpu))
for step in "$@"; do
    [ -f "$work/stop" ] && break
    port=$((port + 1))
    at "$work/bundle/sglang-0.5.12.post1"
    case $step in
    tune) "$here/campaign.sh" tune "$work/q3n" $port 3 --max-minutes "$(minutes 18)" ;;
    grid) # every depth with the running requests the frontier predicts to be the most; nothing is left to choose.
        # 2.4 minutes would be kept for a second launch of the first, for which there is none left
        "$here/campaign.sh" grid "$work/q3n" $port 1 --max-launches 11 --max-minutes "$(minutes 60 2.4)" \
            --ask "NEXTN 7 max_running_requests=27" --ask "NEXTN 6 max_running_requests=28" --ask "NEXTN 9 max_running_requests=24" \
            --ask "NEXTN 10 max_running_requests=23" --ask "NEXTN 8 max_running_requests=25" --ask "NEXTN 5 max_running_requests=30" \
            --ask "NEXTN 3 max_running_requests=34" --ask "NEXTN 4 max_running_requests=32" --ask "NEXTN 2 max_running_requests=37" ;;
    again) # two near ones once more, against speculation off
        until [ -s "$work/again" ] || [ -f "$work/stop" ]; do sleep 1; done
        [ -f "$work/stop" ] && break
        first=$(cut -d';' -f1 "$work/again") second=$(cut -d';' -f2 "$work/again")
        "$here/campaign.sh" again "$work/q3n" $port 0 --max-launches 3 --max-minutes "$(minutes 60 1)" --concurrency 16 --ask "$first" --ask "$second" ;;
    joint) at "$work/bundle/sglang-0.5.13.post1"
        "$here/campaign.sh" joint "$work/q3n" $port 3 --max-launches 5 --max-minutes "$(minutes 9)" --concurrency 1,16 --ask "NEXTN 10" --ask "NEXTN 5" ;;
    vllm | ngram)
        until [ -f "$work/smollm2/model.safetensors" ] || [ -f "$work/stop" ]; do sleep 1; done
        [ -f "$work/stop" ] && break
        if [ "$step" = vllm ]; then
            [ -d "$work/vllm-0.22.1" ] || continue
            at "$work/vllm-0.22.1:$work/bundle/sglang-0.5.12.post1"
            "$here/real.sh" vllm "$work/smollm2" $port vllm --max-minutes "$(minutes 8)"
        else
            "$here/real.sh" ngram "$work/smollm2" $port sglang --max-minutes "$(minutes 8)"
        fi ;;
    esac
done >>"$work/out/lane$gpu.log" 2>&1
echo done >"$work/lane$gpu.done"
