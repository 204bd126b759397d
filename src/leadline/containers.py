"""``docker run … IMAGE ARGS`` (and podman, nerdctl), read. Pure.

Options follow docker-run(1) and podman-run(1): which take a value decides where the image stands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .errors import CannotRewrite

_NO_VALUE = frozenset(
    [
        "--detach",
        "--disable-content-trust",
        "--env-host",
        "--help",
        "--http-proxy",
        "--init",
        "--interactive",
        "--no-healthcheck",
        "--no-hosts",
        "--oom-kill-disable",
        "--privileged",
        "--publish-all",
        "--quiet",
        "--read-only",
        "--read-only-tmpfs",
        "--replace",
        "--rm",
        "--rmi",
        "--rootfs",
        "--sig-proxy",
        "--tty",
        "--tls-verify",
    ]
)
_SHORT_NO_VALUE = frozenset("dditPq")


def container_image(args: Sequence[str], index: int, where: str) -> int:
    """Index of IMAGE in ``docker run … IMAGE ARGS`` (options: docker-run(1), podman-run(1))."""
    at, program = index + 1, args[index].rpartition("/")[2]
    if at < len(args) and args[at] == "container":
        at += 1
    if at >= len(args) or args[at] != "run":
        raise CannotRewrite(
            where=where,
            why=f"{program} does not `run` a container here",
            fix="let ExecStart hold `docker run … IMAGE ARGS`",
        )
    at += 1
    while at < len(args) and args[at].startswith("-"):
        option = args[at]
        if option == "--":
            at += 1
            break
        if option.startswith("--"):
            at += 1 if "=" in option or option in _NO_VALUE else 2
        else:
            letters = option[1:]
            flags = len(letters) - len(letters.lstrip("".join(_SHORT_NO_VALUE)))
            at += 1 if flags == len(letters) or len(letters) > flags + 1 else 2
    if at >= len(args):
        raise CannotRewrite(where=where, why="no image was found in its container command", fix="write options as --name=value")
    return at


def published_ports(options: Sequence[str]) -> list[tuple[str, str]]:
    """``(host, container)`` of every ``-p``/``--publish`` with both sides."""
    found = []
    for at, option in enumerate(options):
        value = ""
        if option in ("-p", "--publish") and at + 1 < len(options):
            value = options[at + 1]
        elif option.startswith("--publish="):
            value = option.partition("=")[2]
        elif re.fullmatch(r"-p\d.*", option):
            value = option[2:]
        parts = value.partition("/")[0].split(":")
        if len(parts) >= 2 and parts[-1] and parts[-2]:
            found.append((parts[-2], parts[-1]))
    return found


def entrypoints(image: str, options: Sequence[str]) -> list[tuple[str, ...]]:
    """What an image starts before ARGS: ``--entrypoint`` if given, else what the engines' published images are known to start."""
    for at, option in enumerate(options):
        if option == "--entrypoint" and at + 1 < len(options):
            return [(options[at + 1],)]
        if option.startswith("--entrypoint="):
            return [(option.partition("=")[2],)]
    name = image.partition("@")[0]
    if "vllm" in name:
        return [("vllm", "serve"), ("python3", "-m", "vllm.entrypoints.openai.api_server")]
    if "llama.cpp" in name or "llama-server" in name:
        return [("llama-server",)]
    return [("python3", "-m", "sglang.launch_server")] if "sglang" in name else []
