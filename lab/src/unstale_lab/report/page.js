"use strict";

const root = document.documentElement;
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const isPressed = (button) => button.getAttribute("aria-pressed") === "true";
const press = (button, on) => button.setAttribute("aria-pressed", String(on));

/* Theme: the reader's choice, else the system's. */

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
const themeButton = document.getElementById("theme");
const theme = () => root.dataset.theme || (systemIsDark.matches ? "dark" : "light");
const showTheme = () => press(themeButton, theme() === "dark");

themeButton.addEventListener("click", () => {
  root.dataset.theme = theme() === "dark" ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* no storage: for this page view only */ }
  showTheme();
});
systemIsDark.addEventListener("change", showTheme);
showTheme();

/* Legends: show and hide a line in all panels of a figure. */

all(".legend button").forEach((button) => {
  button.disabled = false;
  button.addEventListener("click", () => {
    press(button, !isPressed(button));
    const lines = all(`.chart [data-entry="${button.dataset.entry}"]`, button.closest("section"));
    for (const line of lines) line.classList.toggle("off", !isPressed(button));
  });
});

/* Axes, as in axes.py. */

const power = (exponent) => Number(`1e${exponent}`);

function linearTicks(low, high) {
  const exponent = Math.floor(Math.log10((high - low) / 6));
  for (const step of [exponent, exponent + 1].flatMap((e) => [1, 2, 2.5, 5].map((f) => f * power(e)))) {
    const first = Math.ceil(low / step - 1e-9), count = Math.floor(high / step + 1e-9) - first + 1;
    if (count >= 3 && count < 7) return Array.from({ length: count }, (_, i) => Number(((first + i) * step).toPrecision(10)));
  }
  return [low, high];
}

function logTicks(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  for (const [digits, stride] of [[[1, 2, 5], 1], [[1, 3], 1], [[1], 1], [[1], 2], [[1], 3], [[1], 5]]) {
    const found = [];
    for (let n = first; n <= last; n += 1) {
      if (n % stride === 0) found.push(...digits.map((digit) => Number(`${digit}e${n}`)));
    }
    const inside = found.filter((value) => value >= low && value <= high * (1 + 1e-9));
    if (inside.length <= 8) return inside.length >= 3 ? inside : linearTicks(low, high);
  }
  return linearTicks(low, high);
}

function tickText(value, largest) {
  const unit = largest >= 1e7 || Math.abs(value) >= 1e6 ? [1e6, "M"] : largest >= 1e4 && Math.abs(value) >= 1e3 ? [1e3, "k"] : [1, ""];
  return `${Number((value / unit[0]).toPrecision(6))}${unit[1]}`.replace("-", "−");
}

/* A scale between values and shares of the length of an axis. */
function scale([low, high, isLog, isComplement]) {
  const [to, from] = isLog ? [Math.log, Math.exp] : [(v) => v, (v) => v];
  const [begin, end] = [to(low), to(high)];
  const turn = (share) => (isComplement ? 1 - share : share);
  const drawn = (value) => (isComplement ? 1 - value : value);
  return {
    share: (value) => turn((to(drawn(value)) - begin) / (end - begin)),
    /* Ticks between two shares, each with its share and text. */
    ticks(from0, to0) {
      const ends = [from0, to0].map((share) => from(begin + turn(share) * (end - begin)));
      const inside = (isLog ? logTicks : linearTicks)(Math.min(...ends), Math.max(...ends));
      const largest = Math.max(...inside.map(Math.abs));
      return inside.map((value) => ({
        share: turn((to(value) - begin) / (end - begin)),
        text: isComplement ? String(Number((1 - value).toPrecision(10))) : tickText(value, largest),
      }));
    },
  };
}

/* Charts: tooltip and zoom. */

/* The points of a path, whose coordinates are relative to the point before. */
function pathPoints(path) {
  const points = [];
  let [x, y] = [0, 0];
  for (const [, dx, dy] of path.getAttribute("d").matchAll(/(-?[\d.]+),(-?[\d.]+)/g)) points.push([x += Number(dx), y += Number(dy)]);
  return points;
}

const tooltip = document.getElementById("tooltip");
const svgElement = (name, attributes) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};
const round = (value) => Math.round(value * 10) / 10;

