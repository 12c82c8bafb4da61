"""Pages of HTML: complete, harmless, and files that `import` reads."""

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser

import outcomes
import pytest
import shell
import trials

from steelyard.analyse import kinds
from steelyard.analyse.stats import Estimate
from steelyard.gate import document, words
from steelyard.machine import decoding
from steelyard.report import columns, stored
from steelyard.report.formats import Results
from steelyard.report.pages import case, gate, history, html, icicle, machines, run
from steelyard.store import archive, series
from steelyard.store.store import Store

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'</script>\x1b[31m\ud800"


class Elements(HTMLParser):
    """The elements of a page, with their attributes; the text of scripts and styles."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.found, self.raw, self.text = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        """Note an element."""
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        """Note a text."""
        inside = self.found[-1][0] if self.found else ""
        (self.raw if inside in {"script", "style"} else self.text).append(data)


def results(made=None, **changes):
    """Return a run with its trials and rows."""
    of = trials.run(state="finished", **changes)
    made = made if made is not None else measured()
    return Results(of, made, stored.rows_of(of, made, None))


def measured(count=3, blocks=4, modes=("kernel/cold", "kernel/warm"), windows=40):
    """Return trials of ``count`` cases."""
    return [
        trials.trial(
            f"copy[n={n}]",
            [1000 * (n + 1) + 7 * block + (37 * w) % 50 for w in range(windows)],
            mode=mode,
            block=block,
            doubts=("preempted",) if n == 1 else (),
        )
        for block in range(blocks)
        for n in range(count)
        for mode in modes
    ]


def test_foreign_text_is_never_markup():
    """Cases, axes, doubts, facts, errors, commands and machines may say anything."""
    evil = trials.trial(
        f"{EVIL}[n=1]",
        axes={EVIL: EVIL},
        doubts=(EVIL,),
        facts={EVIL: EVIL, "bytes": 8},
        hashes={"file": EVIL},
        ledger={EVIL: 500.0},
        mode="latency/warm",
    )
    failed = trials.trial(f"{EVIL}[n=2]", (), error=EVIL, axes={})
    machine = trials.FACTS | {"identity": dict.fromkeys(trials.FACTS["identity"], EVIL)}
    page = run.dumps(
        results([evil, failed], command=EVIL, tags=(EVIL,), machine=machine)
    )
    found = Elements(page)
    names = [name for name, _ in found.found]
    assert names.count("script") == 2
    assert "img" not in names
    assert not [
        a for _, all_of_it in found.found for a in all_of_it if a.startswith("on")
    ]
    assert "alert(1)" in "".join(found.text)
    assert page.isascii() or "\x1b" not in page
    page.encode()


def test_the_policy_lets_only_its_own_style_and_script_run():
    """Named by their hashes; nothing is fetched."""
    page = run.dumps(results())
    found = Elements(page)
    (policy,) = (said["content"] for _, said in found.found if said.get("http-equiv"))
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    for text in (style, script):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert not [said for _, said in found.found if "style" in said]
    assert "http:" not in page.replace("http://www.w3.org", "")
    assert "https:" not in page


def test_a_page_says_what_the_terminal_prints():
    """Every cell of every table of results."""
    found = results()
    text = "\n".join(Elements(run.dumps(found)).text)
    for sheet in columns.sheets(found.rows):
        assert sheet.title in text
        for row in sheet.rows:
            for column in sheet.columns:
                assert column.cell(row) in text


def test_a_block_that_knows_less_than_another_has_a_column_too():
    """Of its GPU, for example, in a file that somebody wrote."""
    made = [
        trials.trial(block=block, extra=extra)
        for block, extra in enumerate(({"gpu": trials.STATE}, {}))
    ]
    assert "by block" in run.dumps(results(made))


def test_bars_of_a_ledger_stand_one_behind_the_other():
    """Each as wide as its share of the call."""
    parts = {"submit": 100.0, "kernel": 650.0}
    call = trials.trial(mode="latency/warm", ticks=[1000] * 9, ledger=parts)
    (row,) = results([call]).rows
    drawn = Elements("".join(case.ledger(row))).found
    bars = [(float(a["x"]), float(a["width"])) for name, a in drawn if name == "rect"]
    shares = [(0, 0.1), (0.1, 0.65), (0.75, 0.25)]
    expected = [(case.WIDE * at, case.WIDE * share) for at, share in shares]
    assert [*sum(bars, ())] == pytest.approx([*sum(expected, ())], abs=0.1)


def test_headings_tables_and_pictures_are_named():
    """One h1, sections with headings, tables with captions and scopes, named pictures."""
    page = run.dumps(results())
    found = Elements(page).found
    names = [name for name, _ in found]
    assert names.count("h1") == 1
    assert names.count("table") == names.count("caption") > 0
    assert names.count("svg") == len(
        re.findall(r"<svg[^>]*><title>[^<]+</title>", page)
    )
    assert all(said["scope"] in {"col", "row"} for name, said in found if name == "th")
    ids = [said["id"] for _, said in found if "id" in said]
    assert len(ids) == len(set(ids))
    links = [said["href"] for name, said in found if name == "a"]
    assert {link[1:] for link in links} <= set(ids)


def test_import_reads_the_run_of_a_page(tmp_path):
    """All of it but the folders of paths; what is there already stays."""
    first, second = (f"{tmp_path}/{name}.db" for name in "ab")
    of = trials.kept(first, measured(), command="steelyard run /home/me/suites")
    page = f"{tmp_path}/page.html"
    done = shell.command("report", "-o", page, "--store", first)
    for added in (24, 0):
        done = shell.command("import", page, "--store", second, code=None)
        assert f"{added} trials added" in done.output
    with Store.open(second) as store:
        assert store.trials(of.uid) == measured()
        assert store.find(of.uid).command == "steelyard run .../suites"
    small = f"{tmp_path}/small.html"
    asked = ["report", "-o", small, "--no-samples", "--store", first]
    shell.command(*asked)
    done = shell.command("import", small, "--store", second, code=4)
    assert "--samples" in done.output


def test_a_page_of_200_cases_can_be_mailed():
    """300 kB, in two modes."""
    found = results(measured(200))
    page = run.dumps(found)
    assert len(page.encode()) <= 300_000
    assert page.count("class=case") == 200


def test_a_gate_is_a_page_with_a_plot_that_verdict_reads(tmp_path):
    """Its changes in the words of the terminal, a mark each, and the outcome itself."""
    evil = EVIL.replace("\ud800", "")
    made = outcomes.outcome(
        *outcomes.EVERY,
        outcomes.finding(evil, note=evil, changes=(evil,), doubts=((evil,), ())),
        static=outcomes.STATIC,
    )
    page = gate.dumps(made)
    found = Elements(page)
    text = "\n".join(found.text)
    assert words.headline(made) in text
    for one in made.findings:
        assert words.change(one.judgement) in text
        assert words.interval(one.judgement) in text
    judged = sum(one.judgement is not None for one in made.findings)
    assert page.count("class=zero") + page.count('class="zero"') == judged
    assert [name for name, _ in found.found].count("script") == 2
    place = tmp_path / "gate.html"
    place.write_text(page)
    done = shell.command("verdict", "--from", str(place), code=None)
    assert done.exit_code == made.exit_code == 2
    assert "softmax[columns=768]" in done.output
    again = f"{tmp_path}/again.html"
    done = shell.command("report", str(place), "-o", again)
    done = shell.command("import", again, "--store", f"{tmp_path}/s.db", code=4)


def history_of(values, case="copy[n=1]"):
    """Return the history of one case, a run for each time."""
    return series.histories(
        series.Measured(
            case,
            "kernel/warm",
            "here",
            series.Point(
                f"{n:040x}"[::-1], f"{n:08x}", "2026-01-01T00:00:00", Estimate(v, v, v)
            ),
        )
        for n, v in enumerate(values)
    )


def test_a_history_has_its_steps_and_what_the_next_runs_would_show():
    """A commit a line, a picture of each case, a band of the smallest step."""
    noise = [math.sin(37 * n) for n in range(80)]
    stepped = history_of([1000 + x + 200 * (n >= 30) for n, x in enumerate(noise)])
    calm = history_of([1000 + x for x in noise], EVIL)
    page = history.dumps([*stepped, *calm, *history_of([])], ["store s.db"])
    found = Elements(page)
    text = "\n".join(found.text)
    assert "1 of 2 rows stepped, at 1 commit" in text
    assert "20.0% slower" in text
    assert "the next 4 runs show a step of 1.0% and more" in text
    assert page.count('class="band"') == 2
    assert [name for name, _ in found.found].count("script") == 2
    assert "0 of 0 rows" in history.dumps([], [])


def on_kinds(*cores):
    """Return histories of one case on machines of so many cores, each a tenth slower."""
    return {
        kinds.text({"cpu": EVIL, "cores": count}): history_of([1000 * 1.1**at] * 3)
        for at, count in enumerate(cores)
    }


def test_kinds_of_machines_stand_side_by_side():
    """Their facts, the latest time on each with its interval, and how far they differ."""
    only = {kinds.text({"gpu": "H200"}): history_of([10, 20], "of a GPU")}
    page = machines.dumps({**on_kinds(2, 8), **only}, ["store s.db"])
    found = Elements(page)
    text = "\n".join(found.text)
    assert "1 of 2 rows were measured on more than one kind" in text
    for said in ("kind 3", "H200", "1.10 x", "of a GPU", "is no verdict"):
        assert said in text
    assert [name for name, _ in found.found].count("script") == 2
    assert "0 of 0 rows" in machines.dumps({}, [])
    assert "slowest" not in machines.dumps(on_kinds(4), [])


def test_builds_are_an_icicle_of_phases(tmp_path):
    """Of a run's ledgers, and of a trace, whose equal paths are added up."""
    parts = {"interpreter": 200.0, "import": 500.0, "first kernel": 300.0}
    made = [
        trials.trial("b[n=1]", [1000] * 9, mode="build/first", block=b, ledger=parts)
        for b in range(2)
    ]
    text = "\n".join(Elements(run.dumps(results(made))).text)
    assert "b / n=1 build/first / import" in text
    spans = [
        {"ph": "M", "pid": 1, "tid": 0, "args": {"name": EVIL[:30]}},
        *(
            {"ph": "X", "pid": 1, "tid": 0, "name": name, "ts": ts, "dur": dur}
            for name, ts, dur in (
                ("build", 0, 100),
                ("trace", 0, 40),
                ("compile", 40, 60),
                ("build", 100, 50),
                ("compile", 110, 40),
                ("later", 150, 50),
            )
        ),
    ]
    whole = icicle.of_trace({"traceEvents": spans})
    times = {path[1:]: part.time for path, part in whole.walk()}
    assert times[()] == 200_000
    assert times["build",] == 150_000
    assert times["build", "compile"] == 100_000
    assert times["later",] == 50_000
    place = tmp_path / "trace.json"
    place.write_text(json.dumps({"traceEvents": spans}))
    page = f"{tmp_path}/t.html"
    shell.command("report", str(place), "-o", page)
    for wrong in ('{"traceEvents": []}', '{"traceEvents": 1}', '{"traceEvents"', "{}"):
        place.write_text(wrong)
        shell.command("report", str(place), "-o", page, code=4)


