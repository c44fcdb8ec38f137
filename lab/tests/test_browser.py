"""The HTML report in a real browser, offline: what a reader sees, charts, keyboard, accessibility, screen sizes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import lab_samples
import pytest

from unstale_lab.report import claim_records, write
from unstale_lab.report.html import html_report
from unstale_lab.summary import read_summaries

RESULTS = Path(__file__).parents[2] / "results"
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
    address = write([*lab_samples.summaries(), lab_samples.study()], tmp_path_factory.mktemp("report")).as_uri()
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


@pytest.fixture(scope="module")
def published_page(browser, tmp_path_factory):
    """The report of the published results."""
    summaries = read_summaries(RESULTS)
    path = tmp_path_factory.mktemp("published") / "report.html"
    path.write_text(html_report(claim_records(summaries), summaries), "utf-8")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(HANG_GUARD_MS)
    page.goto(path.as_uri())
    return page


@pytest.fixture(autouse=True)
def assert_no_errors(open_page):
    yield
    found = [text for text in open_page.complaints if not text.startswith(("data:", "blob:"))]
    open_page.complaints.clear()
    assert found == []


@pytest.fixture(scope="module")
def shared(open_page):
    return open_page(permissions=["clipboard-read", "clipboard-write"])


@pytest.fixture
def page(shared):
    """An open page. Tests share it, because opening takes a second, and must restore its state."""
    yield shared
    shared.emulate_media(color_scheme="light", media="screen")
    shared.set_viewport_size({"width": 1280, "height": 900})
    shared.mouse.move(0, 0)


def eventually(page, script: str, expected=True):
    """Poll until the script returns what is expected: the content security policy forbids ``wait_for_function``."""
    for _ in range(HANG_GUARD_MS // 50):
        if page.evaluate(script) == expected:
            return
        page.wait_for_timeout(50)
    assert page.evaluate(script) == expected


# The colours of the page and of the line of μ.
LOOK = """() => [getComputedStyle(document.body).backgroundColor,
    getComputedStyle(document.querySelector('#fig3 .series[data-entry="0"] path')).stroke]"""
LOOKS = {
    "light": ["rgb(253, 253, 251)", "rgb(200, 82, 0)"],
    "dark": ["rgb(20, 22, 26)", "rgb(255, 145, 66)"],
}


# What a reader sees first


def test_first_screen_has_the_tally_and_the_table(open_page):
    page = open_page()
    answer, tally = page.locator("p.answer").first, page.locator("#tally")
    assert answer.inner_text() == "1 figure is below the paper's scale, where no claim can be refuted."
    assert tally.locator("tbody tr").first.inner_text().split() == ["✓", "holds", "1", "2"]
    below = page.locator("#claims-table > tbody").nth(2).bounding_box()
    assert answer.bounding_box()["y"] < tally.bounding_box()["y"] < below["y"] + below["height"] <= 2 * 900
    heading = page.locator("#claims-table > thead th").all_inner_texts()
    assert heading == ["#", "Claim", "In the paper", "Answer", "Why"]


def test_first_screen_of_the_published_page(published_page):
    """The answer, the main results and the tally; on a phone the first figure begins on the third screen."""
    for name in ("p.answer", "#headline", "#tally"):
        box = published_page.locator(name).first.bounding_box()
        assert box["y"] + box["height"] <= 900 and box["x"] + box["width"] <= 1280
    assert published_page.locator(".forest").first.bounding_box()["y"] <= 900
    row = published_page.locator("#claims-table > tbody").first.bounding_box()
    assert row["y"] <= 2 * 900 - 100, "the first claim is on the second screen"
    published_page.set_viewport_size({"width": 390, "height": 844})
    assert published_page.locator(".forest").first.bounding_box()["y"] <= 3 * 844
    assert published_page.evaluate("document.documentElement.scrollWidth") <= 390


def test_first_figure_is_within_three_screens_of_a_phone(open_page):
    page = open_page(viewport={"width": 390, "height": 844})
    last = page.locator(".forest li").last.bounding_box()
    assert last["y"] + last["height"] <= 3 * 844
    assert page.locator("#claims-table").bounding_box()["y"] > last["y"]


@pytest.mark.parametrize("width", [390, 1280])
def test_main_effects_come_before_the_claims(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    assert page.locator("#effects").bounding_box()["y"] < page.locator("#claims-table").bounding_box()["y"]


def test_main_effects_are_not_cut(published_page):
    """Names, numbers and texts in the plot do not overlap, and stay within their column."""
    for width in (390, 800, 1280):
        published_page.set_viewport_size({"width": width, "height": 900})
        overlaps = published_page.locator(".forest li[data-claim]").evaluate_all("""rows => rows.flatMap((row) => {
            const boxes = [...row.querySelectorAll('.name, .number, .nowhere')].map((e) => e.getBoundingClientRect());
            return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) =>
                a.left < b.right && b.left < a.right && a.top < b.bottom - 3 && b.top < a.bottom - 3));
        })""")
        assert overlaps == []
        assert published_page.evaluate("document.documentElement.scrollWidth") <= width


def test_main_effects_are_drawn_where_their_values_are(page):
    """From left to right: 0.39 (hollow), 0.63, and 0.996 at the line of 1."""
    found = page.locator(".forest li[data-claim]").evaluate_all("""rows => rows.map((row) => {
        const middle = (element) => { const box = element.getBoundingClientRect(); return box.x + box.width / 2; };
        const [value, one] = ['.value', '.one'].map((name) => middle(row.querySelector(name)));
        const [low, high] = (({x, right}) => [x, right])(row.querySelector('.interval').getBoundingClientRect());
        const fill = getComputedStyle(row.querySelector('.value')).fill;
        return [row.dataset.claim, row.dataset.reading, value - one, low < value && value < high, fill];
    })""")
    assert [(claim, reading) for claim, reading, *_ in found] == [("3", "text"), ("4", "text"), ("4", "code")]
    replay, text, code = (distance for _, _, distance, _, _ in found)
    assert code < replay < -20 and abs(text) < 2
    assert all(inside for *_, inside, _ in found)
    assert found[1][4] != found[2][4], "the readings have different markers"


def test_numbers_unfold_below_a_claim(page):
    claim = page.locator("#claim-3")
    assert not claim.locator(".parts").is_visible()
    claim.locator("summary").press("Enter")
    assert claim.locator(".parts li").count() == 3 and claim.locator(".parts").is_visible()
    assert "0.63x [0.57x, 0.69x]" in claim.locator(".scroll").inner_text()
    claim.locator("summary").press("Enter")


def test_a_link_to_a_claim_unfolds_it(open_page):
    page = open_page()
    page.locator("#fig4 .conclusion a").first.click()
    eventually(page, "document.querySelector('#claim-4 details').open")


def test_claims_can_be_filtered_by_keyboard(page):
    shown = page.locator("#claims-table > tbody:visible")
    assert shown.count() == 25
    page.locator("[name=answer][value='']").focus()
    page.keyboard.press("ArrowRight")
    assert [row.get_attribute("id") for row in shown.all()] == ["claim-4", "claim-25"]  # 4: as the authors ran it
    assert page.locator("#shown").inner_text() == "2 claims"
    page.keyboard.press("ArrowLeft")
    assert shown.count() == 25


# Charts


def test_all_lines_and_bands_are_drawn(page):
    assert page.locator(".chart").count() == 6
    script = """chart => ['.series > path', '.band'].map((selector) =>
        [...chart.querySelectorAll(selector)].map((path) => path.getBBox())
            .filter((box) => box.width > 100 && box.height > 20).length)"""
    sizes = page.locator("#fig3 .chart").first.evaluate(script)
    assert sizes == [5, 5]


def test_labels_of_ticks_do_not_overlap(page):
    overlaps = page.locator(".chart").evaluate_all("""charts => charts.flatMap((chart) =>
    ['tick-x', 'tick-y'].flatMap((name) => {
        const boxes = [...chart.querySelectorAll('.' + name)].map((text) => text.getBoundingClientRect());
        return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) =>
            a.left < b.right && b.left < a.right && a.top < b.bottom - 2 && b.top < a.bottom - 2));
    }))""")
    counts = page.locator(".chart").evaluate_all(
        "charts => charts.map((c) => [c.querySelectorAll('.tick-x').length, c.querySelectorAll('.tick-y').length])"
    )
    assert overlaps == [] and min(min(pair) for pair in counts) >= 3


def test_legend_hides_a_method_in_all_panels(page):
    visible = """() => [...document.querySelectorAll('#fig3 .chart')].map((chart) =>
        [...chart.querySelectorAll('[data-entry]')].filter((e) => getComputedStyle(e).display !== 'none').length)"""
    before = page.evaluate(visible)
    button = page.locator("#fig3 .legend [data-entry='2']")
    button.press("Space")
    assert button.get_attribute("aria-pressed") == "false"
    assert page.evaluate(visible) == [before[0] - 2, before[1] - 3]  # line and band; and the share of diverged runs
    button.press("Space")
    assert page.evaluate(visible) == before


def drag(page, chart):
    """Select the middle of a chart."""
    box = chart.locator(".plot > rect").first.bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.7 * box["height"], steps=4)
    page.mouse.up()


def test_zoom_survives_a_change_of_theme_and_can_be_reset(page):
    chart = page.locator("#fig3 .chart").first
    chart.scroll_into_view_if_needed()
    paths = (
        "() => [...document.querySelectorAll('#fig3 .chart:first-of-type path')].map((path) => path.getAttribute('d'))"
    )
    whole, ticks = page.evaluate(paths), chart.locator(".tick-x").all_inner_texts()
    reset = page.locator("#fig3").get_by_role("button", name="Reset zoom")
    assert not reset.is_visible()
    drag(page, chart)
    zoomed = chart.locator(".tick-x").all_text_contents()
    assert len(zoomed) >= 3 and 1200 <= int(zoomed[0]) < int(zoomed[-1]) <= 3200
    assert chart.locator(".tick-y").count() >= 3
    # The lines moved with the axis: at the left end of the chart is what was at 0.3 of its width.
    page.emulate_media(color_scheme="dark")
    eventually(page, LOOK, LOOKS["dark"])
    assert chart.locator(".tick-x").all_text_contents() == zoomed
    reset.click()
    assert page.evaluate(paths) == whole and not reset.is_visible()
    assert chart.locator(".tick-x").all_inner_texts() == ticks


def test_zoomed_lines_agree_with_the_axis(page):
    """The point at 2,000 steps is above the tick of 2,000 steps, before and after zooming."""
    chart = page.locator("#fig3 .chart").first
    chart.scroll_into_view_if_needed()
    distance = """chart => {
        const tick = [...chart.querySelectorAll('.tick-x')].find((text) => text.textContent === '2000').getBBox();
        const path = chart.querySelector('.series path');
        let [x, points] = [0, [...path.getAttribute('d').matchAll(/(-?[\\d.]+),/g)].map((found) => Number(found[1]))];
        if (path.getAttribute('d').includes('l')) points = points.map((step) => x += step);
        return points[20] + Number(chart.querySelector('.plot').getAttribute('x')) - tick.x - tick.width / 2;
    }"""
    assert abs(chart.evaluate(distance)) < 1
    drag(page, chart)
    assert abs(chart.evaluate(distance)) < 1.5
    page.locator("#fig3 [data-reset]").click()


def test_tooltip_shows_the_values_at_the_pointer(page):
    chart = page.locator("#fig3 .chart").first
    chart.scroll_into_view_if_needed()
    box = chart.locator(".plot > rect").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + box["height"] / 2)
    lines = page.locator("#tooltip").inner_text().splitlines()
    last = [f"{series.y[-1]:.3g}" for series in lab_samples.replay().panels[0].series]
    assert lines[0] == "steps 5,000"
    assert sorted(line.split()[-1] for line in lines[1:]) == sorted(last)
    assert any(line.strip().startswith("μ̂ diag 0.04") for line in lines)
    page.mouse.move(0, 0)
    eventually(page, "document.getElementById('tooltip').hidden")


# Screens, themes, accessibility


@pytest.mark.parametrize("width", [360, 390, 768, 900, 1024, 1200, 1600])
def test_page_fits_screens(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sticking_out = """(width) => [...document.querySelectorAll('main *, header *')].filter((element) =>
        !element.closest('.scroll, pre, svg, thead, .visually-hidden')
        && element.getBoundingClientRect().right > width + 1
    ).map((element) => element.outerHTML.slice(0, 80))"""
    assert page.evaluate(sticking_out, width) == []
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = false; })")


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
        const texts = ".badge, .faint, .diverged, .words, .reading, a, button, label > span, .chart text, .number";
        return [...document.querySelectorAll(texts)]
            .filter((element) => element.checkVisibility()).map((element) => {
                const style = getComputedStyle(element);
                const both = [element.closest("svg") ? style.fill : style.color, ground(element)].map(luminance);
                return [(Math.max(...both) + 0.05) / (Math.min(...both) + 0.05), element.textContent.trim()];
            });
    }""")
    assert len(contrasts) > 100
    assert [found for found in contrasts if found[0] < 4.5] == []


