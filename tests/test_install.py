"""Hints name a command that installs, as this installation came about."""

import re
import shlex

import pytest
from test_layers import ALL, ROOT

from steelyard_device import install

FOLDER = {"url": "file:///home/me/my%20steelyard", "dir_info": {}}
EDITABLE = {**FOLDER, "dir_info": {"editable": True}}
GIT = {
    "url": "https://example.org/steelyard.git",
    "vcs_info": {"vcs": "git", "commit_id": "abc123"},
}
WHEEL = {"url": "file:///tmp/steelyard-1-py3-none-any.whl", "archive_info": {}}


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (None, ["steelyard[cuda,cupti]"]),
        (FOLDER, ["/home/me/my steelyard[cuda,cupti]"]),
        (EDITABLE, ["-e", "/home/me/my steelyard[cuda,cupti]"]),
        (
            GIT,
            ["steelyard[cuda,cupti] @ git+https://example.org/steelyard.git@abc123"],
        ),
        (WHEEL, [f"steelyard[cuda,cupti] @ {WHEEL['url']}"]),
    ],
)
def test_extras_come_from_where_the_installation_came_from(origin, words):
    """A checkout, a repository, a wheel; an index only if it was an index."""
    assert shlex.split(install.requirement(origin, ("cuda", "cupti"))) == words


def test_this_checkout_is_not_taken_from_an_index():
    """Nobody owns the name there before it is published."""
    assert str(ROOT) in install.command("cuda")
    assert "pip install -U" not in install.upgrade()


def test_every_hint_asks_one_place_for_the_command():
    """No other text names steelyard to pip."""
    wrong = []
    for name, path in ALL.items():
        text = re.sub(r"[\"']\s*f?[\"']", "", path.read_text())
        text = text.replace("tool.steelyard[", "")
        asks = re.search(
            r"\b(pip|pipx|uv)\b[^`.]* (install|add)[^`.]*\bsteelyard\b", text
        )
        if name != "steelyard_device.install" and (asks or "steelyard[" in text):
            wrong.append(name)
    assert wrong == []
