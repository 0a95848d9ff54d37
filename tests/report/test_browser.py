"""The page in a real browser: what it shows, its switches, its values under the pointer, and no error in the console.

Needs Debian's packages chromium and chromium-driver, which `.ci/run` installs; elsewhere the tests are skipped.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from detent.report import figures, load, tables
from detent.report.page import page
from detent.report.style import colors

Make = Callable[..., Path]

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None,
    reason="there is no chromium with its driver here (Debian: apt install chromium chromium-driver)",
)

REFERENCES = {"Ant-v4": (-70.288, 3942.0), "Humanoid-v4": (120.423, 5165.0)}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "no-first-run"):
        options.add_argument(f"--{flag}")
    # Without these the browser calls its maker, and complains in the console where there is no network.
    for flag in ("disable-background-networking", "disable-component-update", "disable-sync"):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, Service(str(DRIVER)))
    yield driver
    driver.quit()


def resize(browser: Chrome, width: int, height: int = 900) -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


@pytest.fixture
def study(tmp_path: Path, make_study: Make) -> Path:
    """A study with every kind of figure, some of it still missing."""
    rng = np.random.default_rng(1)
    steps = np.linspace(0.0, 1.0, 21)
    runs: list[dict[str, Any]] = []

    def add(task: str, variant: str, end: float, seeds: int = 3, **more: Any) -> None:
        low, high = REFERENCES[task]
        for seed in range(1, seeds + 1):
            scores = (end + 0.06 * rng.normal()) * steps**1.3 + 0.01 * rng.normal(size=len(steps))
            rows = [
                {
                    "step": 50_000 * number,
                    "time/iteration": 60.0 + 10 * rng.random(),
                    "time/sps": 800 + 50 * rng.random(),
                    "grad_variance": 10 ** (2 * (1 - end)) * number**0.3,
                    "grad_variance_normalized": 50 + 20 * rng.random(),
                    "grad_variance_authors": 1e-5 * 10 ** (2 * (1 - end)) * number**0.3,
                    "grad_snr": 0.05 * end + 0.01 * rng.normal(),
                }
                for number in range(1, len(steps))
            ]
            returns = (low + scores * (high - low)).tolist()
            made = {"task": task, "variant": variant, "seed": seed, "every": 50_000, "metrics": rows}
            runs.append({**made, "returns": returns, **more})

    for task in REFERENCES:
        for variant, end in (("rn-d", 0.8), ("rn-c", 0.5), ("mlp-d", 0.6), ("mlp-c", 0.3), ("loss-swap", 0.45)):
            add(task, variant, end)
        add(task, "td3", 0.7, algo="td3")
        for bins, end in ((11, 0.75), (101, 0.7), (1001, 0.3)):
            add(task, "rn-d", end, overrides={"head.bins": bins})
        for width, end in ((64, 0.5), (512, 0.85)):
            add(task, "rn-d", end, overrides={"actor.width": width})
    runs.append({"task": "Ant-v4", "variant": "rn-d", "seed": 4, "steps": 1_000_000, "returns": None})
    return make_study(tmp_path / "study", runs)


@pytest.fixture
def opened(browser: Chrome, study: Path) -> Chrome:
    """The report of the study, open on a desktop."""
    results = load(study)
    drawn, tabled = figures(results), tables(results)
    path = study / "index.html"
    # Without the pictures beside it, which other tests look at and which take long.
    path.write_text(page(results, drawn, tabled, colors(dict.fromkeys(k for f in drawn.values() for k in f.keys))))
    resize(browser, 1280)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    browser.get_log("browser")
    browser.get(path.as_uri())
    WebDriverWait(browser, 20).until(lambda driver: driver.find_elements(By.CSS_SELECTOR, ".panel svg polyline"))
    return browser


def elements(browser: Chrome, selector: str) -> list[WebElement]:
    return browser.find_elements(By.CSS_SELECTOR, selector)


def curves(browser: Chrome, figure: str, key: str) -> list[WebElement]:
    return elements(browser, f'[data-figure="{figure}"] polyline[data-key="{key}"]')


def expect(browser: Chrome, condition: Callable[[], object]) -> None:
    WebDriverWait(browser, 10).until(lambda _: condition())


def test_the_page_shows_its_figures_switches_them_and_says_what_is_under_the_pointer(opened: Chrome) -> None:
    # One page for all of it: making and opening one takes most of the time.
    figures_are_visible(opened)
    a_switch_hides_a_group_in_all_figures_and_brings_it_back(opened)
    the_papers_curves_have_a_switch_too(opened)
    pointing_tells_values_intervals_and_runs(opened)
    keys_tell_them_too(opened)
    tabs_show_one_definition_at_a_time(opened)
    it_fits_a_phone(opened)
    it_follows_a_dark_system(opened)
    assert [entry for entry in opened.get_log("browser") if entry["level"] == "SEVERE"] == []


def figures_are_visible(browser: Chrome) -> None:
    names = {place.get_attribute("data-figure") for place in elements(browser, "[data-figure]") if place.is_displayed()}
    assert names == {
        "intro", "aggregate-ppo", "tasks-ppo", "wall-clock", "scores", "improvement", "profiles", "gradient-variance",
        "components", "bins", "width", "loss-swap",
    }  # fmt: skip
    for name in names:
        for drawing in elements(browser, f'[data-figure="{name}"] svg[role=img]'):
            assert drawing.size["width"] > 200
            assert drawing.size["height"] > 60
            assert drawing.find_elements(By.CSS_SELECTOR, "polyline, .bar, .dot"), name
            assert (drawing.get_attribute("aria-label") or "").endswith("Arrow keys read the values.")
    for variant in ("rn-d", "rn-c", "mlp-d", "mlp-c"):
        (curve,) = [
            line for line in curves(browser, "aggregate-ppo", variant) if "solid" in str(line.get_attribute("class"))
        ]
        assert curve.size["width"] > 200
        assert curve.size["height"] > 20
    assert elements(browser, '[data-figure="aggregate-ppo"] .band')
    assert elements(browser, '[data-figure="aggregate-ppo"] .arrow-line')
    (arrow,) = elements(browser, '[data-figure="aggregate-ppo"] text.arrow')
    (band, *_) = elements(browser, '[data-figure="aggregate-ppo"] .band')
    assert arrow.location["y"] + arrow.size["height"] <= band.location["y"]
    # Where lines mean something else in each panel, the panel has a legend; a level line is dotted in it as well.
    labels = [line.text for line in elements(browser, '[data-figure="width"] .lines span')]
    assert "256 (default)" in labels
    assert elements(browser, '[data-figure="bins"] .lines .level')
    assert "Ant-v4, ppo, rn-d, seed 4: not started" in browser.find_element(By.ID, "missing").text


def a_switch_hides_a_group_in_all_figures_and_brings_it_back(browser: Chrome) -> None:
    switch = browser.find_element(By.CSS_SELECTOR, '.toggle[data-key="mlp-c"]')
    before = len(elements(browser, 'polyline[data-key="mlp-c"], .bar[data-key="mlp-c"]'))
    others = len(curves(browser, "tasks-ppo", "rn-d"))
    assert before > 8
    switch.click()
    expect(browser, lambda: not elements(browser, '[data-key="mlp-c"]:not(.toggle)'))
    assert switch.get_attribute("aria-pressed") == "false"
    assert len(curves(browser, "tasks-ppo", "rn-d")) == others
    switch.click()
    expect(browser, lambda: len(elements(browser, 'polyline[data-key="mlp-c"], .bar[data-key="mlp-c"]')) == before)
    assert switch.get_attribute("aria-pressed") == "true"


def the_papers_curves_have_a_switch_too(browser: Chrome) -> None:
    assert elements(browser, "polyline.dashed")
    switch = browser.find_element(By.CSS_SELECTOR, '.toggle[data-key="the paper"]')
    switch.click()
    expect(browser, lambda: not elements(browser, "polyline.dashed"))
    assert curves(browser, "tasks-ppo", "rn-d")
    switch.click()
    expect(browser, lambda: elements(browser, "polyline.dashed"))


def pointing_tells_values_intervals_and_runs(browser: Chrome) -> None:
    drawing = browser.find_element(By.CSS_SELECTOR, '[data-figure="tasks-ppo"] svg')
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", drawing)
    ActionChains(browser).move_to_element(drawing).perform()
    tip = browser.find_element(By.CSS_SELECTOR, '[data-figure="tasks-ppo"] .tip')
    expect(browser, tip.is_displayed)
    assert "environment steps" in tip.text
    # A value, its interval, and the three seeds behind it.
    assert any(line.startswith("rn-d  ") or line.startswith("rn-d ") for line in tip.text.splitlines()), tip.text
    assert "[" in tip.text
    assert "3 runs" in tip.text
    ActionChains(browser).move_to_element(browser.find_element(By.TAG_NAME, "h2")).perform()
    expect(browser, lambda: not tip.is_displayed())


def keys_tell_them_too(browser: Chrome) -> None:
    drawing = browser.find_element(By.CSS_SELECTOR, '[data-figure="aggregate-ppo"] svg')
    tip = browser.find_element(By.CSS_SELECTOR, '[data-figure="aggregate-ppo"] .tip')
    browser.execute_script("arguments[0].focus()", drawing)
    drawing.send_keys(Keys.ARROW_RIGHT)
    expect(browser, tip.is_displayed)
    first = tip.text
    drawing.send_keys(Keys.END)
    expect(browser, lambda: tip.text != first)
    assert tip.text.startswith("1M environment steps")
    data = browser.execute_script("return JSON.parse(document.getElementById('data').textContent)")
    (panel,) = next(figure["panels"] for figure in data["figures"] if figure["name"] == "aggregate-ppo")
    series = next(series for series in panel["series"] if series["label"] == "mlp-c")
    value, low, high = (f"{float(f'{series[name][-1]:.3g}'):g}" for name in ("y", "low", "high"))
    assert f"mlp-c {value} [{low}, {high}] 6 runs" in " ".join(tip.text.split())
    drawing.send_keys(Keys.ESCAPE)
    expect(browser, lambda: not tip.is_displayed())


def tabs_show_one_definition_at_a_time(browser: Chrome) -> None:
    browser.find_element(By.ID, "tab-gradient-variance-authors").click()
    expect(browser, lambda: curves(browser, "gradient-variance-authors", "rn-d"))
    assert browser.find_element(By.CSS_SELECTOR, '[data-figure="gradient-variance-authors"]').is_displayed()
    assert not browser.find_element(By.CSS_SELECTOR, '[data-figure="gradient-variance"]').is_displayed()


def it_fits_a_phone(browser: Chrome) -> None:
    resize(browser, 390)
    expect(browser, lambda: browser.execute_script("return document.documentElement.clientWidth") == 390)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    expect(browser, lambda: all(drawing.size["width"] <= 390 for drawing in elements(browser, ".panel svg")))


def it_follows_a_dark_system(browser: Chrome) -> None:
    def lightness() -> int:
        color = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(","))

    assert lightness() > 600
    wanted = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
    expect(browser, lambda: lightness() < 150)
