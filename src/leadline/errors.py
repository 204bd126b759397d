"""Every error leadline raises: its message, its exit status, its remedy.

A class's docstring is the message template (``{name}`` fields are filled from the keyword arguments), ``exit_code`` is
the process's exit status, ``remedy`` says what to do next.  The stable id of an error is its class name.  Bands:

====== =======================================================================
0      done; "change nothing" is a verdict and ends with 0; doctor: nothing failed
1, 2   doctor only: a failure was found (1), the evidence does not decide (2)
2      the command line itself could not be read
10-19  what was asked for cannot be understood or is not possible
20-29  the host: reaching it, rights on it, what stands on it
30-39  the service: it does not start, does not answer, or is not ours
40-49  the campaign's own memory: journal, lock, disk
50-59  measuring
70     a defect in leadline
130    interrupted (the service stands as it was found; the message says so, or what else is true of the verb)
====== =======================================================================

``docs/errors.md`` is generated from this module by ``python -m leadline.errors``; a test keeps it equal.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import ClassVar


class LeadlineError(Exception):
    """leadline could not go on: {what}."""

    exit_code: ClassVar[int] = 70
    remedy: ClassVar[str] = "this is a defect in leadline: please report it with the journal of the campaign"

    def __init__(self, **fields: object) -> None:
        self.fields = {name: str(value) for name, value in fields.items()}
        template = " ".join((type(self).__doc__ or "").split())
        self.message = string.Formatter().vformat(template, (), _Unfilled(self.fields)).rstrip(".")
        self.next = string.Formatter().vformat(self.remedy, (), _Unfilled(self.fields))
        super().__init__(self.message)

    @property
    def id(self) -> str:
        return type(self).__name__

    def as_dict(self) -> dict[str, object]:
        """What ``--json`` prints for an error."""
        return {"error": self.id, "exit_code": self.exit_code, "message": self.message, "next": self.next, "fields": self.fields}


class _Unfilled(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


# -- 10-19: what was asked for ----------------------------------------------------------------------------------------


class ConfigError(LeadlineError):
    """{place}: {what}."""

    exit_code = 10
    remedy = "{fix}"


class UnknownKnob(LeadlineError):
    """{engine} has no knob {knob!r}."""

    exit_code = 11
    remedy = "known knobs: {known}"


class NotAnEngine(LeadlineError):
    """no inference engine found in the command: {command}."""

    exit_code = 12
    remedy = "leadline knows sglang (python -m sglang.launch_server, sglang serve), vllm (vllm serve) and llama.cpp (llama-server); {hint}"


class BadTarget(LeadlineError):
    """{target!r} is not a target leadline understands."""

    exit_code = 13
    remedy = "write ssh://[user@]host[:port]/NAME.service, systemd:NAME.service, systemd-user:NAME.service, process:COMMAND, or (bench, doctor) an http(s):// URL; {hint}"


class CannotRewrite(LeadlineError):
    """the engine's arguments in {where} cannot be changed safely: {why}."""

    exit_code = 14
    remedy = "{fix}"


class NothingToTune(LeadlineError):
    """nothing can be tuned: {why}."""

    exit_code = 15
    remedy = "{fix}"


class BadLevels(LeadlineError):
    """levels {levels} cannot be measured: {why}."""

    exit_code = 16
    remedy = "give concurrencies of 1 and more, for example --concurrency 1,4,16, or (bench) rates above 0, for example --rate 2,8"


class BadWorkload(LeadlineError):
    """workload {workload}: {why}."""

    exit_code = 17
    remedy = "{fix}"


class Refused(LeadlineError):
    """the plan was not confirmed: nothing was touched."""

    exit_code = 18
    remedy = "run again and answer yes, or pass --yes"


class Unsupported(LeadlineError):
    """{what} is not supported {where}."""

    exit_code = 19
    remedy = "{fix}"


# -- 20-29: the host ---------------------------------------------------------------------------------------------------


class HostUnreachable(LeadlineError):
    """cannot reach {host}: {why}."""

    exit_code = 20
    remedy = "try `ssh {host} true` by hand; leadline uses your own OpenSSH configuration in batch mode"


class HostKeyRefused(LeadlineError):
    """the host key of {host} was refused: {why}."""

    exit_code = 21
    remedy = "connect once by hand with `ssh {host}` and check the key; leadline never accepts a key for you"


class NeedsRights(LeadlineError):
    """{account} may not {what} on {host}."""

    exit_code = 22
    remedy = "{fix}"


class UnitNotFound(LeadlineError):
    """{host} has no unit {unit}: {why}."""

    exit_code = 23
    remedy = "list what is there with `systemctl list-units --type=service`; {hint}"


class HostCommandFailed(LeadlineError):
    """on {host}, `{command}` ended with {status}: {stderr}."""

    exit_code = 24
    remedy = "run it by hand on the host; {hint}"


class ReadBackDiffers(LeadlineError):
    """{what} was written to {where} but the host reads back {found}."""

    exit_code = 25
    remedy = "the change was taken back; {hint}"


