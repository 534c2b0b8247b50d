/* The report of a run: words, tables, the timeline, curves. */
const workers = (about) => (about.remote_workers ? `${about.num_workers} + ${about.on_demand ? "0-" : ""}${about.remote_workers}` : String(about.num_workers));

function showWords() {
  const main = data.loaders[data.main];
  element("verdict").textContent = main ? main.text : "No loader was iterated over.";
  element("change").textContent = (main && main.change) || "";
  const parts = [`${time(data.seconds)}`, `${data.cpu_seconds.toFixed(1)} CPU-seconds on ${data.cpus} CPUs`];
  parts.push(`memory ${data.peak_memory ? "at most " : ""}${size(data.peak_memory)}`, `engine ${data.engine}`);
  data.gpus.forEach((one) => {
    if (one.busy !== null) parts.push(`GPU ${one.number} (${one.name}) busy ${percent(one.busy)} of the time`);
  });
  if (data.interrupted) parts.push("interrupted");
  element("run").textContent = parts.join(" · ");
  const head = ["loader", "workers", "epochs", "batches", "samples/s", "waited", "first batch", "CPU-s", "memory"];
  const onGpu = data.loaders.some((one) => one.gpu_busy !== null);
  if (onGpu) head.push("GPU busy");
  fill(element("loaders"), head, data.loaders.map((one) => [
    `${one.name} ${one.settings.dataset}${one.loaders > 1 ? ` ×${one.loaders}` : ""}`,
    workers(one.settings), one.epochs.toLocaleString(), one.batches.toLocaleString(),
    Math.round(one.samples_per_second).toLocaleString(), `${(100 * one.waited_share).toFixed(1)}%`,
    time(one.first_batch), one.cpu_seconds.toFixed(1), size(one.peak_memory),
    ...(onGpu ? [one.gpu_busy === null ? "" : percent(one.gpu_busy)] : [])]));
  data.loaders.forEach((one, number) => {
    if (number === data.main) return;
    const paragraph = document.createElement("p");
    const made = one.settings.made_at && one.settings.made_at !== one.settings.site ? `, made at ${one.settings.made_at}` : "";
    paragraph.textContent = `${one.name}${made}: ${one.text} ${one.change || ""}`;
    element("verdicts").append(paragraph);
  });
  const stages = ["loader", "stage", "median", "90%", "99%", "longest", "in all"];
  fill(element("stages"), stages, data.stages.map((one) => [shortened(one.loader), one.stage, ...one.times.map(time)]));
  fill(element("longest"), ["loader", "epoch", "batch", "waited", "at"], data.longest.map((one) => [
    shortened(data.loaders[one.loader].name), String(one.epoch), String(one.batch), time(one.waited), time(one.at)]));
}

const NARROW = 4;  // pixels of a batch, below which waits are drawn as columns
const COLUMN = 2;  // pixels of such a column, which is as high as the share of its time that was waited

/* Returns the share of each column's time that was waited. */
function shares(waits, low, high, count) {
  const wide = (high - low) / count, found = new Array(count).fill(0);
  for (const [begin, end, waited] of waits) {
    const first = Math.max(0, Math.floor((begin - low) / wide)), last = Math.min(count - 1, Math.floor((end - low) / wide));
    for (let place = first; place <= last; place += 1) {
      const inside = Math.min(end, low + (place + 1) * wide) - Math.max(begin, low + place * wide);
      found[place] += end > begin ? (Math.max(0, inside) / (end - begin)) * (waited / wide) : 0;
    }
  }
  return found.map((share) => Math.min(1, share));
}

