/* The report of a profile: words, tables, and bars. */
const times = (name, one, whole) => [
  name, time(one.seconds), whole ? percent(one.seconds / whole) : "", time(one.median), time(one.p95), time(one.longest)];

/* Draws parts of a whole: [[words, share, class]]. */
function bar(box, label, parts) {
  box.setAttribute("aria-label", `${label}: ${parts.map(([words, share]) => `${words} ${percent(share)}`).join(", ")}`);
  for (const [words, share, kind] of parts) {
    const part = document.createElement("span");
    part.className = kind;
    part.style.width = `${100 * share}%`;
    part.title = `${words} ${percent(share)}`;
    if (share > 0.12) part.textContent = words;
    box.append(part);
  }
}

function drop(id) { element(id).parentElement.remove(); }

function showLoop() {
  element("verdict").textContent = data.verdict.text;
  element("change").textContent = data.verdict.change || "";
  element("heading").textContent = data.heading;
  for (const sentence of data.said) {
    const paragraph = document.createElement("p");
    paragraph.textContent = sentence;
    element("said").append(paragraph);
  }
  element("first").textContent = time(data.first);
  const whole = data.wait.seconds + data.step.seconds;
  const rows = [times("waits for a batch", data.wait, whole), times("its own step", data.step, whole)];
  if (data.held) rows.push(times("step on a held batch", data.held, 0));
  fill(element("loop"), ["loop", "total", "share", "median", "95%", "longest"], rows);
  bar(element("loop-bar"), "The loop", [["waits", data.share, "wait"], ["its own step", whole ? 1 - data.share : 0, "step"]]);
  element("gain").textContent = `At most ${data.gain.toPrecision(2)} times as fast without the waits: ` +
    (data.is_measured ? `measured by ${data.held.count} steps on a held batch.` : "inferred from the waits, not measured.");
}

function showStages() {
  const made = Object.entries(data.stages).filter(([, one]) => one.count);
  const whole = made.reduce((sum, [, one]) => sum + one.seconds, 0);
  if (!made.length) { drop("stages-title"); return; }
  const named = (name) => (name === "memory" ? "wait for memory" : name);
  const where = data.num_workers ? "the workers" : "the training process";
  const cpu = data.cpu_share === null ? "" : ` ${percent(data.cpu_share)} of fetch is CPU time; the rest is waiting.`;
  element("stages-said").textContent = `Seconds of ${where}.${cpu}`;
  const rows = made.map(([name, one]) => times(named(name), one, whole));
  if (data.each.count) rows.push(times("one sample", data.each, 0));
  fill(element("stages"), ["stage", "total", "share", "median", "95%", "longest"], rows);
  bar(element("stages-bar"), "A batch", made.map(([name, one], number) => [named(name), one.seconds / whole, `curve-${number}`]));
  made.forEach(([name], number) => {
    const key = document.createElement("span");
    key.className = `key curve-${number}`;
    element("stages-key").append(key, ` ${named(name)}  `);
  });
}

function showSteps() {
  if (!data.steps.length) { drop("steps-title"); return; }
  const fetch = data.stages.fetch.seconds;
  fill(element("steps"), ["step", "calls", "total", "of fetch", "mean", "longest"], data.steps.map((one) => [
    one.name, one.calls.toLocaleString(), time(one.seconds), fetch ? percent(one.seconds / fetch) : "",
    time(one.seconds / Math.max(1, one.calls)), time(one.longest)]));
}

function showWorkers() {
  if (data.workers.length < 2) { drop("workers-title"); return; }
  for (const one of data.workers) {
    const name = document.createElement("p"), box = document.createElement("div");
    name.className = "bar-name";
    name.textContent = `worker ${one.worker}`;
    box.className = "bar";
    box.setAttribute("role", "img");
    bar(box, `Worker ${one.worker}`, [["busy", one.busy, "curve-0"], ["waits for memory", one.memory, "curve-1"], ["idle", one.idle, "none"]]);
    element("workers-bars").append(name, box);
  }
  fill(element("workers"), ["worker", "parts", "busy", "waits for memory", "idle"], data.workers.map((one) => [
    String(one.worker), one.units.toLocaleString(), percent(one.busy), percent(one.memory), percent(one.idle)]));
}

function showSlowest() {
  if (!data.slowest.length) { drop("slowest-title"); return; }
  fill(element("slowest"), ["sample", "time", "CPU", "batch", "worker"], data.slowest.map((one) => {
    const index = one.index === null ? `sample ${one.place} of batch ${one.batch}` : String(one.index);
    return [one.description === null ? index : `${index}  ${one.description}`, time(one.seconds), time(one.cpu),
      one.batch.toLocaleString(), String(one.worker)];
  }));
}

/* A flame graph: the functions of stacks as a tree, each as wide as the share of looks that found it. */
class Flame {
  constructor(box, stacks) {
    this.box = box;
    this.root = { name: "all", count: 0, below: new Map(), above: null };
    for (const [stack, count] of stacks) {
      let node = this.root;
      node.count += count;
      for (const name of stack.split(";")) {
        if (!node.below.has(name)) node.below.set(name, { name, count: 0, below: new Map(), above: node });
        node = node.below.get(name);
        node.count += count;
      }
    }
    this.show(this.root);
    element("flame-count").textContent = this.root.count.toLocaleString();
    element("flame-all").addEventListener("click", () => this.show(this.root));
    element("flame-find").addEventListener("input", () => this.mark());
  }

  show(node) {
    this.top = node;
    this.box.replaceChildren();
    this.rows = 0;
    const path = [];
    for (let one = node.above; one; one = one.above) path.unshift(one);
    path.forEach((one, row) => this.add(one, 0, 1, row));
    this.draw(node, 0, 1, path.length);
    this.box.style.height = `${22 * this.rows}px`;
    this.mark();
  }

  draw(node, left, width, row) {
    this.add(node, left, width, row);
    for (const one of [...node.below.values()].sort((first, second) => second.count - first.count)) {
      const share = width * one.count / node.count;
      if (share > 0.002) this.draw(one, left, share, row + 1);
      left += share;
    }
  }

  add(node, left, width, row) {
    const one = document.createElement("button");
    one.type = "button";
    one.textContent = width > 0.03 ? node.name : "";
    one.title = `${node.name}: ${percent(node.count / this.root.count)}`;
    one.setAttribute("aria-label", one.title);
    one.style.left = `${100 * left}%`;
    one.style.width = `${100 * width}%`;
    one.style.top = `${22 * row}px`;
    one.className = `kind-${[...node.name].reduce((sum, letter) => (31 * sum + letter.charCodeAt(0)) % 997, 7) % 4}`;
    one.node = node;
    one.addEventListener("click", () => this.show(node));
    this.rows = Math.max(this.rows, row + 1);
    this.box.append(one);
  }

  /* Marks the functions that contain the text that is looked for, and says the share of the looks that found one. */
  mark() {
    const text = element("flame-find").value.toLowerCase();
    const has = (node) => text !== "" && node.name.toLowerCase().includes(text);
    for (const one of this.box.children) one.classList.toggle("found", has(one.node));
    const share = (node) => (has(node) ? node.count : [...node.below.values()].reduce((sum, one) => sum + share(one), 0));
    element("flame-found").textContent = text ? `${percent(share(this.root) / this.root.count)} of the looks` : "";
  }
}

showLoop();
showStages();
showSteps();
showWorkers();
const flame = data.stacks.length ? new Flame(element("flame"), data.stacks) : drop("flame-title");
showSlowest();