class Chart {
  constructor(svg) {
    this.svg = svg;
    this.plot = svg.querySelector(".plot");
    this.ticks = svg.querySelector(".ticks");
    const data = JSON.parse(svg.dataset.chart);
    [this.left, this.top, this.width, this.height] = ["x", "y", "width", "height"].map((name) => Number(this.plot.getAttribute(name)));
    this.x = scale(data.x);
    this.y = scale(data.y);
    this.at = data.at;
    this.paths = all("path", this.plot).map((path) => [path, pathPoints(path), path.getAttribute("d")]);
    this.points = all("use, text", this.plot).map((point) => [point, Number(point.getAttribute("x")), Number(point.getAttribute("y"))]);
    this.originalTicks = this.ticks.innerHTML;
    this.view = [0, 0, this.width, this.height];
    this.plot.addEventListener("pointermove", (event) => (this.begin ? this.select(event) : this.point(event)));
    this.plot.addEventListener("pointerdown", (event) => this.press(event));
    this.plot.addEventListener("pointerup", (event) => this.release(event));
    this.plot.addEventListener("pointercancel", () => this.cancel());
    this.plot.addEventListener("pointerleave", () => this.hide());
    this.plot.addEventListener("dblclick", () => this.zoom([0, 0, this.width, this.height]));
    // An empty plot area receives pointer events too.
    this.plot.prepend(svgElement("rect", { width: this.width, height: this.height, fill: "transparent" }));
  }

  /* Coordinates of an event within the plot, as drawn now. */
  place(event) {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(this.svg.getScreenCTM().inverse());
    return [Math.min(Math.max(at.x - this.left, 0), this.width), Math.min(Math.max(at.y - this.top, 0), this.height)];
  }

  get isZoomed() { return this.view[2] < this.width || this.view[3] < this.height; }

  /* Show the part [x, y, width, height] of the original plot. */
  zoom(view) {
    this.view = view;
    const [left, top, width, height] = view;
    const [byX, byY] = [this.width / width, this.height / height];
    const moveX = (x) => round((x - left) * byX), moveY = (y) => round((y - top) * byY);
    for (const [path, points, original] of this.paths) {
      const moved = `M${points.map(([x, y]) => `${moveX(x)},${moveY(y)}`).join(" ")}${original.endsWith("Z") ? "Z" : ""}`;
      path.setAttribute("d", this.isZoomed ? moved : original);
    }
    for (const [point, x, y] of this.points) {
      point.setAttribute("x", moveX(x));
      point.setAttribute("y", moveY(y));
    }
    this.svg.classList.toggle("zoomed", this.isZoomed);
    this.isZoomed ? this.drawTicks() : (this.ticks.innerHTML = this.originalTicks);
    const section = this.svg.closest("section");
    section.querySelector("[data-reset]").hidden = !charts.some((chart) => chart.isZoomed && section.contains(chart.svg));
    this.hide();
  }

  drawTicks() {
    const [left, top, width, height] = this.view;
    const bottom = this.top + this.height, right = this.left + this.width;
    const grid = [], texts = [];
    let labelled = -Infinity;
    const text = (name, x, y, content) => {
      const element = svgElement("text", { class: name, x: round(x), y: round(y) });
      element.textContent = content;
      texts.push(element);
    };
    for (const tick of this.x.ticks(left / this.width, (left + width) / this.width)) {
      const at = round(this.left + (tick.share * this.width - left) * this.width / width);
      grid.push(`M${at},${this.top}V${bottom}`);
      const space = 3.5 * (tick.text.length + 1);
      if (Math.abs(at - labelled) < 2 * space) continue; // labels would overlap
      labelled = at;
      text("tick-x", at, bottom + 14, tick.text);
    }
    for (const tick of this.y.ticks(1 - (top + height) / this.height, 1 - top / this.height)) {
      const at = round(this.top + ((1 - tick.share) * this.height - top) * this.height / height);
      grid.push(`M${this.left},${at}H${right}`);
      text("tick-y", this.left - 4, at + 3.5, tick.text);
    }
    this.ticks.replaceChildren(svgElement("path", { class: "grid", d: grid.join("") }), ...texts);
  }

