/* The section "What if": sliders, and beside what was measured what the simulation gives. */
class WhatIf {
  constructor() {
    this.usable = data.what_if.flatMap((known, number) => (known ? [number] : []));
    if (!this.usable.length) return;
    element("what-if").hidden = false;
    this.usable.forEach((number) => element("what-if-which").add(new Option(shortened(data.loaders[number].name), String(number))));
    element("what-if-loader").hidden = this.usable.length === 1;
    element("what-if-which").addEventListener("change", (event) => this.open(Number(event.target.value)));
    const first = this.usable.includes(data.main) ? data.main : this.usable[0];
    element("what-if-which").value = String(first);
    this.open(first);
  }

  /* Shows the loader of a number, with its sliders at what was measured. */
  open(number) {
    const known = data.what_if[number];
    if (this.chart) this.chart.remove();
    this.chart = null;
    this.known = known;
    element("what-if-figures").hidden = known.computing !== undefined;
    if (known.computing !== undefined) {
      this.say([`No simulation for this loader: making a batch computes for ${percent(known.computing)} of its time, and the program had ${known.in_use.toFixed(1)} of ${known.cpus} CPUs in use. For samples that compute, the simulated rate of other settings was wrong by 13% to 62%. Measure them: stoker tune runs the loader with several settings.`]);
      return;
    }
    this.before = simulate(known, asMeasured(known));
    this.setting = asMeasured(known);
    this.sliders = {};
    element("sliders").textContent = "";
    const most = Math.max(8, 2 * known.workers, 2 * known.cpus);
    const factors = [0.1, 0.125, 0.2, 0.25, 0.33, 0.5, 0.67, 0.75, 0.9, 1, 1.25, 1.5, 2, 3, 4];
    const size = Math.max(1, Math.round(known.batch_size));
    const sizes = [1 / 8, 1 / 4, 1 / 2, 3 / 4, 1, 1.5, 2, 3, 4, 8].map((factor) => (factor === 1 ? known.batch_size : Math.round(size * factor)));
    const range = (low, high) => Array.from({ length: high - low + 1 }, (_, place) => low + place);
    const times = (factor) => (factor === 1 ? "as measured" : factor < 1 ? `${Number((1 / factor).toFixed(1))} times as fast` : `${factor} times as long`);
    const whole = (value) => Math.round(value).toLocaleString();
    this.slider("workers", "workers", range(0, most), whole);
    this.slider("prefetch", "batches ahead of each worker (prefetch)", range(1, Math.max(8, 2 * known.prefetch)), whole);
    this.slider("batch_size", "batch size", [...new Set(sizes)].filter((one) => one > 0).sort((one, other) => one - other), whole);
    this.slider("work", "making a sample", factors, times);
    this.slider("step", "training step", factors, times);
    this.button();
    this.show();
  }

  slider(name, label, values, words) {
    const row = document.createElement("label");
    row.className = "slider";
    const input = document.createElement("input"), shown = document.createElement("output"), text = document.createElement("span");
    Object.assign(input, { type: "range", min: 0, max: values.length - 1, step: 1, name });
    text.textContent = label;
    const place = () => {
      input.value = String(values.indexOf(this.setting[name]));
      this.words(input, shown, words(this.setting[name]));
    };
    input.addEventListener("input", () => {
      this.setting[name] = values[Number(input.value)];
      this.words(input, shown, words(this.setting[name]));
      this.show();
    });
    place();
    this.sliders[name] = place;
    row.append(text, input, shown);
    element("sliders").append(row);
  }

  words(input, shown, text) {
    shown.textContent = text;
    input.setAttribute("aria-valuetext", text);
  }

  button() {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", id: "what-if-reset", textContent: "As measured" });
    button.addEventListener("click", () => {
      this.setting = asMeasured(this.known);
      Object.values(this.sliders).forEach((place) => place());
      this.show();
    });
    element("sliders").append(button);
  }

  show() {
    const { known, before, setting } = this, was = known.measured;
    const now = simulate(known, setting);
    this.now = now;
    const table = element("what-if-table");
    table.textContent = "";
    const bytes = (one) => (one.memory === null ? "unknown" : size(one.memory));
    fill(table, ["figure", "measured", "simulated", "what if", "ratio"], [
      ["samples/s", count(was.rate), count(before.rate), count(now.rate), (now.rate / before.rate).toFixed(2)],
      ["waited", percent(was.share), percent(before.share), percent(now.share), ""],
      ["first batch", time(was.first), time(before.first), time(now.first), ""],
      ["CPUs in use", was.cpus.toFixed(1), before.cpus.toFixed(1), now.cpus.toFixed(1), ""],
      ["batches in memory at most", "", String(before.slots), String(now.slots), ""],
      ["their memory", "", bytes(before), bytes(now), ""],
    ]);
    this.curve();
    this.notes();
  }

  /* Draws samples/s over workers, as measured and with the sliders' other settings. */
  curve() {
    const { known, setting } = this, most = Math.max(8, 2 * known.workers, 2 * known.cpus), step = Math.ceil(most / 16);
    const workers = Array.from({ length: most + 1 }, (_, place) => place).filter((one) => one % step === 0 || one === known.workers);
    const rates = (of) => workers.map((one) => simulate(known, { ...of, workers: one }).rate);
    if (this.chart) { this.chart.update([rates(setting), ...this.fixed]); return; }
    this.fixed = [rates(asMeasured(known)), workers.map((one) => (one === known.workers ? known.measured.rate : null))];
    const x = { label: "workers", values: workers, words: (one) => one.toLocaleString(), steps: [1, 2, 4, 8, 16, 32, 64, 128] };
    const labels = [{ label: "what if" }, { label: "other settings as measured", dash: [6, 4] }, { label: "measured" }];
    const values = [rates(setting), ...this.fixed];
    const lines = labels.map((line, place) => ({ ...line, values: values[place] }));
    this.chart = curves(element("what-if-curve"), "samples/s, simulated", x, lines, count, { height: 260, points: true });
  }

  notes() {
    const { known, setting, before } = this, off = before.rate / known.measured.rate - 1;
    const said = [
      `Simulated: samples/s, waiting, first batch, CPUs. The simulation of the measured setting is ${percent(Math.abs(off))} ${off < 0 ? "below" : "above"} the measured samples/s; expect no less error of the others.`,
      `Exact: the order and content of batches stay the same with other workers and prefetching. Batches in memory are workers × prefetch, and the one in the loop; the memory of the workers themselves comes on top.`,
      `Assumed: a batch costs time in proportion to its samples, in the workers and in the step. ${known.cpus} CPUs; other programs, disks and networks have as much to spare as in the run.`,
    ];
    if (!known.workers && setting.workers) said.push("The run had no workers, so their start and the hand-over of batches were not measured, and count as nothing: the rates are upper bounds, far above the truth for short epochs.");
    if (known.parts > 1) said.push("Workers made each batch together in the run. Here each makes whole batches and none waits for another: the first batch comes later than it would, and the rates err more than others do, to either side.");
    this.say(said);
  }

  say(said) {
    element("what-if-notes").replaceChildren(...said.map((text) => Object.assign(document.createElement("p"), { textContent: text })));
  }
}

const whatIf = new WhatIf();
