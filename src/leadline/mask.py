"""Secrets are never shown: keys, tokens and passwords in arguments, environments, headers and URLs are masked."""

from __future__ import annotations

import re

HIDDEN = "***"

_NAME = r"[\w.-]*(?:api[_-]?key|apikey|token(?!iz|s\b|_|/|-l)|secret|passw(?:or)?d|passwd|credential|access[_-]?key|private[_-]?key|authorization|auth[_-]?key|hf[_-]?token|hugging_?face_hub_token|admin[_-]?key|bearer)"
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    # NAME=value, NAME: value, 'NAME': 'value', --name value, --name=value
    (re.compile(rf"(?i)(--{_NAME}(?:=|\s+))(?!-)(?:'[^']*'|\"[^\"]*\"|\S+)"), rf"\1{HIDDEN}"),
    (
        re.compile(
            rf"(?i)(['\"]?\b{_NAME}['\"]?\s*[=:]\s*)(?!None\b|null\b|True\b|False\b|\[\]|\d{{1,4}}\b)(?:'[^']*'|\"[^\"]*\"|(?:Bearer|Basic)\s+\S+|[^\s,;)}}\]]+)"
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"(?i)\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (
        re.compile(
            r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|ghp_[A-Za-z0-9]{16,}|github_pat_\w{16,}|AKIA[0-9A-Z]{12,}|xox[abprs]-[\w-]{8,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
        ),
        HIDDEN,
    ),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@:]+:[^\s/@]+@"), rf"\1{HIDDEN}@"),
)
_HINT = re.compile(r"(?i)key|token|secret|passw|credential|authoriz|bearer|basic|hf_|sk-|ghp_|github_pat|AKIA|xox|eyJ|://[^\s/]*@")


def mask(text: str) -> str:
    """``text`` with secrets replaced by ``***``. Idempotent; text without secrets is returned unchanged."""
    if not _HINT.search(text):
        return text
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
