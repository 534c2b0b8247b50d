/* What the pages share: the measurements, words for figures, tables, and curves by uPlot. */
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const element = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function time(seconds) {
  if (seconds >= 120) return `${(seconds / 60).toFixed(1)} min`;
  if (seconds >= 0.99995 || seconds <= 0) return `${seconds.toFixed(seconds ? 2 : 0)} s`;
  return seconds >= 1e-3 ? `${(1e3 * seconds).toFixed(1)} ms` : `${(1e6 * seconds).toFixed(0)} µs`;
}

function size(bytes) {
  if (!bytes) return "unknown";
  if (bytes < 2 ** 20) return `${(bytes / 2 ** 10).toFixed(0)} KiB`;
  return bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(1)} GiB` : `${(bytes / 2 ** 20).toFixed(0)} MiB`;
}

const LONG = 40;  // letters, from which on a cell has several lines
const shortened = (name, most = 2 * LONG) => (name.length > most ? `…${name.slice(1 - most)}` : name);

function fill(table, head, rows) {
  const line = (cells, kind, parent) => {
    const row = parent.insertRow();
    cells.forEach((cell, number) => {
      const box = document.createElement(number && kind === "td" ? "td" : "th");
      box.scope = kind === "th" ? "col" : "row";
      if (box.tagName === "TD") box.removeAttribute("scope");
      box.textContent = cell;
      if (cell.length > LONG) box.className = "long";
      row.append(box);
    });
  };
  line(head, "th", table.createTHead());
  const body = table.createTBody();
  rows.forEach((row) => line(row, "td", body));
}

const count = (number) => (number >= 100 ? Math.round(number) : Number(number.toPrecision(3))).toLocaleString();
const percent = (share) => `${(100 * share).toFixed(1)}%`;

/* Charts are drawn anew when the reader's system turns dark or light, because their colours are fixed when drawn. */
const drawn = [];
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((draw) => draw()));

/* Draws curves over one axis from 0. `x`: {label, values, words, steps}; `lines`: [{label, values, dash, colour}]; what
   is null is a gap. `steps` are the distances that marks of an axis may have. Returns functions that give the lines other
   values, and that remove the chart; null if there is nothing to draw, and the box is removed. */
function curves(box, title, x, lines, words, { height = 200, points = false, steps = undefined } = {}) {
  if (x.values.length < 2 || !lines.length) { box.remove(); return null; }
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", `Curve of ${title} over ${x.label}`);
  let chart = null, columns = [x.values, ...lines.map((line) => line.values)];
  const draw = () => {
    if (chart) chart.destroy();
    const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 } };
    chart = new uPlot({
      title, width: box.clientWidth, height, scales: { x: { time: false }, y: { range: (_, __, most) => [0, 1.04 * most || 1] } },
      axes: [{ ...axis, incrs: x.steps, values: (_, all) => all.map(x.words) },
        { ...axis, size: 76, incrs: steps, values: (_, all) => all.map(words) }],
      series: [{ label: x.label, value: (_, at) => (at === null ? "" : x.words(at)) }, ...lines.map((line, number) => ({
        label: shortened(line.label), stroke: colour(`curve-${(line.colour ?? number) % 6}`), width: 2, dash: line.dash, spanGaps: points,
        points: { show: points, size: 7 }, value: (_, at) => (at === null || at === undefined ? "" : words(at)) }))],
    }, columns, box);
  };
  draw();
  drawn.push(draw);
  const observer = new ResizeObserver(() => chart.setSize({ width: box.clientWidth, height }));
  observer.observe(box);
  return {
    update: (values) => {
      columns = [x.values, ...values];
      chart.setData(columns);
    },
    remove: () => {
      observer.disconnect();
      chart.destroy();
      drawn.splice(drawn.indexOf(draw), 1);
    },
  };
}

const BYTES = Array.from({ length: 40 }, (_, power) => 2 ** power);

/* Draws curves over seconds. */
function plot(id, title, times, series, value, steps = undefined) {
  const x = { label: "time", values: times, words: (one) => `${Number(one.toFixed(2))} s` };
  curves(element(id), title, x, series, value, { steps });
}