/* The timeline: spans are [asked, got, batches, waited, samples] in microseconds, by loader and epoch, in order. */
class Timeline {
  constructor(canvas) {
    this.canvas = canvas;
    this.all = [0, Math.max(1e3, data.seconds * 1e6)];
    this.view = [...this.all];
    this.only = null;
    this.pointers = new Map();
    new ResizeObserver(() => this.draw()).observe(canvas);
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && Math.abs(event.deltaX) > Math.abs(event.deltaY)) return;
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 0.8 : 1.25, this.at(event));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, event.clientX);
    });
    canvas.addEventListener("pointermove", (event) => this.moved(event));
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, (event) => this.pointers.delete(event.pointerId));
    }
    canvas.addEventListener("keydown", (event) => {
      const width = this.view[1] - this.view[0];
      const done = { "+": () => this.zoom(0.5), "-": () => this.zoom(2), ArrowLeft: () => this.move(-width / 4),
        ArrowRight: () => this.move(width / 4), Home: () => this.show(...this.all) }[event.key];
      if (!done) return;
      event.preventDefault();
      done();
    });
  }

  gpus() { return this.only === null ? data.gpu_curves.gpus : []; }

  rows() { return data.loaders.map((_, number) => number).filter((one) => this.only === null || one === this.only); }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return this.view[0] + (this.view[1] - this.view[0]) * ((event.clientX - box.left) / box.width);
  }

  show(low, high) {
    const width = Math.min(Math.max(high - low, 20), this.all[1] - this.all[0]);
    const begin = Math.min(Math.max(low, this.all[0]), this.all[1] - width);
    this.view = [begin, begin + width];
    this.draw();
  }

  zoom(factor, around = (this.view[0] + this.view[1]) / 2) {
    this.show(around - (around - this.view[0]) * factor, around + (this.view[1] - around) * factor);
  }

  move(by) { this.show(this.view[0] + by, this.view[1] + by); }

  moved(event) {
    const before = this.pointers.get(event.pointerId);
    if (before === undefined) { this.name(event); return; }
    const scale = (this.view[1] - this.view[0]) / this.canvas.clientWidth;
    if (this.pointers.size === 2) {
      const [first, second] = [...this.pointers.values()];
      const old = Math.abs(first - second);
      this.pointers.set(event.pointerId, event.clientX);
      const [one, other] = [...this.pointers.values()];
      if (old > 10) this.zoom(old / Math.max(10, Math.abs(one - other)));
      return;
    }
    this.pointers.set(event.pointerId, event.clientX);
    this.move((before - event.clientX) * scale);
  }

  /* Says what is under the pointer. */
  name(event) {
    const lanes = this.rows().length + this.gpus().length;
    const row = Math.floor(event.offsetY / (this.canvas.clientHeight / Math.max(1, lanes)));
    const loader = this.rows()[row], gpu = this.gpus()[row - this.rows().length], when = this.at(event);
    element("shown").textContent = loader !== undefined ? this.found(loader, when) : gpu ? this.busy(gpu, when) : "";
  }

  /* Says what a GPU did. */
  busy(gpu, when) {
    const { times } = data.gpu_curves, after = times.findIndex((one) => one * 1e6 >= when);
    const place = after < 0 ? times.length - 1 : after, share = gpu.busy[place];
    return share === null ? "" : `${gpu.name}: busy ${percent(share)} of the moment before ${time(times[place])}`;
  }

  /* Draws how busy a GPU was: each sample stands for the time since the one before. */
  drawGpu(gpu, x, top, tall, pen) {
    const { times } = data.gpu_curves;
    pen.fillStyle = colour("gpu");
    gpu.busy.forEach((share, place) => {
      const begin = place ? times[place - 1] : Math.max(0, times[0] - 0.25);
      const from = x(begin * 1e6), to = x(times[place] * 1e6);
      if (share) pen.fillRect(from, top + tall * (1 - share), Math.max(to - from, 0.5), tall * share);
    });
  }

  found(loader, when) {
    for (const [number, epoch] of data.spans[loader].entries()) {
      if (when < epoch.begun || when > epoch.until) continue;
      if (data.joined[loader] > 1) return this.ofJoined(loader, number, epoch);
      let batch = 0, low = epoch.begun;
      for (const [asked, got, batches, waited] of epoch.spans) {
        const what = batches > 1 ? `batches ${batch} to ${batch + batches - 1}` : batches ? `batch ${batch}` : "the end";
        if (when < asked) return `${data.loaders[loader].name}, epoch ${number}: step of ${time((asked - low) / 1e6)}`;
        if (when <= got) return `${data.loaders[loader].name}, epoch ${number}: waited ${time(waited / 1e6)} for ${what}`;
        batch += batches;
        low = got;
      }
    }
    return "";
  }

  /* Says what is known of epochs that are joined. */
  ofJoined(loader, number, epoch) {
    const first = number * data.joined[loader], last = Math.min(first + data.joined[loader], data.loaders[loader].epochs) - 1;
    const waited = epoch.spans.reduce((sum, span) => sum + span[3], 0);
    const batches = epoch.spans.reduce((sum, span) => sum + span[2], 0);
    return `${data.loaders[loader].name}, epochs ${first} to ${last}: waited ${time(waited / 1e6)} for ${batches} batches`;
  }

  draw() {
    const { canvas } = this, rows = this.rows(), ratio = window.devicePixelRatio || 1;
    const gpus = this.gpus(), lanes = rows.length + gpus.length;
    const height = Math.max(60, 40 * lanes + 24), width = canvas.clientWidth;
    canvas.style.height = `${height}px`;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const [low, high] = this.view, x = (when) => ((when - low) / (high - low)) * width;
    const lane = (height - 24) / Math.max(1, lanes);
    this.drawn = 0;
    rows.forEach((loader, row) => {
      const top = row * lane + 16, tall = lane - 22;
      const box = (from, to, fill, height = tall) => {
        pen.fillStyle = fill;
        pen.fillRect(from, top + tall - height, Math.max(to - from, 0.5), height);
        this.drawn += 1;
      };
      const epochs = data.spans[loader].filter((epoch) => epoch.until >= low && epoch.begun <= high);
      epochs.forEach((epoch) => box(x(epoch.begun), x(epoch.until), colour("step")));
      const waits = [];  // [begin, end, waited]
      for (const epoch of epochs) {
        if (epoch.ready >= low) waits.push([epoch.begun, epoch.ready, epoch.ready - epoch.begun]);
        for (const [asked, got, , waited] of epoch.spans) if (got >= low && asked <= high) waits.push([asked, got, waited]);
      }
      const inUse = epochs.reduce((sum, one) => sum + Math.min(x(one.until), width) - Math.max(x(one.begun), 0), 0);
      if (inUse >= NARROW * waits.length) {
        waits.forEach(([begin, end, waited]) => box(x(begin), x(Math.min(end, begin + waited)), colour("wait")));
      } else {
        shares(waits, low, high, Math.ceil(width / COLUMN)).forEach((share, place) => {
          if (share > 0.01) box(place * COLUMN, (place + 1) * COLUMN, colour("wait"), share * tall);
        });
      }
      pen.fillStyle = colour("text");
      pen.font = "12px system-ui, sans-serif";
      pen.fillText(shortened(data.loaders[loader].name, Math.floor(width / 8)), 4, row * lane + 12);
    });
    gpus.forEach((gpu, row) => {
      const top = (rows.length + row) * lane;
      this.drawGpu(gpu, x, top + 16, lane - 22, pen);
      pen.fillStyle = colour("text");
      pen.font = "12px system-ui, sans-serif";
      pen.fillText(shortened(gpu.name, Math.floor(width / 8)), 4, top + 12);
    });
    pen.fillStyle = colour("quiet");
    pen.font = "11px system-ui, sans-serif";
    pen.fillText(time(low / 1e6), 4, height - 6);
    const end = time(high / 1e6);
    pen.fillText(end, width - pen.measureText(end).width - 4, height - 6);
  }
}

