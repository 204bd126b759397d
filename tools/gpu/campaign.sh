#!/bin/sh
# campaign.sh NAME MODEL PORT STEPS [OPTION...]: `leadline tune` on an SGLang server that speculates STEPS tokens deep (0: not at all),
# acceptance declared.
#
# The campaign's journal and logs go to $LEADLINE_HOME, its report to NAME.json and what was told on the way to NAME.narration in the
# working directory. OPTIONs go to leadline. $P (0.88) is the declared chance of a draft token.
set -eu
name=$1 model=$2 port=$3 steps=$4
shift 4
drafts=
[ "$steps" -gt 0 ] && drafts="--speculative-algorithm NEXTN --speculative-num-steps $steps --speculative-eagle-topk 1 --speculative-num-draft-tokens $((steps + 1))"
here=$(cd "$(dirname "$0")" && pwd)
export SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK=1 SGLANG_ENABLE_JIT_DEEPGEMM=0 SGLANG_ENABLE_SPEC_V2=1 HF_HUB_OFFLINE=1
echo "$(date -u +%H:%M:%S) $name begins"
python3 -m leadline tune --yes --json --config "$here/leadline.toml" "$@" \
    process:"$here/declared.sh" "${P:-0.88}" python3 -m sglang.launch_server --model-path "$model" --load-format dummy \
    --host 127.0.0.1 --port "$port" --attention-backend triton --sampling-backend pytorch --grammar-backend none \
    --mem-fraction-static 0.55 --enable-metrics --mamba-scheduler-strategy extra_buffer --random-seed 1 --log-requests-level 0 \
    $drafts >"$name.json" 2>"$name.narration" || echo "$name: leadline ended with $?"
echo "$(date -u +%H:%M:%S) $name ends"
