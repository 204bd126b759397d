#!/bin/sh
# declared.sh P COMMAND...: run an SGLang server whose acceptance is declared instead of measured.
#
# With P the chance that a draft token is accepted after all before it were, a round of k drafts yields 1 + P + ... + P^k tokens.
# SGLang reads that length from an environment variable, and it must differ for every depth; so this wrapper takes the depth
# from the arguments it was started with and sets the variable before it becomes the server. Step times stay real.
set -eu
p=$1
shift
steps=0
previous=
for word in "$@"; do
    [ "$previous" = --speculative-num-steps ] && steps=$word
    previous=$word
done
if [ "$steps" -gt 0 ]; then
    SGLANG_SIMULATE_ACC_LEN=$(awk -v p="$p" -v k="$steps" 'BEGIN { s = 0; t = 1; for (i = 0; i <= k; i++) { s += t; t *= p } printf "%.4f", s }')
    SGLANG_SIMULATE_ACC_METHOD=match-expected
    export SGLANG_SIMULATE_ACC_LEN SGLANG_SIMULATE_ACC_METHOD
    echo "declared acceptance: SGLANG_SIMULATE_ACC_LEN=$SGLANG_SIMULATE_ACC_LEN tokens a round at $steps steps ($p a position)" >&2
fi
exec "$@"