def test_controls_have_accessible_names(page):
    assert page.locator("html").get_attribute("lang") == "en"
    assert all(page.locator(tag).count() == 1 for tag in ("h1", "main", "nav", "footer", "body > header"))
    labels = page.locator(".chart[role=img]").evaluate_all("all => all.map((chart) => chart.ariaLabel)")
    assert labels[1] == (
        "α = 0.5: mean squared error over steps. Last values: μ 0.107, μ* 0.0513, μ̂ ∞, μ̂ diag 0.0677, μ̂ bounded 0.0563."
    )
    assert len(labels) == 6 and all(labels)
    names = page.locator("button").evaluate_all("all => all.map((button) => button.ariaLabel || button.textContent)")
    assert len(names) > 20 and all(name.strip() for name in names)
    assert page.locator("th:not([scope])").count() == 0
    summaries = page.locator("summary").all_inner_texts()
    assert len(summaries) == len(set(summaries)), "links of the same name lead to different places"


def test_command_can_be_copied(page):
    page.get_by_role("button", name="Copy the command of Figure 3").click()
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
    assert page.evaluate(LOOK) == LOOKS["dark"]
    other = page.context.new_page()
    other.goto(page.url)
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    # Browsers store the choice in the background, and could lose it if the page were left at once.
    other.wait_for_function("localStorage.getItem('theme') === 'light'")
    page.reload()
    assert page.evaluate(LOOK) == LOOKS["light"]


def test_print_is_light_and_has_all_charts(open_page):
    page = open_page(color_scheme="dark")
    page.get_by_role("button", name="Dark theme").click()
    page.get_by_role("button", name="Dark theme").click()  # chosen by the reader, not by the system
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(LOOK) == LOOKS["light"]
    assert page.locator(".chart:visible").count() == 6 and page.locator(".forest:visible").count() == 1
    assert not page.locator("nav").is_visible() and not page.locator("#theme").is_visible()


def test_page_without_scripts(open_page):
    page = open_page(java_script_enabled=False)
    assert page.locator("#claims-table > tbody").count() == 25
    assert not page.locator("#theme").is_visible() and not page.locator(".filter").is_visible()
    assert page.locator(".chart:visible").count() == 6
    assert page.locator("#fig3 .legend").is_visible() and page.locator("#fig3 .legend button:disabled").count() == 5
    page.locator("#claim-3 summary").click()
    assert page.locator("#claim-3 .parts").is_visible()
