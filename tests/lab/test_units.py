"""The unit files of ``tests/data/units`` as a real systemd reads them: each read, changed, and the change read back, or refused by name."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator

import pytest

from leadline.config import Deploy
from leadline.errors import LeadlineError
from leadline.execstart import parse
from leadline.probes import parse_show, same_command
from leadline.systemd import SystemdSupervisor
from test_execstart import CASES, UNITS, engine

from .host import Lab

PLACE = "/run/systemd/system"
SEEN_EARLIER = {
    "39-llama-two-commands": "Type=oneshot",  # only such a unit may have two commands
    "43-llama-open-quote": "bad unit file setting",
}
"""What a real host already refuses before leadline reads the line."""


def unit_of(name: str) -> str:
    return f"{name[3:]}.service"


@pytest.fixture(scope="module")
def installed(lab: Lab) -> Iterator[Lab]:
    """All of them loaded, none started, with the scripts and environment files that they name."""
    files = {f"{PLACE}/{unit_of(name)}": (UNITS / f"{name}.service").read_text() for name in CASES}
    for case in CASES.values():
        files |= case.get("files", {})
    put(lab, files)
    yield lab
    made = " ".join(f"'{path}' '{path}.d'" for path in files)
    lab.sh(f"rm -rf {made}; rmdir /opt/vllm /etc/sglang 2>/dev/null; systemctl daemon-reload")


def put(lab: Lab, files: dict[str, str]) -> None:
    box = io.BytesIO()
    with tarfile.open(fileobj=box, mode="w") as tar:
        for path, text in files.items():
            entry = tarfile.TarInfo(path.removeprefix("/"))
            entry.size, entry.mode = len(text.encode()), 0o755 if text.startswith("#!") else 0o644
            tar.addfile(entry, io.BytesIO(text.encode()))
    lab.root.run(["tar", "-x", "-C", "/"], stdin=box.getvalue(), timeout_s=120.0).check("lab")
    lab.sh("systemctl daemon-reload")


def open_unit(lab: Lab, name: str) -> SystemdSupervisor:
    unit = unit_of(name)
    return SystemdSupervisor(lab.root, unit, target_name=f"ssh://lab/{unit}", settings=Deploy(), engine=engine)


def test_what_is_refused_is_refused_for_its_reason(installed: Lab) -> None:
    wrong = {}
    for name, case in CASES.items():
        if "refused" not in case:
            continue
        try:
            open_unit(installed, name).service()
            wrong[name] = "accepted"
        except LeadlineError as error:
            if SEEN_EARLIER.get(name, case["refused"]) not in error.message:
                wrong[name] = f"{error.id}: {error.message}"
    assert not wrong


def test_systemd_reads_each_change_as_leadline_does(installed: Lab) -> None:
    """Unchanged arguments give the line as written; the changed line, in a drop-in, is what systemd then shows."""
    wrong: dict[str, str] = {}
    wanted, dropins = {}, {}
    for name, case in CASES.items():
        if "argv" not in case:
            continue
        unit = open_unit(installed, name)
        found = unit.service()  # raises when systemd shows another command than leadline reads
        read = unit._read()
        if list(found.command.argv) != case["argv"] or read.replace(found.command.argv) != read.source:
            wrong[name] = str(found.command.argv)
        old, new = case["change"]
        text = read.replace([new if arg == old else arg for arg in found.command.argv])
        dropins[f"{PLACE}/{unit_of(name)}.d/zz-change.conf"] = f"[Service]\nExecStart=\nExecStart={text}\n"
        wanted[unit_of(name)] = parse(text, unit._surroundings(unit._host.show(), text), engine=engine).shown
    put(installed, dropins)
    shown = installed.root.run(["systemctl", "show", "-p", "Id,ExecStart", "--", *wanted]).check("lab").text
    for part in shown.split("\n\n"):
        one = parse_show(part)
        if not any(same_command(text, wanted[one.get("Id")]) for text in one.exec_argv):
            wrong[one.get("Id")] = part
    assert not wrong
    assert len(wanted) >= 30
