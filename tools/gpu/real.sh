#!/bin/sh
# real.sh NAME MODEL PORT ENGINE [OPTION...]: `leadline tune` on a server with real weights and n-gram drafts: acceptance is measured.
set -eu
name=$1 model=$2 port=$3 engine=$4
shift 4
here=$(cd "$(dirname "$0")" && pwd)
export SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK=1 SGLANG_ENABLE_JIT_DEEPGEMM=0 HF_HUB_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_NO_USAGE_STATS=1
case $engine in
vllm) set -- "$@" process:python3 -m vllm.entrypoints.openai.api_server --model "$model" --host 127.0.0.1 --port "$port" \
    --attention-backend TRITON_ATTN --max-model-len 4096 --gpu-memory-utilization 0.3 --max-num-seqs 64 \
    --speculative-config '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4,"prompt_lookup_min":2}' ;;
sglang) set -- "$@" process:python3 -m sglang.launch_server --model-path "$model" --host 127.0.0.1 --port "$port" \
    --attention-backend triton --sampling-backend pytorch --grammar-backend none --mem-fraction-static 0.3 --enable-metrics \
    --max-running-requests 64 --log-requests-level 0 --speculative-algorithm NGRAM --speculative-num-draft-tokens 6 ;;
esac
echo "$(date -u +%H:%M:%S) $name begins"
python3 -m leadline tune --yes --json --config "$here/real.toml" "$@" \
    >"$name.json" 2>"$name.narration" || echo "$name: leadline ended with $?"
echo "$(date -u +%H:%M:%S) $name ends"
