"use strict";
// Draws the figures of a report from the JSON beside it, as SVG; every number on the page is in that JSON or in a table.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const off = new Set();
  const charts = [];
  const SVG = "http://www.w3.org/2000/svg";

  const make = (name, attributes = {}, parent = null, text = null) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };
  const html = (name, properties = {}, ...children) => {
    const node = Object.assign(document.createElement(name), properties);
    node.append(...children);
    return node;
  };
  const color = (key) => `var(--s${data.keys.indexOf(key)})`;
  const number = (value) => {
    if (value === null) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
    return size >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(3));
  };
  const steps = (value) => {
    for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)}${letter}`;
    }
    return String(Math.round(value));
  };
  const shown = (value, axis) =>
    axis.unit === "steps" ? steps(value) : axis.unit === "share" && value !== null ? `${+(value * 100).toFixed(1)}%` : number(value);

  const visible = (series) => !off.has(series.key) && !(series.style === "dashed" && off.has("the paper"));

  // A scale maps a value to pixels and knows its ticks.
  const scale = (axis, low, high, from, to) => {
    if (axis.log) {
      const [a, b] = [Math.log10(low), Math.log10(high) === Math.log10(low) ? Math.log10(low) + 1 : Math.log10(high)];
      const map = (value) => from + ((Math.log10(value) - a) / (b - a)) * (to - from);
      const ticks = [];
      const stride = Math.max(1, Math.ceil((b - a) / 5));
      const steps = b - a < 2 ? [1, 2, 5] : [1];
      for (let power = Math.floor(a); power <= b; power += stride) {
        for (const step of steps) if (step * 10 ** power >= low && step * 10 ** power <= high) ticks.push(step * 10 ** power);
      }
      return { map, ticks };
    }
    const span = high - low || 1;
    const raw = span / 5;
    const unit = 10 ** Math.floor(Math.log10(raw));
    const stride = unit * [1, 2, 2.5, 5, 10].find((factor) => factor * unit >= raw);
    const ticks = [];
    // Multiples of the stride: adding it up would leave 1.73e-18 where 0 should be.
    for (let count = Math.ceil(low / stride); count * stride <= high + 1e-9 * span; count += 1) ticks.push(+(count * stride).toPrecision(12));
    return { map: (value) => from + ((value - low) / span) * (to - from), ticks };
  };

  const extent = (values, axis, pad) => {
    const usable = values.filter((value) => value !== null && (!axis.log || value > 0));
    if (!usable.length) return axis.log ? [1, 10] : [0, 1];
    let [low, high] = [Math.min(...usable), Math.max(...usable)];
    if (axis.log) return pad ? [low / 1.3, high * 1.3] : [low, high];
    if (pad) {
      if (low > 0) low = 0;
      const room = (high - low || 1) * 0.06;
      [low, high] = [low < 0 ? low - room : low, high + room];
    }
    return [low, high];
  };

  const nearest = (values, x) => {
    let best = 0;
    values.forEach((value, index) => { if (Math.abs(value - x) < Math.abs(values[best] - x)) best = index; });
    return best;
  };

  // What is drawn at x: a point of the series, or the line between two; null outside.
  const valueAt = (series, x) => {
    const after = series.x.findIndex((value) => value >= x);
    if (after < 0 || (after === 0 && series.x[0] > x)) return null;
    const before = series.x[after] === x ? after : after - 1;
    const share = before === after ? 0 : (x - series.x[before]) / (series.x[after] - series.x[before]);
    const between = (values) =>
      !values || values[before] === null || values[after] === null ? null : values[before] + share * (values[after] - values[before]);
    const count = series.runs ? Math.min(series.runs[before], series.runs[after]) : null;
    return { y: between(series.y), low: between(series.low), high: between(series.high), runs: count };
  };
  const interval = (low, high, axis) => (low === null || low === undefined ? "" : ` [${shown(low, axis)}, ${shown(high, axis)}]`);
  const runs = (count) => (count === null ? "" : ` ${count} run${count === 1 ? "" : "s"}`);
  const tipRow = (series, text, note) => {
    const swatch = html("i");
    swatch.style.setProperty("--c", color(series.key));
    return html("div", {}, swatch, html("span", { textContent: `${series.label}  ${text}` }), html("small", { textContent: note }));
  };

  const placeTip = (tip, holder, x, y) => {
    const width = holder.clientWidth;
    tip.hidden = false;
    // On a phone it would cover the figure, so it goes below.
    const narrow = width < 480;
    tip.style.left = `${narrow ? 0 : Math.max(0, Math.min(x + 14, width - tip.offsetWidth - 2))}px`;
    tip.style.top = `${narrow ? holder.clientHeight - 6 : Math.max(0, y)}px`;
  };

  function drawCurves(panel, holder, svg, tip) {
    const width = holder.clientWidth - 20;
    const height = Math.max(200, Math.min(340, width * 0.62));
    const arrow = panel.arrow && panel.arrow.keys.every((key) => !off.has(key)) ? panel.arrow : null;
    const box = { left: 52, right: width - 14, top: arrow ? 24 : 10, bottom: height - 40 };
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    const lines = panel.series.filter(visible);
    if (!lines.length) {
      make("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, svg, "everything here is switched off");
      return null;
    }
    const xs = lines.flatMap((line) => line.x);
    const ys = lines.flatMap((line) => [...line.y, ...(line.low ?? []), ...(line.high ?? [])]);
    const yRange = extent(ys, panel.y, true);
    const longest = Math.max(...scale(panel.y, ...yRange, 1, 0).ticks.map((tick) => shown(tick, panel.y).length));
    box.left = 26 + 6.5 * longest;
    const x = scale(panel.x, ...extent(xs, panel.x, false), box.left, box.right);
    const y = scale(panel.y, ...yRange, box.bottom, box.top);
    const xTicks = panel.x.log ? [...new Set(xs)].sort((a, b) => a - b) : x.ticks;
    for (const tick of y.ticks) {
      make("line", { class: "grid", x1: box.left, x2: box.right, y1: y.map(tick), y2: y.map(tick) }, svg);
      make("text", { x: box.left - 6, y: y.map(tick) + 4, "text-anchor": "end" }, svg, shown(tick, panel.y));
    }
    let taken = -Infinity;
    for (const tick of xTicks) {
      if (x.map(tick) - taken < 34) continue;
      taken = x.map(tick);
      make("line", { class: "axis", x1: taken, x2: taken, y1: box.bottom, y2: box.bottom + 4 }, svg);
      make("text", { x: taken, y: box.bottom + 16, "text-anchor": "middle" }, svg, shown(tick, panel.x));
    }
    make("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }, svg);
    make("text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, svg, panel.x.label);
    make("text", { x: 12, y: (box.top + box.bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(box.top + box.bottom) / 2})` }, svg, panel.y.label);
    const floor = (value) => (panel.y.log ? Math.max(value, yRange[0]) : value);
    for (const line of lines) {
      const known = line.x.map((_, index) => index).filter((index) => line.y[index] !== null && (!panel.y.log || line.y[index] > 0));
      const withBand = known.filter((index) => line.low && line.low[index] !== null);
      if (withBand.length > 1) {
        const upper = withBand.map((index) => `${x.map(line.x[index])},${y.map(line.high[index])}`);
        const lower = withBand.map((index) => `${x.map(line.x[index])},${y.map(floor(line.low[index]))}`).reverse();
        make("polygon", { class: "band", points: [...upper, ...lower].join(" "), style: `fill:${color(line.key)}` }, svg);
      }
      const path = known.map((index) => `${x.map(line.x[index])},${y.map(line.y[index])}`).join(" ");
      make("polyline", { class: `curve ${line.style}`, points: path, style: `stroke:${color(line.key)}`, "data-key": line.key }, svg);
      if (known.length === 1 || (line.style === "solid" && known.length < 12)) {
        for (const index of known) make("circle", { cx: x.map(line.x[index]), cy: y.map(line.y[index]), r: 2.6, style: `fill:${color(line.key)}` }, svg);
      }
    }
    if (arrow) {
      const [a, b, height_] = [x.map(arrow.start), x.map(arrow.end), y.map(arrow.y)];
      make("path", { class: "arrow-line", d: `M${b},${height_} H${a} m6,-4 l-6,4 l6,4` }, svg);
      // Above the plot, where it crosses nothing.
      make("text", { class: "arrow", x: box.right, y: 12, "text-anchor": "end" }, svg, arrow.text);
    }
    const cross = make("line", { class: "cross", y1: box.top, y2: box.bottom, visibility: "hidden" }, svg);
    const own = lines.filter((line) => line.style === "solid");
    const stops = [...new Set((own.length ? own : lines).flatMap((line) => line.x))].sort((a, b) => a - b);
    const show = (at) => {
      cross.setAttribute("x1", x.map(at));
      cross.setAttribute("x2", x.map(at));
      cross.setAttribute("visibility", "visible");
      tip.replaceChildren(html("small", { textContent: `${shown(at, panel.x)} ${panel.x.label}` }));
      for (const line of lines) {
        const value = valueAt(line, at);
        if (value === null || value.y === null) continue;
        tip.append(tipRow(line, shown(value.y, panel.y) + interval(value.low, value.high, panel.y), runs(value.runs)));
      }
      placeTip(tip, holder, x.map(at), 30);
    };
    const hide = () => { cross.setAttribute("visibility", "hidden"); tip.hidden = true; };
    const toStop = (event) => {
      const inside = event.clientX - svg.getBoundingClientRect().left;
      return nearest(stops.map(x.map), inside);
    };
    return { stops: stops.length, show: (index) => show(stops[index]), hide, toStop };
  }

  // Bars and intervals are rows: long labels stay readable on a phone.
  function drawRows(panel, holder, svg, tip, kind) {
    const width = holder.clientWidth - 20;
    const rows = panel.series.filter(visible);
    const left = Math.min(width * 0.42, 16 + 6.4 * Math.max(4, ...rows.map((row) => row.label.length)));
    const [step, top] = [30, 8];
    const height = top + step * Math.max(1, rows.length) + 40;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    if (!rows.length) {
      make("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, svg, "everything here is switched off");
      return null;
    }
    const axis = kind === "bars" ? panel.y : panel.x;
    const value = (row) => (kind === "bars" ? row.y[0] : row.x[0]);
    const all = rows.flatMap((row) => [value(row), ...(row.low ?? []), ...(row.high ?? [])]);
    const [low, high] = kind === "bars" ? extent([0, ...all], axis, true) : [0, 1];
    const bottom = top + step * rows.length;
    const x = scale(axis, low, high, left, width - 14);
    let taken = -Infinity;
    for (const tick of x.ticks) {
      make("line", { class: "grid", x1: x.map(tick), x2: x.map(tick), y1: top, y2: bottom }, svg);
      if (x.map(tick) - taken < 40) continue;
      taken = x.map(tick);
      make("text", { x: taken, y: bottom + 15, "text-anchor": "middle" }, svg, shown(tick, axis));
    }
    const base = x.map(kind === "bars" ? 0 : 0.5);
    make("line", { class: "cross", x1: base, x2: base, y1: top, y2: bottom }, svg);
    make("text", { x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, svg, axis.label);
    rows.forEach((row, index) => {
      const middle = top + step * (index + 0.5);
      const at = x.map(value(row));
      const label = make("text", { class: "row", x: left - 8, y: middle + 4, "text-anchor": "end" }, svg, row.label);
      if (label.getComputedTextLength && label.getComputedTextLength() > left - 10) {
        label.setAttribute("textLength", left - 12);
        label.setAttribute("lengthAdjust", "spacingAndGlyphs");
      }
      if (kind === "bars") make("rect", { class: "bar", x: Math.min(base, at), width: Math.max(1, Math.abs(at - base)), y: middle - 8, height: 16, rx: 2, style: `fill:${color(row.key)}`, "data-key": row.key }, svg);
      if (row.low && row.low[0] !== null) {
        const [a, b] = [x.map(row.low[0]), x.map(row.high[0])];
        const tone = kind === "bars" ? "var(--ink)" : color(row.key);
        make("path", { class: "whisker", d: `M${a},${middle} H${b} M${a},${middle - 4} v8 M${b},${middle - 4} v8`, style: `stroke:${tone}` }, svg);
      }
      if (kind === "intervals") make("circle", { class: "dot", cx: at, cy: middle, r: 4.5, style: `fill:${color(row.key)}`, "data-key": row.key }, svg);
    });
    const show = (index) => {
      const row = rows[index];
      tip.replaceChildren(tipRow(row, shown(value(row), axis) + interval(row.low?.[0], row.high?.[0], axis), runs(row.runs ? row.runs[0] : null)));
      placeTip(tip, holder, left, top + step * (index + 1) + 16);
    };
    const toStop = (event) => {
      const inside = event.clientY - svg.getBoundingClientRect().top - top;
      return Math.max(0, Math.min(rows.length - 1, Math.floor(inside / step)));
    };
    return { stops: rows.length, show, hide: () => { tip.hidden = true; }, toStop };
  }

  // A line of a panel's own legend, drawn as in the panel.
  const lineLabel = (series) => {
    const swatch = make("svg", { width: 22, height: 8, "aria-hidden": "true" });
    make("polyline", { class: `curve ${series.style}`, points: "1,4 21,4", style: `stroke:${color(series.key)}` }, swatch);
    return html("span", {}, swatch, series.label);
  };

  function chart(panel, kind, place) {
    const title = html("h4", { textContent: panel.title });
    const svg = make("svg", { role: "img", tabindex: "0", "aria-label": describe(panel) });
    const tip = html("div", { className: "tip", hidden: true });
    tip.setAttribute("role", "status");
    const legend = html("div", { className: "lines" });
    const holder = html("div", { className: "panel" }, title, ...(panel.legend ? [legend] : []), svg, tip);
    place.append(holder);
    let state = null;
    let current = -1;
    const redraw = () => {
      if (!holder.clientWidth) return;
      svg.replaceChildren();
      legend.replaceChildren(panel.legend, ...panel.series.filter(visible).map(lineLabel));
      tip.hidden = true;
      current = -1;
      state = kind === "curves" ? drawCurves(panel, holder, svg, tip) : drawRows(panel, holder, svg, tip, kind);
    };
    const go = (index) => { if (state && state.stops) state.show(current = Math.max(0, Math.min(state.stops - 1, index))); };
    const leave = () => { if (state) state.hide(); };
    svg.addEventListener("pointermove", (event) => { if (state && state.stops) go(state.toStop(event)); });
    svg.addEventListener("pointerdown", (event) => { if (state && state.stops) go(state.toStop(event)); });
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const next = { ArrowRight: current + 1, ArrowDown: current + 1, ArrowLeft: current - 1, ArrowUp: current - 1, Home: 0, End: Infinity }[event.key];
      if (next !== undefined) { event.preventDefault(); go(next); }
      if (event.key === "Escape") leave();
    });
    charts.push(redraw);
    let width = holder.clientWidth;
    // At once: printing and screenshots do not wait for a frame.
    redraw();
    // Drawing changes the height, which must not be answered by drawing again.
    new ResizeObserver(() => {
      if (holder.clientWidth === width) return;
      width = holder.clientWidth;
      requestAnimationFrame(redraw);
    }).observe(holder);
  }

  const describe = (panel) => {
    const ends = panel.series.map((series) => `${series.label} ${shown((panel.x.unit === "share" && !panel.y.label ? series.x : series.y).at(-1), panel.y)}`);
    return `${panel.title}. ${panel.y.label || panel.x.label}; last values: ${ends.join(", ")}. Arrow keys read the values.`;
  };

  for (const figure of data.figures) {
    const place = document.querySelector(`[data-figure="${figure.name}"]`);
    place.classList.toggle("few", figure.panels.length === 2);
    place.classList.toggle("one", figure.panels.length === 1);
    for (const panel of figure.panels) chart(panel, figure.kind, place);
  }

  for (const button of document.querySelectorAll(".toggle")) {
    button.addEventListener("click", () => {
      const key = button.dataset.key;
      if (off.has(key)) off.delete(key); else off.add(key);
      button.setAttribute("aria-pressed", String(!off.has(key)));
      charts.forEach((redraw) => redraw());
    });
  }

  for (const tabs of document.querySelectorAll("[role=tablist]")) {
    const buttons = [...tabs.querySelectorAll("[role=tab]")];
    const choose = (chosen) => {
      for (const button of buttons) {
        const selected = button === chosen;
        button.setAttribute("aria-selected", String(selected));
        button.tabIndex = selected ? 0 : -1;
        document.getElementById(button.getAttribute("aria-controls")).hidden = !selected;
      }
    };
    for (const [index, button] of buttons.entries()) {
      button.addEventListener("click", () => choose(button));
      button.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = buttons[(index + step + buttons.length) % buttons.length];
        choose(next);
        next.focus();
      });
    }
  }
})();
