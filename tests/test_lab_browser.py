"""The report in a real browser, without a network: drawn, usable with the keyboard, fitting every screen."""

from __future__ import annotations

import os
import shutil

import lab_samples
import pytest

from unstale.lab.report import write

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
MANDATORY = os.environ.get("UNSTALE_BROWSER_TESTS") == "1"


def missing(reason: str):
    (pytest.fail if MANDATORY else pytest.skip)(reason)


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed")
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        missing(f"no browser: none of {', '.join(BROWSERS)} is on the path")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    return write(lab_samples.summaries(), tmp_path_factory.mktemp("report")).as_uri()


@pytest.fixture
def open_page(browser, address):
    """Opens the report in a window of its own; whatever it complains about or fetches is an error."""
    contexts, complaints = [], []

    def opened(width=1280, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if request.url != address else None)
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [text for text in complaints if not text.startswith(("data:", "blob:"))] == []


def draw_all(page):
    """Scroll past every chart, as a reader would, and wait for it."""
    for chart in page.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        chart.locator("svg.main-svg").first.wait_for()


def y_axis(page, chart=0):
    return page.evaluate("i => document.querySelectorAll('.chart')[i]._fullLayout.yaxis.type", chart)


def test_charts_are_drawn_when_scrolled_to(open_page):
    page = open_page()
    assert page.locator("#fig19 svg.main-svg").count() == 0
    draw_all(page)
    assert page.locator(".chart").count() == 5
    assert page.locator("#fig3 .chart").first.locator(".scatterlayer .js-line").count() == 5 * 2  # lines and bands


def test_all_claims_are_listed_and_can_be_filtered_by_keyboard(open_page):
    page = open_page()
    shown = page.locator("#claims-table tbody:visible")
    assert shown.count() == 25
    page.locator("[name=verdict][value='']").focus()
    page.keyboard.press("ArrowRight")
    assert [row.get_attribute("id") for row in shown.all()] == ["claim-3", "claim-25"]
    assert page.locator("#shown").inner_text() == "2 claims"
    page.keyboard.press("ArrowLeft")
    assert shown.count() == 25


def test_axes_become_logarithmic_and_back(open_page):
    page = open_page()
    page.locator("#fig3 .chart").first.scroll_into_view_if_needed()
    draw_all(page)
    button = page.locator("#fig3").get_by_role("button", name="log y")
    assert (y_axis(page), button.get_attribute("aria-pressed")) == ("log", "true")
    button.press("Enter")
    assert (y_axis(page), button.get_attribute("aria-pressed")) == ("linear", "false")
    button.press("Enter")
    assert y_axis(page) == "log"


def test_a_method_is_switched_off_in_all_panels_of_its_figure(open_page):
    page = open_page()
    draw_all(page)
    visible = """() => [...document.querySelectorAll('#fig3 .chart')].map(
        chart => chart._fullData.filter(trace => trace.visible).length)"""
    before = page.evaluate(visible)
    page.locator("#fig3 [data-entry='2']").press("Space")
    assert page.evaluate(visible) == [before[0] - 2, before[1] - 3]  # line and band; and the cross where it diverges


