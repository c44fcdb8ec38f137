"use strict";

const root = document.documentElement;
const charts = JSON.parse(document.getElementById("charts").textContent);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const isPressed = (button) => button.getAttribute("aria-pressed") === "true";
const press = (button, on) => button.setAttribute("aria-pressed", String(on));

/* Theme: the reader's choice, else the system's. */

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
const themeButton = document.getElementById("theme");
const theme = () => root.dataset.theme || (systemIsDark.matches ? "dark" : "light");

function showTheme() {
  press(themeButton, theme() === "dark");
  drawn().forEach(draw);
}

themeButton.addEventListener("click", () => {
  root.dataset.theme = theme() === "dark" ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* no storage: for this page view only */ }
  showTheme();
});
systemIsDark.addEventListener("change", showTheme);

/* Charts: redrawn whenever the theme or a button of their figure changes. */

const drawn = () => all(".chart.js-plotly-plot");
const figureOf = (chart) => chart.closest("section");

function withColour(trace) {
  const colour = trace.meta[theme()];
  const hidden = !isPressed(figureOf(trace.chart).querySelector(`[data-entry="${trace.meta.entry}"]`));
  const { chart, ...own } = trace;
  const look = trace.meta.part === "band"
    ? { fillcolor: colour + "2b" }
    : { line: { ...trace.line, color: colour }, marker: { ...trace.marker, color: colour } };
  if (trace.meta.part === "end") look.marker.line = { ...trace.marker.line, color: colour };
  return { ...own, ...look, visible: !hidden, showlegend: false };
}

function decades(values) {
  const logs = values.filter((value) => value > 0).map(Math.log10);
  return Math.max(...logs) - Math.min(...logs);
}

function axis(chart, name, own, values) {
  const css = getComputedStyle(chart);
  const button = figureOf(chart).querySelector(`[data-axis="${name}"]`);
  // Panels keep their own scale until the reader chooses one for all.
  const type = button.dataset.chosen ? (isPressed(button) ? "log" : "linear") : own.type;
  const colours = { color: css.color, gridcolor: css.borderTopColor, linecolor: css.borderTopColor, zeroline: false };
  const room = (name === "xaxis" ? chart.clientWidth / 180 : 3) > decades(values);
  const log = type === "log" ? { minorloglabels: "complete", dtick: room ? "D2" : 1 } : {}; // 1, 2, 5 or decades
  const title = { ...own.title, standoff: 8 };
  return { ...own, ...colours, ...log, title, type, automargin: true, showline: true, uirevision: type };
}

function draw(chart) {
  const { data, layout } = charts[chart.dataset.figure][chart.dataset.panel];
  const css = getComputedStyle(chart);
  const traces = data.map((trace) => withColour({ ...trace, chart }));
  const whole = {
    xaxis: axis(chart, "xaxis", layout.xaxis, data.flatMap((trace) => trace.x)),
    yaxis: axis(chart, "yaxis", layout.yaxis, data.flatMap((trace) => trace.y)),
    font: { family: css.fontFamily, size: 12, color: css.color },
    hoverlabel: { bgcolor: css.backgroundColor, bordercolor: css.borderTopColor, font: { color: css.color } },
    hovermode: "x unified",
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 56, r: 24, t: 12, b: 50 },
    // On touch screens, dragging scrolls the page.
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    uirevision: "kept",
  };
  return Plotly.react(chart, traces, whole, { responsive: true, displaylogo: false, displayModeBar: false, showTips: false });
}

const nearby = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    nearby.unobserve(target);
    draw(target);
  }
}, { rootMargin: "300px" });
all(".chart").forEach((chart) => nearby.observe(chart));

const redraw = (button) => all(".chart.js-plotly-plot", button.closest("section")).forEach(draw);

all("[data-entry]").forEach((button) => button.addEventListener("click", () => {
  press(button, !isPressed(button));
  redraw(button);
}));
all("[data-axis]").forEach((button) => button.addEventListener("click", () => {
  press(button, !isPressed(button));
  button.dataset.chosen = "yes";
  redraw(button);
}));
all("[data-reset]").forEach((button) => button.addEventListener("click", () => {
  for (const chart of all(".chart.js-plotly-plot", button.closest("section"))) {
    Plotly.relayout(chart, { "xaxis.autorange": true, "yaxis.autorange": true });
  }
}));

/* Print in the light theme, with all charts drawn. */

addEventListener("beforeprint", () => {
  root.dataset.screenTheme = root.dataset.theme;
  root.dataset.theme = "light";
  all(".chart").forEach(draw);
});
addEventListener("afterprint", () => {
  root.dataset.theme = root.dataset.screenTheme;
  showTheme();
});

/* Filter the table of claims by verdict. */

const claims = all("#claims-table tbody");
all("[name=verdict]").forEach((choice) => choice.addEventListener("change", () => {
  for (const claim of claims) claim.hidden = Boolean(choice.value) && claim.dataset.verdict !== choice.value;
  const count = claims.filter((claim) => !claim.hidden).length;
  document.getElementById("shown").textContent = count === 1 ? "1 claim" : `${count} claims`;
}));

/* Copy buttons of commands. */

all("[data-copy]").forEach((button) => button.addEventListener("click", async () => {
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}));

showTheme();
