"""The HTML report in a real browser, offline: charts, keyboard, accessibility, screen sizes."""

from __future__ import annotations

import os
import shutil

import lab_samples
import pytest

from unstale_lab.report import write

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MANDATORY = os.environ.get("UNSTALE_BROWSER_TESTS") == "1"
HANG_GUARD_MS = 600_000  # for what never happens; no machine is so slow that it takes this long


def missing(reason: str):
    (pytest.fail if MANDATORY else pytest.skip)(reason)


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        missing("playwright is not installed")
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        missing(f"no browser: none of {', '.join(BROWSERS)} is on the path")
    with sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(
                executable_path=executable, args=["--no-sandbox"], timeout=HANG_GUARD_MS
            )
        except Error as error:
            missing(f"{executable} does not start: {str(error).splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture(scope="module")
def open_page(browser, tmp_path_factory):
    """Open the report in a new window. Console errors and network requests are errors."""
    address = write(lab_samples.summaries(), tmp_path_factory.mktemp("report")).as_uri()
    complaints = []

    def opened(**options):
        window = {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light", "reduced_motion": "reduce"}
        page = browser.new_context(offline=True, **window | options).new_page()
        page.set_default_timeout(HANG_GUARD_MS)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if request.url != address else None)
        page.goto(address)
        return page

    opened.complaints = complaints
    return opened


@pytest.fixture(autouse=True)
def assert_no_errors(open_page):
    yield
    found = [text for text in open_page.complaints if not text.startswith(("data:", "blob:"))]
    open_page.complaints.clear()
    assert found == []


@pytest.fixture(scope="module")
def shared(open_page):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    draw_all(page)
    return page


@pytest.fixture
def page(shared):
    """A page with all charts drawn. Tests share it, because opening takes a second, and must restore its state."""
    yield shared
    shared.emulate_media(color_scheme="light")
    shared.set_viewport_size({"width": 1280, "height": 900})


def draw_all(page):
    """Scroll to every chart and wait until it is drawn."""
    for chart in page.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        chart.locator("svg.main-svg").first.wait_for()


def eventually(page, script: str, expected=True):
    """Poll until the script returns what is expected: the content security policy forbids ``wait_for_function``."""
    for _ in range(HANG_GUARD_MS // 50):
        if page.evaluate(script) == expected:
            return
        page.wait_for_timeout(50)
    assert page.evaluate(script) == expected


# The colours of the page and of a line.
LOOK = """() => [getComputedStyle(document.body).backgroundColor,
    document.querySelector('#fig3 .chart')._fullData.find((trace) => trace.name === 'μ').line.color]"""
LOOKS = {"light": ["rgb(253, 253, 251)", "#c85200"], "dark": ["rgb(20, 22, 26)", "#ff9142"]}


def test_all_lines_and_bands_are_drawn(page):
    assert page.locator(".chart").count() == 5
    chart = page.locator("#fig3 .chart").first
    assert chart.locator(".scatterlayer path.js-line:not([d=''])").count() == 5 * 2
    assert chart.locator(".scatterlayer path.js-fill").count() == 5


def test_claims_can_be_filtered_by_keyboard(page):
    shown = page.locator("#claims-table tbody:visible")
    assert shown.count() == 25
    page.locator("[name=verdict][value='']").focus()
    page.keyboard.press("ArrowRight")
    assert [row.get_attribute("id") for row in shown.all()] == ["claim-3", "claim-25"]
    assert page.locator("#shown").inner_text() == "2 claims"
    page.keyboard.press("ArrowLeft")
    assert shown.count() == 25


def test_axis_scale_can_be_switched(page):
    axes = "[...document.querySelectorAll('#fig3 .chart')].map((chart) => chart._fullLayout.yaxis.type)"
    button = page.locator("#fig3").get_by_role("button", name="log y")
    assert (page.evaluate(axes), button.get_attribute("aria-pressed")) == (["log", "log"], "true")
    button.press("Enter")
    assert (page.evaluate(axes), button.get_attribute("aria-pressed")) == (["linear", "linear"], "false")
    button.press("Enter")
    assert page.evaluate(axes) == ["log", "log"]


def test_legend_hides_a_method_in_all_panels(page):
    visible = """() => [...document.querySelectorAll('#fig3 .chart')].map(
        (chart) => chart._fullData.filter((trace) => trace.visible).length)"""
    before = page.evaluate(visible)
    button = page.locator("#fig3 [data-entry='2']")
    button.press("Space")
    assert page.evaluate(visible) == [before[0] - 2, before[1] - 3]  # line and band; and the cross where it diverges
    button.press("Space")
    assert page.evaluate(visible) == before


def test_zoom_survives_theme_change_and_can_be_reset(page):
    x_range = "document.querySelector('#fig3 .chart')._fullLayout.xaxis.range"
    page.locator("#fig3-heading").scroll_into_view_if_needed()
    box = page.locator("#fig3 .chart .nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 140, steps=4)
    page.mouse.up()
    eventually(page, f"{x_range}[0] > 100")
    zoomed = page.evaluate(x_range)
    page.emulate_media(color_scheme="dark")
    page.locator("#theme[aria-pressed=true]").wait_for()
    eventually(page, LOOK, LOOKS["dark"])
    assert page.evaluate(x_range) == zoomed
    page.locator("#fig3 [data-reset]").click()
    eventually(page, f"{x_range}[0] <= 0")


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_page_fits_narrow_screens(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.locator("#fig3 summary").click()
    eventually(page, f"document.documentElement.scrollWidth <= {width}")  # charts follow a little later
    sticking_out = """(width) => [...document.querySelectorAll('main *')].filter((element) =>
        !element.closest('.scroll, pre, .chart, thead') && element.getBoundingClientRect().right > width + 1
    ).map((element) => element.outerHTML.slice(0, 80))"""
    assert page.evaluate(sticking_out, width) == []
    page.locator("#fig3 summary").click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_contrast(page, scheme):
    page.emulate_media(color_scheme=scheme)
    contrasts = page.evaluate("""() => {
        const luminance = (css) => css.match(/[\\d.]+/g).slice(0, 3).map((c) => c / 255)
            .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
            .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const ground = (element) => {
            const css = getComputedStyle(element).backgroundColor;
            return css === "rgba(0, 0, 0, 0)" ? ground(element.parentElement) : css;
        };
        return [...document.querySelectorAll(".badge, .faint, .diverged, a, button, .filter label > span")]
            .filter((element) => element.checkVisibility()).map((element) => {
                const both = [getComputedStyle(element).color, ground(element)].map(luminance);
                return [(Math.max(...both) + 0.05) / (Math.min(...both) + 0.05), element.textContent.trim()];
            });
    }""")
    assert len(contrasts) > 50
    assert [found for found in contrasts if found[0] < 4.5] == []


def test_controls_have_accessible_names(page):
    assert page.locator("html").get_attribute("lang") == "en"
    assert all(page.locator(tag).count() == 1 for tag in ("h1", "main", "nav", "footer", "body > header"))
    labels = page.locator(".chart[role=img]").evaluate_all("all => all.map((chart) => chart.ariaLabel)")
    assert labels[1] == (
        "α = 0.5: mean squared error over steps. Last values: μ 0.107, μ* 0.0513, μ̂ ∞, μ̂ diag 0.0677, μ̂ bounded 0.0563."
    )
    assert len(labels) == 5 and all(labels)
    names = page.locator("button").evaluate_all("all => all.map((button) => button.ariaLabel || button.innerText)")
    assert len(names) > 20 and all(name.strip() for name in names)
    assert page.locator("th:not([scope])").count() == 0


def test_command_can_be_copied(page):
    page.get_by_role("button", name="Copy the command of fig3").click()
    page.locator("#fig3 [data-copy]", has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "unstale-lab reproduce fig3 --scale paper"


def test_skip_link_and_stored_theme(open_page):
    page = open_page(color_scheme="dark")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "claims"
    button = page.get_by_role("button", name="Dark theme")
    assert button.get_attribute("aria-pressed") == "true"
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    page.reload()
    page.locator("#fig3 .chart").first.scroll_into_view_if_needed()
    page.locator("#fig3 svg.main-svg").first.wait_for()
    eventually(page, LOOK, LOOKS["light"])


def test_charts_are_drawn_lazily_and_all_for_print(open_page):
    page = open_page(color_scheme="dark")
    assert page.locator("#fig19 svg.main-svg").count() == 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".chart.js-plotly-plot").count() == 5
    assert page.evaluate(LOOK) == LOOKS["light"]  # at once: paper does not wait
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    eventually(page, LOOK, LOOKS["dark"])


def test_page_without_scripts(open_page):
    page = open_page(java_script_enabled=False)
    assert page.locator("#claims-table tbody").count() == 25
    assert not page.locator("#theme").is_visible()
    assert page.locator("#fig3 img").evaluate("image => image.complete && image.naturalWidth > 0")
    # Only screen readers use the images, which are separate files.
    fetched = [url for url in open_page.complaints if not url.startswith("data:")]
    assert fetched and all(url.startswith("file:") and "/figures/" in url for url in fetched)
    open_page.complaints.clear()