def test_zoom_is_kept_through_a_change_of_theme_and_can_be_reset(open_page):
    page = open_page(color_scheme="light")
    draw_all(page)
    chart = "document.querySelector('#fig3 .chart')"
    box = page.locator("#fig3 .chart .nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 140, steps=4)
    page.mouse.up()
    zoomed = page.evaluate(f"{chart}._fullLayout.xaxis.range")
    assert zoomed[0] > 100
    page.get_by_role("button", name="Dark theme").click()
    assert page.evaluate(f"{chart}._fullLayout.xaxis.range") == zoomed
    page.locator("#fig3 [data-reset]").click()
    assert page.evaluate(f"{chart}._fullLayout.xaxis.range")[0] <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_it_is_chosen(open_page, scheme):
    page = open_page(color_scheme=scheme)
    draw_all(page)
    look = """() => [getComputedStyle(document.body).backgroundColor,
        document.querySelector('#fig3 .chart')._fullData.find(trace => trace.name === 'μ').line.color]"""
    grounds = {"light": ["rgb(253, 253, 251)", "#c85200"], "dark": ["rgb(20, 22, 26)", "#ff9142"]}
    other = {"light": "dark", "dark": "light"}[scheme]
    assert page.evaluate(look) == grounds[scheme]
    button = page.get_by_role("button", name="Dark theme")
    assert button.get_attribute("aria-pressed") == str(scheme == "dark").lower()
    button.press("Enter")
    assert page.evaluate(look) == grounds[other]
    page.reload()
    draw_all(page)
    assert page.evaluate(look) == grounds[other]


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_no_screen_is_too_narrow(open_page, width):
    page = open_page(width)
    draw_all(page)
    page.locator("#fig3 summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sticking_out = page.evaluate(
        """width => [...document.querySelectorAll('main *')].filter(element =>
        !element.closest('.scroll, pre, .chart, thead') && element.getBoundingClientRect().right > width + 1
    ).map(element => element.outerHTML.slice(0, 80))""",
        width,
    )
    assert sticking_out == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(open_page, scheme):
    page = open_page(color_scheme=scheme)
    contrasts = page.evaluate("""() => {
        const luminance = (css) => css.match(/[\\d.]+/g).slice(0, 3).map(Number).map((c) => c / 255)
            .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
            .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const ground = (element) => {
            const css = getComputedStyle(element).backgroundColor;
            return css === "rgba(0, 0, 0, 0)" ? ground(element.parentElement) : css;
        };
        return [...document.querySelectorAll(".badge, .faint, .diverged, a, button, .filter label > span")]
            .filter((element) => element.checkVisibility()).map((element) => {
                const [low, high] = [getComputedStyle(element).color, ground(element)].map(luminance)
                    .sort((a, b) => a - b);
                return [(high + 0.05) / (low + 0.05), element.textContent.trim()];
            });
    }""")
    assert len(contrasts) > 50
    assert [found for found in contrasts if found[0] < 4.5] == []


def test_everything_has_a_name(open_page):
    page = open_page()
    draw_all(page)
    assert page.locator("html").get_attribute("lang") == "en"
    assert all(page.locator(tag).count() == 1 for tag in ("h1", "main", "nav", "footer", "body > header"))
    charts = page.get_by_role("img").all()
    labels = [chart.get_attribute("aria-label") for chart in charts]
    assert labels[1] == (
        "α = 0.5: mean squared error against steps. At the right end: μ 0.107, μ* 0.0513, μ̂ ∞, μ̂ diag 0.0677, "
        "unstale (default) 0.0563."
    )
    assert len(labels) == 5 and all(labels)
    for button in page.get_by_role("button").all():
        assert button.inner_text().strip() or button.get_attribute("aria-label")
    unscoped = page.locator("th:not([scope])")
    assert unscoped.count() == 0


def test_the_first_stop_of_the_keyboard_skips_to_the_claims(open_page):
    page = open_page()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "claims"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    page.keyboard.press("Tab")
    assert page.evaluate(f"document.activeElement.name === 'verdict' || {outline} === 'solid'")


def test_the_command_can_be_copied(open_page):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    button = page.get_by_role("button", name="Copy the command of fig3")
    button.click()
    page.locator("#fig3 [data-copy]", has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "unstale reproduce fig3 --scale paper"


def test_paper_is_white_and_has_every_chart(open_page):
    page = open_page(color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".chart svg.main-svg").count() >= 5
    assert page.evaluate("document.querySelector('.chart')._fullData.at(-1).line.color") == "#b0328a"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.querySelector('.chart')._fullData.at(-1).line.color") == "#f08fce"


def test_without_scripts_the_page_still_tells_everything(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.locator("#claims-table tbody").count() == 25
    assert not page.locator("#theme").is_visible()
    assert page.locator("#fig3 img").is_visible()
    context.close()
