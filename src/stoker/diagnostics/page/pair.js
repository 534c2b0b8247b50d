/* Two reports side by side: for each loader its figures, the parts of its time, and its curves over one axis. */
const WORDS = { number: count, share: percent, seconds: time, bytes: size };
const files = data.reports.map((report, number) => (
  data.reports[0].file === data.reports[1].file ? `${number ? "second" : "first"}: ${report.file}` : report.file));
const names = files.map((file) => shortened(file));

function add(kind, parent, text, properties = {}) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  Object.assign(made, properties);
  parent.append(made);
  return made;
}

function showRuns() {
  element("verdict").textContent = data.conclusion;
  data.remarks.forEach((remark) => add("p", element("remarks"), remark));
  fill(element("runs"), ["report", "program", "engine", "time", "CPUs"], data.reports.map((one, number) => [
    files[number], one.program, one.engine, time(one.seconds), String(one.cpus)]));
}

/* Bars whose lengths are in proportion to the time of 1,000 samples. */
function showParts(section, loader) {
  const totals = loader.parts.map((parts) => Object.values(parts).reduce((sum, part) => sum + part, 0));
  const most = Math.max(...totals, 1e-9);
  add("h3", section, "Time of 1,000 samples");
  const kinds = { "first batches": "first", waiting: "wait", "your step": "step" };
  const key = add("p", section, "", { className: "quiet" });
  for (const [name, kind] of Object.entries(kinds)) {
    add("span", key, undefined, { className: `key ${kind}` });
    key.append(` ${name}  `);
  }
  loader.parts.forEach((parts, number) => {
    const words = Object.entries(parts).map(([name, part]) => `${name} ${percent(part / (totals[number] || 1))}`).join(", ");
    add("p", section, `${names[number]}: ${time(totals[number])} (${words})`, { className: "bar-name" });
    const bar = add("div", section, undefined, { className: "bar" });
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", words);
    for (const [name, part] of Object.entries(parts)) {
      add("span", bar, undefined, { className: kinds[name] }).style.width = `${(100 * part) / most}%`;
    }
  });
}

function showLoader(loader, number) {
  const section = add("section", element("loaders"));
  const [one, other] = loader.names;
  add("h2", section, `${one} ${loader.dataset}${one === other ? "" : `, then ${other}`}`, { id: `loader-${number}` });
  const scroll = add("div", section, undefined, { className: "scroll", tabIndex: 0 });
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-labelledby", `loader-${number}`);
  const rows = loader.figures.map((figure) => {
    const words = (value) => (value === null ? "unknown" : WORDS[figure.unit](value));
    return [figure.name, words(figure.before), words(figure.after), figure.ratio === null ? "" : figure.ratio.toFixed(2)];
  });
  rows.push(["workers", ...loader.workers.map((count) => (count === null ? "" : String(count))), ""],
    ["verdict", ...loader.verdicts.map((verdict) => verdict.kind), ""]);
  fill(add("table", scroll), ["figure", ...names, "ratio"], rows);
  loader.verdicts.forEach((verdict, place) => add("p", section, `${names[place]}: ${verdict.text} ${verdict.change || ""}`));
  showParts(section, loader);
  const x = { label: "time", values: loader.curves.times, words: (at) => `${Number(at.toFixed(2))} s` };
  const lines = (key) => loader.curves[key].map((values, place) => ({ label: names[place], values }));
  const box = (id) => add("div", section, undefined, { className: "plot", id: `${id}-${number}` });
  curves(box("rate"), "samples/s", x, lines("rate"), (value) => Math.round(value).toLocaleString());
  curves(box("share"), "share of time waited", x, lines("share"), (value) => `${Math.round(100 * value)}%`);
}

showRuns();
data.loaders.forEach(showLoader);