def test_a_store_is_a_folder_of_pages(tmp_path):
    """The index leads to the history, the last gate and the latest runs."""
    store = f"{tmp_path}/s.db"
    for n in range(3):
        started = f"2026-01-0{n + 1}T00:00:00"
        trials.kept(store, measured(2), started=started, writer={})
    document.keep(outcomes.outcome(*outcomes.EVERY), tmp_path)
    folder = tmp_path / "pages"
    asked = ["report", "store", "-o", str(folder), "--runs", "2", "--store", store]
    shell.command(*asked)
    index = Elements((folder / "index.html").read_text())
    links = {said["href"] for name, said in index.found if name == "a"} - {
        *("#main", "#runs", "#pages")
    }
    assert links | {"index.html"} == {place.name for place in folder.iterdir()}
    assert {"history.html", "gate.html"} < links
    assert len(links) == 4
    for what in ("history", "machines"):
        asked = ["report", what, "copy[n=1]", "-o", f"{tmp_path}/h.html"]
        shell.command(*asked, "--store", store)
    with Store.open(store) as opened:
        opened.begin(trials.run(machine={"identity": {"cpu": "other"}}))
    asked = ["report", "store", "-o", str(folder), "--store", store]
    shell.command(*asked)
    assert (folder / "machines.html").exists()


