/* The curves and the table of a grid of settings. */
const whole = [1, 2, 4, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000];

function over(id, found, label) {
  const lines = found.lines.map((line) => ({ label: line.name, values: line.rates }));
  const x = { label, values: found.values, words: (one) => one.toLocaleString(), steps: whole };
  curves(element(id), `samples/s over ${label}`, x, lines, (one) => count(one), { height: 320, points: true });
}

element("verdict").textContent = data.verdict;
over("workers", data.over_workers, "workers");
over("sizes", data.over_sizes, "batch size");
if (!element("workers") && !element("sizes")) element("rates-title").parentElement.remove();
const tried = data.settings.filter((one) => one.failure === null);
const several = (name) => new Set(tried.map((one) => one[name])).size > 1;
const columns = [
  ["workers", (one) => String(one.num_workers)],
  ...(several("batch_size") ? [["batch size", (one) => (one.batch_size === null ? "its own" : one.batch_size.toLocaleString())]] : []),
  ["samples/s", (one) => `${count(one.samples_per_second)} ±${(100 * one.noise).toFixed(0)}%`],
  ["waited", (one) => percent(one.waited_share)], ["first batch", (one) => time(one.first_batch)],
  ["CPUs", (one) => one.cpus.toFixed(1)], ["memory", (one) => size(one.peak_memory)],
];
fill(element("settings"), columns.map(([name]) => name), tried.map((one) => columns.map(([, words]) => words(one))));
data.settings.filter((one) => one.failure !== null).forEach((one) => {
  const paragraph = document.createElement("p");
  const batch = one.batch_size === null ? "" : `, batch size ${one.batch_size}`;
  paragraph.textContent = `${one.num_workers} workers${batch}: ${one.failure}`;
  element("failures").append(paragraph);
});
