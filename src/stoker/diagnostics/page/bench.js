"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const colours = ["#1d4ed8", "#c2410c", "#15803d", "#7c3aed", "#b45309", "#0e7490", "#be185d", "#4d7c0f"];

function draw(id, curves, label) {
  const box = document.getElementById(id);
  if (!curves.lines.length || curves.values.length < 2) return;
  const axis = { stroke: colour("quiet"), grid: { stroke: colour("line") }, ticks: { stroke: colour("line") } };
  const options = {
    width: box.clientWidth, height: 320, title: `samples/s over ${label}`, scales: { x: { time: false } },
    axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick : "")) }, { ...axis, size: 70 }],
    series: [{ label }, ...curves.lines.map((line, number) => ({
      label: line.name, stroke: colours[number % colours.length], width: 2, spanGaps: true, points: { show: true, size: 7 },
    }))],
  };
  const chart = new uPlot(options, [curves.values, ...curves.lines.map((line) => line.rates)], box);
  addEventListener("resize", () => chart.setSize({ width: box.clientWidth, height: 320 }));
}

draw("workers", data.over_workers, "workers");
draw("sizes", data.over_sizes, "batch size");
