"""Pages in a real browser: no errors, filtered, sorted, walked by keys, read by machines.

Needs Chromium with its driver (``apt install chromium chromium-driver``) and Selenium
(``pip install selenium``); for accessibility also axe-core (``npm pack axe-core``), whose
``axe.min.js`` STEELYARD_AXE names.
"""

import os
import shutil
from pathlib import Path

import outcomes
import pytest
import test_pages as made
import trials

from steelyard.process import stacks
from steelyard.report.pages import gate, history, icicle, machines, run

webdriver = pytest.importorskip(
    "selenium.webdriver", reason="needs Selenium: pip install selenium"
)
ui = pytest.importorskip("selenium.webdriver.support.ui")
PROGRAMS = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
pytestmark = pytest.mark.skipif(
    not all(PROGRAMS.values()),
    reason="needs a browser: apt install chromium chromium-driver",
)

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
    *("--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--window-size=1280,900"),
)


def browser(folder, **preferences):
    """Start Chromium with a profile of its own."""
    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAMS["chromium"]
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", preferences)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(PROGRAMS["chromedriver"])
    return webdriver.Chrome(options=options, service=service)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """Return a browser for all tests."""
    driver = browser(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return a folder with a page of each kind, of hostile and of plain names."""
    folder = tmp_path_factory.mktemp("pages")
    extra = {"gpu": trials.STATE}
    ledger = {"allocate": 200.0, "kernel": 700.0}
    on_gpu = trials.FACTS | {"gpu": trials.GPU}
    every = [
        *made.measured(12),
        *(
            trials.trial(f"mm[n={2**n}]", block=b, extra=extra, doubts=("bimodal",))
            for n in range(6)
            for b in range(2)
        ),
        trials.trial("call", mode="latency/warm", ledger=ledger),
        trials.trial("b[n=1]", mode="build/first", ledger={"import": 700.0}),
        trials.trial(f"{made.EVIL}[n=1]", axes={made.EVIL: made.EVIL}),
        trials.trial("broken", (), error=made.EVIL, axes={}),
    ]
    hostile = made.EVIL.removesuffix("\ud800")
    folded = f"main;work;inner 70\nmain;{hostile} 20\nmain;work 10\n"
    shift = [1000 + n % 3 + 200 * (n >= 30) for n in range(60)]
    for name, text in {
        "run": run.dumps(made.results(every, machine=on_gpu)),
        "case": run.dumps(made.results(made.measured(1))),
        "gate": gate.dumps(outcomes.outcome(*outcomes.EVERY, static=outcomes.STATIC)),
        "history": history.dumps(made.history_of(shift), ["s.db"]),
        "machines": machines.dumps(made.on_kinds(2, 8, 96), ["s.db"]),
        "stacks": icicle.dumps_stacks(stacks.read(folded.encode()), "x.folded"),
    }.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


PAGES = ("run", "case", "gate", "history", "machines", "stacks")
SCHEMES = ("light", "dark")


def opened(driver, pages, name, scheme="light"):
    """Open a page in a colour scheme, and return it once it is complete."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    driver.get((pages / f"{name}.html").as_uri())
    assert driver.execute_script("return document.readyState") == "complete"
    return driver


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_without_a_word_on_the_console(chromium, pages, name):
    """Its policy refuses nothing of its own, and foreign text runs nothing."""
    driver = opened(chromium, pages, name)
    assert driver.get_log("browser") == []
    assert driver.execute_script("return document.images.length") == 0
    wide = "return document.documentElement.scrollWidth > innerWidth"
    assert not driver.execute_script(wide)


def test_rows_are_filtered_and_sorted(chromium, pages):
    """By words of a row and its table; by numbers with their units."""
    driver = opened(chromium, pages, "run")
    find = (
        "return [...document.querySelectorAll('main tbody tr')].filter(r => !r.hidden)"
    )
    every = len(driver.execute_script(find))
    field = driver.find_element("css selector", "input[type=search]")
    field.send_keys("copy warm")
    visible = f"{find}.map(r => r.closest('table').caption.textContent + r.textContent)"
    wait = ui.WebDriverWait(driver, 5)
    wait.until(lambda _: 0 < len(driver.execute_script(find)) < every)
    for text in driver.execute_script(visible):
        assert "copy" in text
        assert "warm" in text
    field.clear()
    field.send_keys(" ")
    wait.until(lambda _: len(driver.execute_script(find)) == every)
    table = driver.execute_script(
        "return [...document.querySelectorAll('#results table')]"
        ".find(t => t.caption.textContent.startsWith('copy'))"
    )
    button = next(
        one
        for one in table.find_elements("css selector", "thead button")
        if one.text == "time"
    )
    at = driver.execute_script("return arguments[0].closest('th').cellIndex", button)
    for order in ("ascending", "descending"):
        driver.execute_script("arguments[0].click()", button)
        head = driver.execute_script("return arguments[0].closest('th')", button)
        assert head.get_attribute("aria-sort") == order
        times = driver.execute_script(
            "return [...arguments[0].tBodies[0].rows].map(r => r.cells[arguments[1]]"
            ".textContent)",
            table,
            at,
        )
        found = [
            float(t.split()[0]) * {"ns": 1, "us": 1e3}[t.split()[1]] for t in times
        ]
        assert found == sorted(found, reverse=order == "descending")


@pytest.mark.parametrize("name", PAGES)
def test_keys_reach_everything_in_its_order(chromium, pages, name):
    """From the link that skips to the content, down the page; each is seen where it is."""
    driver = opened(chromium, pages, name)
    keys = webdriver.common.keys.Keys
    where = (
        "const e = document.activeElement, r = e.getBoundingClientRect(),"
        " all = [...document.querySelectorAll('a,button,input,[tabindex]')];"
        "return [all.indexOf(e), r.width > 0 && r.bottom > 0 && r.top < innerHeight,"
        " getComputedStyle(e).outlineStyle !== 'none', all.length]"
    )
    body, last = driver.find_element("css selector", "body"), -1
    for _ in range(60):
        body.send_keys(keys.TAB)
        at, seen, outlined, count = driver.execute_script(where)
        if at < last:
            break
        assert at == last + 1, (at, last)
        assert seen, driver.switch_to.active_element.get_attribute("outerHTML")[:200]
        assert outlined
        last = at
        if last == count - 1:
            break
    assert last > 4


def test_enter_sorts_and_the_first_link_skips_to_the_content(chromium, pages):
    """Without a pointer."""
    driver = opened(chromium, pages, "gate")
    keys = webdriver.common.keys.Keys
    driver.find_element("css selector", "body").send_keys(keys.TAB)
    driver.switch_to.active_element.send_keys(keys.ENTER)
    assert driver.execute_script("return location.hash") == "#main"
    button = driver.find_element("css selector", "thead button")
    button.send_keys(keys.ENTER)
    head = driver.execute_script("return arguments[0].closest('th')", button)
    assert head.get_attribute("aria-sort") == "ascending"


def test_a_page_is_whole_without_scripts(tmp_path, pages):
    """Every table and picture; only filter and sort are missing."""
    off = {"profile.managed_default_content_settings.javascript": 2}
    driver = browser(tmp_path, **off)
    try:
        for name in PAGES:
            driver.get((pages / f"{name}.html").as_uri())
            assert not driver.find_elements("css selector", "thead button")
            assert driver.find_elements("css selector", "svg")
            assert driver.find_element("css selector", "tbody tr").is_displayed()
    finally:
        driver.quit()


AXE = Path(os.environ.get("STEELYARD_AXE", ""))


@pytest.mark.skipif(
    not AXE.is_file(),
    reason="needs axe-core: npm pack axe-core, and STEELYARD_AXE=.../axe.min.js",
)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", PAGES)
def test_axe_has_nothing_serious_to_say(chromium, pages, name, scheme):
    """In light and in dark."""
    driver = opened(chromium, pages, name, scheme)
    driver.execute_script(AXE.read_text())
    driver.set_script_timeout(120)
    found = driver.execute_async_script(
        "axe.run(document, {resultTypes: ['violations']})"
        ".then(arguments[arguments.length - 1])"
    )
    serious = [
        (one["id"], one["impact"], [node["html"][:200] for node in one["nodes"][:3]])
        for one in found["violations"]
        if one["impact"] in {"serious", "critical"}
    ]
    assert serious == []
