// Zoom for the pictures that have their lines with them: drag over the picture, or use the buttons below it.
// The picture itself stays as it is, for readers without scripts and for paper; a zoomed view lies over it.
"use strict";
const numbers = (text) => new Uint16Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
const decoded = (text, [low, high]) =>
  Array.from(numbers(text), (level) => (level > 65534 ? NaN : low + ((high - low) * level) / 65534));
const element = (name, attributes, text) => {
  const made = document.createElementNS(document.querySelector("svg").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};
const label = (value, step) =>
  Math.abs(step) >= 1 || value === 0
    ? value.toLocaleString("en-US", { maximumFractionDigits: 0 })
    : Math.abs(value) < 1e-3
      ? value.toExponential(1)
      : value.toFixed(Math.min(6, Math.max(0, Math.ceil(-Math.log10(step)))));

/** About `count` round numbers between low and high. */
function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) found.push(k * step);
  return found.map((value) => [value, label(value, step)]);
}

/** One axis of the picture from `from` to `to`, with y limits that fit what is seen. */
function panel(svg, axis, from, to, width, height, last) {
  const [left, bottom, right, top] = axis.box;
  const frame = { x: left * width, y: (1 - top) * height, w: (right - left) * width, h: (top - bottom) * height };
  const scaled = axis.log ? Math.log10 : (v) => v;
  let low = Infinity, high = -Infinity;
  for (const line of axis.lines) {
    line.points.forEach(([x, y]) => {
      if (x >= from && x <= to && Number.isFinite(scaled(y))) (low = Math.min(low, scaled(y))), (high = Math.max(high, scaled(y)));
    });
  }
  if (!(low <= high)) [low, high] = [0, 1];
  const margin = 0.06 * (high - low) || 0.05 * Math.abs(high) || 0.5;
  (low -= margin), (high += margin);
  const px = (x) => frame.x + ((x - from) / (to - from)) * frame.w;
  const py = (y) => frame.y + frame.h - ((scaled(y) - low) / (high - low)) * frame.h;
  const grid = { stroke: "#e8e8e8", "stroke-width": 1 };
  for (const [value, text] of ticks(low, high, frame.h / 45)) {
    const y = frame.y + frame.h - ((value - low) / (high - low)) * frame.h;
    svg.append(element("line", { x1: frame.x, x2: frame.x + frame.w, y1: y, y2: y, ...grid }));
    const shown = axis.log ? (10 ** value).toPrecision(2) : text;
    svg.append(element("text", { x: frame.x - 6, y: y + 4, "text-anchor": "end" }, shown));
  }
  for (const [value, text] of ticks(from, to, frame.w / 110)) {
    svg.append(element("line", { x1: px(value), x2: px(value), y1: frame.y, y2: frame.y + frame.h, ...grid }));
    if (last) svg.append(element("text", { x: px(value), y: frame.y + frame.h + 17, "text-anchor": "middle" }, text));
  }
  const inside = element("svg", { x: frame.x, y: frame.y, width: frame.w, height: frame.h });
  for (const line of axis.lines) {
    let path = "", gap = true;
    for (const [x, y] of line.points) {
      const at = py(y);
      if (!Number.isFinite(at)) gap = true;
      else (path += `${gap ? "M" : "L"}${(px(x) - frame.x).toFixed(1)} ${(at - frame.y).toFixed(1)}`), (gap = false);
    }
    const drawn = { d: path, fill: "none", stroke: line.colour, "stroke-width": 1.2 * line.width, "stroke-opacity": line.alpha };
    inside.append(element("path", drawn));
    if (line.label) inside.lastChild.append(element("title", {}, line.label));
  }
  svg.append(inside);
  const named = axis.lines.filter((line) => line.label);
  const legend = element("text", { x: frame.x + frame.w, y: frame.y - 7, "text-anchor": "end" });
  for (const line of named.length > 1 ? named : [])
    legend.append(element("tspan", { fill: line.colour, "font-weight": 700 }, "\u2003— "), element("tspan", {}, line.label));
  svg.append(legend);
  const middle = frame.y + frame.h / 2;
  svg.append(element("text", { transform: `translate(9 ${middle}) rotate(-90)`, "text-anchor": "middle" }, axis.name));
  svg.append(element("path", { d: `M${frame.x} ${frame.y}v${frame.h}h${frame.w}`, fill: "none", stroke: "#777777" }));
}