def test_a_roofline_has_the_peaks_that_were_measured():
    """The best copy as a slope, each unit as a roof; without peaks there is none."""
    extra = {"gpu": trials.STATE}
    facts = {"bytes": 8192, "operations": 1 << 20, "dtype": "float16"}
    made = [
        trials.trial(f"mm[n={n}]", block=b, extra=extra, facts=facts)
        for n in (1, 2)
        for b in range(2)
    ]
    on_gpu = trials.FACTS | {"gpu": trials.GPU}
    page = run.dumps(results(made, machine=on_gpu))
    assert "float16 tensor 800.0 Top/s" in page
    assert "copy cold 4.096 GB/s" in page
    assert page.count("mm[n=1] kernel/warm: ") == 1
    assert "id=roofline" not in run.dumps(results(made))


@pytest.mark.parametrize("text", [EVIL, "a\u2028b", "</SCRIPT>", "<!--", "plain"])
def test_embedded_json_is_found_again(text):
    """Whatever it says."""
    page = f"<!doctype html>\n<p>x</p>{decoding.page_element({'a': text})}<p>y</p>"
    found = decoding.page_content(page.encode(errors="surrogatepass"))
    assert archive.parsed(found.replace(b"\\ud800", b"?")) == {
        "a": text.replace("\ud800", "?")
    }
    assert page.lower().count("<script") == page.lower().count("</script>") == 1


def test_markup_is_made_of_elements_only():
    """Text is escaped, values of attributes too, and what is no character is written."""
    assert html.tag("p", "<b>", html.tag("b", "&"), title='"<') == (
        '<p title="&quot;&lt;">&lt;b&gt;<b>&amp;</b></p>'
    )
    assert html.tag("p", "\x00") == "<p>\\x00</p>"