showWords();
showFindings();
data.joined.forEach((number, loader) => {
  if (number < 2) return;
  const paragraph = document.createElement("p");
  const { name, epochs } = data.loaders[loader];
  paragraph.textContent = `${name}: ${epochs.toLocaleString()} epochs are too many to draw each, so ${number} neighbours are one here. All sums are exact.`;
  element("joined").append(paragraph);
});
const timeline = new Timeline(element("timeline"));
data.loaders.forEach((one, number) => element("filter").add(new Option(shortened(one.name), String(number))));
element("filter").addEventListener("change", (event) => {
  timeline.only = event.target.value === "" ? null : Number(event.target.value);
  timeline.draw();
});
element("zoom-in").addEventListener("click", () => timeline.zoom(0.5));
element("zoom-out").addEventListener("click", () => timeline.zoom(2));
element("zoom-all").addEventListener("click", () => timeline.show(...timeline.all));
element("zoom-longest").addEventListener("click", () => {
  const longest = data.longest[0];
  if (!longest) return;
  const at = longest.at * 1e6, wide = longest.waited * 1e6;
  timeline.show(at - wide, at + 2 * wide);
  element("shown").textContent = `waited ${time(longest.waited)} for batch ${longest.batch} of epoch ${longest.epoch}`;
});
const named = (key) => data.over_time.loaders.map((one) => ({ label: data.loaders[one.loader].name, values: one[key] }));
plot("rate", "samples/s", data.over_time.times, named("rate"), (one) => Math.round(one).toLocaleString());
plot("share", "share of time waited", data.over_time.times, named("share"), (one) => `${Math.round(100 * one)}%`);
const gpus = data.gpu_curves;
element("gpu-key").hidden = !gpus.gpus.length;
const ofGpus = (key) => gpus.gpus.map((one) => ({ label: one.name, values: one[key] }));
plot("gpu", "share of time that GPUs are busy", gpus.times, ofGpus("busy"), (one) => `${Math.round(100 * one)}%`);
plot("gpu-memory", "GPU memory in use, by all programs", gpus.times, ofGpus("memory"), (one) => (one ? size(one) : "0"), BYTES);
const processes = data.processes;
const memory = processes.memory.map((bytes) => bytes || null);
plot("memory", "memory of all processes", processes.times, [{ label: "memory", values: memory }, ...growthCurves()], (one) => (one ? size(one) : "0"), BYTES);
plot("cpu", "CPUs in use", processes.times, [{ label: "CPUs", values: processes.cpus }], (one) => one.toFixed(1));
