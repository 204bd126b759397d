"""Everything a host can say about a unit at one moment, kept verbatim: the evidence that ``doctor`` reads.

One round trip: a small POSIX shell script runs every layer's command on the host and its output is split here. A layer that
this account may not see says so in its own text; nothing is left out silently.  What needs root is asked for with ``sudo -n``
where the account has it, and never prompts.
"""

from __future__ import annotations

import re
import time

from .mask import mask
from .probes import journal_hidden
from .records import Evidence, Exit, Source
from .target import Target

LIMIT_BYTES = 4 << 20
MARK = "@@leadline-layer:"

# $1 unit, $2 "--user" or "", $3 invocation or "", $4 control group or "". Every command is bounded in output and time.
SCRIPT = r"""
unit=$1 scope=$2 invocation=$3 group=$4
export LC_ALL=C SYSTEMD_PAGER= SYSTEMD_COLORS=0
S=
if [ -z "$scope" ] && [ "$(id -u)" != 0 ] && sudo -n true 2>/dev/null; then S='sudo -n'; fi
layer() { printf '\n%s%s\n' '@@leadline-layer:' "$1"; }
layer 'systemctl show'
show=$(systemctl $scope show --no-pager -- "$unit" 2>&1)
printf '%s\n' "$show"
[ -n "$group" ] || group=$(printf '%s\n' "$show" | sed -n 's/^ControlGroup=//p')
layer 'unit file'
printf '%s\n' "$show" | sed -n 's/^FragmentPath=//p;s/^DropInPaths=//p' | tr ' ' '\n' | while read -r path; do
  [ -z "$path" ] || { echo "# $path"; cat "$path" 2>&1; }
done
layer journal
if [ -n "$invocation" ]; then
  $S journalctl $scope --no-pager -o short-iso -n 4000 "_SYSTEMD_INVOCATION_ID=$invocation" + "INVOCATION_ID=$invocation" 2>&1
else
  $S journalctl $scope --no-pager -o short-iso -n 4000 -u "$unit" 2>&1
fi
layer kernel
kernel=$($S dmesg --time-format iso 2>/dev/null | tail -n 600)
[ -n "$kernel" ] || kernel=$($S journalctl --no-pager -k -o short-iso -n 600 2>&1)
printf '%s\n' "$kernel"
layer cgroup
[ -z "$group" ] || grep -H . "/sys/fs/cgroup$group/memory.events" "/sys/fs/cgroup$group/memory.max" "/sys/fs/cgroup$group/memory.current" 2>/dev/null
layer sockets
sockets=$($S ss -Hltnp 2>&1)
printf '%s\n' "$sockets"
layer gpu
if command -v nvidia-smi >/dev/null; then
  timeout 2 nvidia-smi --query-gpu=index,name,memory.used,memory.total,ecc.errors.uncorrected.volatile.total --format=csv,noheader 2>&1
  timeout 2 nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader 2>&1
fi
layer processes
if [ -n "$group" ] && [ "$group" != / ]; then
  pids=$(cat "/sys/fs/cgroup$group/cgroup.procs" 2>/dev/null | head -n 50 | tr '\n' ',')
  [ -z "$pids" ] || ps -ww -o pid,ppid,lstart,rss,stat,args -p "${pids%,}" 2>&1 | cut -c1-400
fi
layer disk
df -P / /tmp /dev/shm 2>/dev/null
layer memory
head -n 5 /proc/meminfo
layer http
if [ -n "${pids:-}" ] && command -v curl >/dev/null; then
  for port in $(printf '%s\n' "$sockets" | grep -E "pid=($(printf %s "${pids%,}" | tr ',' '|'))[,)]" | awk '{n=split($4,a,":"); print a[n]}' | sort -un | head -n 3); do
    code=$(curl -s -o /dev/null -m 1 -w '%{http_code}' "http://127.0.0.1:$port/health" 2>/dev/null)
    echo "GET http://127.0.0.1:$port/health -> ${code:-000}"
  done
fi
layer end
"""


def gather(
    target: Target, unit: str, *, scope: tuple[str, ...], env: tuple[str, ...], invocation: str, group: str, exit_: Exit | None
) -> Evidence:
    """All layers of ``unit``; ``invocation`` limits its journal to one launch where it is known. Raises what ``target.run`` raises."""
    argv = [*(("env", *env) if env else ()), "sh", "-s", "--", unit, " ".join(scope), invocation, group]
    done = target.run(argv, stdin=SCRIPT.encode(), timeout_s=60.0)
    sources = split(done.text)
    if not sources:
        done.check(target.name, "the host's shell did not run the evidence script")
    return Evidence(sources=sources, taken_s=time.time(), exit=exit_)


def split(text: str) -> tuple[Source, ...]:
    """The script's output, layer by layer; empty layers are left out, secrets are masked."""
    sources: list[Source] = []
    for block in re.split(rf"^{re.escape(MARK)}", text, flags=re.MULTILINE)[1:]:
        name, _, body = block.partition("\n")
        body = body.strip("\n")
        if not body or name == "end":
            continue
        truncated = len(body) > LIMIT_BYTES
        body = mask(body[-LIMIT_BYTES:])
        if name in ("journal", "kernel") and (journal_hidden(body) or "Operation not permitted" in body[:400]):
            body = f"(this account may not read the {name}; add it to the group systemd-journal)\n" + body
        sources.append(Source(name=name, text=body, truncated=truncated))
    return tuple(sources)