/** Makes one figure zoom. */
function zoomable(figure) {
  const axes = JSON.parse(figure.querySelector("script[type='application/json']").textContent);
  for (const axis of axes) {
    for (const line of axis.lines) {
      const y = decoded(line.y, line.ends);
      line.points = decoded(line.x, axis.x).map((x, i) => [x, y[i]]);
    }
  }
  const image = figure.querySelector("img"), frame = figure.querySelector(".frame"), whole = axes[0].x;
  const [left, , right] = axes[0].box;
  let view = whole;
  const shade = frame.appendChild(document.createElement("div"));
  shade.className = "shade";
  const svg = frame.querySelector("svg");

  function show(from, to) {
    const span = Math.min(Math.max(to - from, (whole[1] - whole[0]) / 500), whole[1] - whole[0]);
    from = Math.min(Math.max(from, whole[0]), whole[1] - span);
    view = [from, from + span];
    const zoomed = span < 0.999 * (whole[1] - whole[0]);
    figure.classList.toggle("zooms", zoomed);
    buttons.all.disabled = buttons.out.disabled = !zoomed;
    svg.replaceChildren();
    if (!zoomed) return;
    const { width, height } = image.getBoundingClientRect();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    axes.forEach((axis, i) => panel(svg, axis, ...view, width, height, i === axes.length - 1));
    const name = { x: (width * (left + right)) / 2, y: height - 4, "text-anchor": "middle" };
    svg.append(element("text", name, `steps ${Math.round(view[0]).toLocaleString("en-US")} to ${Math.round(view[1]).toLocaleString("en-US")}`));
  }

  const by = (factor, shift) => () => {
    const span = view[1] - view[0], centre = (view[0] + view[1]) / 2 + shift * span;
    show(centre - (factor * span) / 2, centre + (factor * span) / 2);
  };
  const bar = figure.querySelector(".zoom"), buttons = {};
  const actions = {
    in: ["Zoom in", by(0.5, 0)], out: ["Zoom out", by(2, 0)], back: ["← Earlier", by(1, -0.5)],
    on: ["Later →", by(1, 0.5)], all: ["Whole run", () => show(...whole)],
  };
  for (const [key, [text, action]] of Object.entries(actions)) {
    const button = (buttons[key] = bar.appendChild(document.createElement("button")));
    Object.assign(button, { type: "button", textContent: text, onclick: action });
  }
  bar.hidden = false;

  let start = null;
  const share = (event) => {
    const box = image.getBoundingClientRect();
    return Math.min(1, Math.max(0, ((event.clientX - box.left) / box.width - left) / (right - left)));
  };
  frame.onpointerdown = (event) => {
    if (event.pointerType === "touch" || event.button) return; // fingers swipe wide pictures
    start = share(event);
    frame.setPointerCapture(event.pointerId);
    event.preventDefault();
  };
  frame.onpointermove = (event) => {
    if (start === null) return;
    const [a, b] = [start, share(event)].sort((p, q) => p - q), width = image.getBoundingClientRect().width;
    shade.style.cssText = `display:block;left:${(left + a * (right - left)) * width}px;width:${(b - a) * (right - left) * width}px`;
  };
  frame.onpointerup = (event) => {
    if (start === null) return;
    const [a, b] = [start, share(event)].sort((p, q) => p - q), span = view[1] - view[0];
    start = null;
    shade.style.display = "none";
    if (b - a > 0.01) show(view[0] + a * span, view[0] + b * span);
  };
  frame.onpointercancel = () => ((start = null), (shade.style.display = "none"));
  frame.ondblclick = () => show(...whole);
  addEventListener("resize", () => show(...view));
  show(...whole);
}
document.querySelectorAll("figure.zoomable").forEach(zoomable);