  /* Dragging selects what to zoom into. On touch screens it scrolls the page instead. */
  press(event) {
    if (event.pointerType !== "mouse" || event.button !== 0) return;
    event.preventDefault();
    this.plot.setPointerCapture(event.pointerId);
    this.begin = this.place(event);
    this.selection = svgElement("rect", { class: "selection" });
    this.plot.append(this.selection);
    this.hide();
  }

  select(event) {
    const [x, y] = this.place(event), [x0, y0] = this.begin;
    const box = { x: Math.min(x, x0), y: Math.min(y, y0), width: Math.abs(x - x0), height: Math.abs(y - y0) };
    for (const [name, value] of Object.entries(box)) this.selection.setAttribute(name, value);
    this.box = box;
  }

  release(event) {
    if (!this.begin) return;
    this.select(event);
    const { x, y, width, height } = this.box, [left, top, w, h] = this.view;
    this.cancel();
    if (width < 8 || height < 8) return;
    this.zoom([left + x * w / this.width, top + y * h / this.height, width * w / this.width, height * h / this.height]);
  }

  cancel() {
    this.selection?.remove();
    this.begin = this.selection = null;
  }

  /* Show the values of all lines at the x closest to the pointer. */
  point(event) {
    const [x] = this.place(event), [left, , width] = this.view;
    const original = left + x * width / this.width;
    const places = this.at.map((value) => this.x.share(value) * this.width);
    const nearest = places.reduce((best, place, i) => (Math.abs(place - original) < Math.abs(places[best] - original) ? i : best), 0);
    const legend = this.svg.closest("section").querySelector(".legend");
    const lines = [];
    for (const series of all(".series:not(.off)", this.plot)) {
      const points = this.paths.find(([own]) => own.parentElement === series)[1];
      const index = points.findIndex(([at]) => Math.abs(at - places[nearest]) < 0.2);
      if (index < 0) continue;
      const line = document.createElement("span");
      const entry = legend.querySelector(`[data-entry="${series.dataset.entry}"]`);
      line.append(entry.querySelector(".swatch").cloneNode(true), ` ${entry.querySelector(".label").textContent} ${series.dataset.values.split(" ")[index].replace(/^(−?)\./, "$10.")}`);
      lines.push(line);
    }
    const heading = document.createElement("b");
    heading.textContent = `${this.svg.querySelector(".title").textContent} ${Number(this.at[nearest]).toLocaleString("en")}`;
    tooltip.replaceChildren(heading, ...lines);
    tooltip.hidden = false;
    const beside = event.clientX + 16 + tooltip.offsetWidth > innerWidth ? -16 - tooltip.offsetWidth : 16;
    tooltip.style.left = `${Math.max(0, event.clientX + beside) + scrollX}px`;
    tooltip.style.top = `${event.clientY + 16 + scrollY}px`;
    this.line?.remove();
    const at = (places[nearest] - left) * this.width / width;
    this.line = svgElement("line", { class: "pointer", x1: at, x2: at, y1: 0, y2: this.height });
    this.plot.prepend(this.line);
  }

  hide() {
    tooltip.hidden = true;
    this.line?.remove();
  }
}

const charts = all(".chart").map((svg) => new Chart(svg));
all("[data-reset]").forEach((button) => button.addEventListener("click", () => {
  for (const chart of charts) if (button.closest("section").contains(chart.svg)) chart.zoom([0, 0, chart.width, chart.height]);
}));

/* Claims: filter by answer, and open the numbers of a claim that is linked to. */

const claims = all("#claims-table > tbody");
all("[name=answer]").forEach((choice) => choice.addEventListener("change", () => {
  for (const claim of claims) claim.hidden = Boolean(choice.value) && !claim.dataset.answers.split(";").includes(choice.value);
  const count = claims.filter((claim) => !claim.hidden).length;
  document.getElementById("shown").textContent = count === 1 ? "1 claim" : `${count} claims`;
}));

function openLinkedClaim() {
  const linked = claims.find((claim) => `#${claim.id}` === location.hash);
  const details = linked?.querySelector("details");
  if (details) details.open = true;
}
addEventListener("hashchange", openLinkedClaim);
openLinkedClaim();

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