class HostInUse(LeadlineError):
    """another campaign holds {what}: {owner}, since {since}."""

    exit_code = 26
    remedy = "wait for it, or, if you are sure that it is gone: {fix}"


class NeighboursAtRisk(LeadlineError):
    """daemon-reload on {host} may take the GPUs away from running containers: {who}."""

    exit_code = 27
    remedy = "{fix}"


class HostTimeout(LeadlineError):
    """{host} did not answer within {seconds} s: {what}."""

    exit_code = 28
    remedy = "check the connection; the dead-man on the host restores the service by itself"


# -- 30-39: the service ------------------------------------------------------------------------------------------------


class PortTaken(LeadlineError):
    """port {port} is held by pid {pid} ({command}), which is not part of this launch."""

    exit_code = 30
    remedy = "stop that process or give the service another port; leadline neither measures nor ends a process it did not start"


class WrongServer(LeadlineError):
    """the server that answers on port {port} is not the one that was launched: {why}."""

    exit_code = 31
    remedy = "{fix}"


class LaunchFailed(LeadlineError):
    """{candidate} did not start ({how}, after {after_s} s): {line}."""

    exit_code = 32
    remedy = "{fix}"


class LaunchHung(LeadlineError):
    """{candidate} made no progress for {still_s} s: no log line, no CPU time; last line: {line}."""

    exit_code = 33
    remedy = "look at the log {log}; raise ready.still_s in leadline.toml if this engine pauses longer"


class NotServing(LeadlineError):
    """{url} does not serve: {why}."""

    exit_code = 34
    remedy = "{fix}"


class ServiceLost(LeadlineError):
    """the service ended while it was measured ({how}): {line}."""

    exit_code = 35
    remedy = "run `leadline doctor` on the same target; {hint}"


class NotRestored(LeadlineError):
    """the service could not be put back: {why}."""

    exit_code = 36
    remedy = "{fix}"


class MemoryNotFree(LeadlineError):
    """{what} did not come free within {seconds} s after the previous launch ended: {who}."""

    exit_code = 37
    remedy = "end the process that holds it, then run the same command again: the campaign resumes"


# -- 40-49: the campaign's own memory ----------------------------------------------------------------------------------


class JournalDamaged(LeadlineError):
    """the journal {path} cannot be read: {why}."""

    exit_code = 40
    remedy = "it was left as it is; start a new campaign with --fresh, or restore the file from a copy"


class JournalVersion(LeadlineError):
    """the journal {path} has format {found}; this leadline reads format {known}."""

    exit_code = 41
    remedy = "use the leadline that wrote it (its version stands in the journal: {writer}), or start a new campaign with --fresh"


class JournalBusy(LeadlineError):
    """another leadline (pid {pid}) writes the journal {path}."""

    exit_code = 42
    remedy = "wait for it or end it; `leadline status` and `leadline watch` read beside it"


class DiskFull(LeadlineError):
    """no space left while writing {path}."""

    exit_code = 43
    remedy = "free some space and run the same command again: a campaign resumes, and nothing that it measured is lost"


class NoCampaign(LeadlineError):
    """no campaign {which} was found under {where}."""

    exit_code = 44
    remedy = "`leadline status --all` lists the campaigns of this machine"


class OtherConditions(LeadlineError):
    """{result} was made under other conditions: {what}."""

    exit_code = 45
    remedy = "unlike conditions are never pooled; {fix}"


# -- 50-59: measuring --------------------------------------------------------------------------------------------------


class MeasurementInvalid(LeadlineError):
    """{level} could not be measured: {why}."""

    exit_code = 50
    remedy = "{fix}"


class ClientBottleneck(LeadlineError):
    """the load generator was the bottleneck at {level}: {why}."""

    exit_code = 51
    remedy = "give the client a core of its own, or lower the level"


class TrafficUnknown(LeadlineError):
    """the service's own traffic is not known from {source}: {why}."""

    exit_code = 52
    remedy = "{fix}"


class Interrupted(LeadlineError):
    """interrupted: {what}."""

    exit_code = 130
    remedy = "{fix}"


def all_errors() -> Iterator[type[LeadlineError]]:
    """Every error class, by exit status."""

    def walk(cls: type[LeadlineError]) -> Iterator[type[LeadlineError]]:
        for sub in cls.__subclasses__():
            yield sub
            yield from walk(sub)

    found: list[type[LeadlineError]] = [LeadlineError, *walk(LeadlineError)]
    yield from sorted(found, key=lambda cls: (cls.exit_code, cls.__name__))


def table() -> str:
    """The table of ``docs/errors.md`` in Markdown."""
    rows = ["| exit | id | message | what to do |", "|---|---|---|---|"]
    for cls in all_errors():
        rows.append(f"| {cls.exit_code} | `{cls.__name__}` | {' '.join((cls.__doc__ or '').split())} | {cls.remedy.replace('|', '/')} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(table(), end="")
