/* Findings beside the speed: faults of the loaders, copies to devices, and growth of workers' memory. */
const grown = () => data.loaders.map((one, number) => [one, number]).filter(([one]) => one.worker_growth);

function paragraph(parent, text, kind = "") {
  const made = document.createElement("p");
  made.textContent = text;
  made.className = kind;
  element(parent).append(made);
}

function showFindings() {
  data.loaders.forEach((one) => {
    if (one.faults.text) paragraph("findings", `${one.name}: ${one.faults.text} (see Faults).`);
    if (one.copies) paragraph("findings", `${one.name}: ${one.copies.text}`);
    if (one.worker_growth) paragraph("findings", `${one.worker_growth.text} See Over time.`);
  });
  showMachines();
  grown().forEach(([one]) => paragraph("growth", `${one.worker_growth.text} ${one.worker_growth.remedy} The guide to memory (docs/guides/memory.md) says more.`, "change"));
  const named = [...data.loaders, { name: "the program", faults: data.faults }].flatMap((one) => (
    one.faults.named.map((fault) => ({ ...fault, loader: one.name }))));
  named.sort((one, other) => one.at - other.at);
  const all = [...data.loaders, data].reduce((sum, one) => (
    sum + Object.values(one.faults.counts).reduce((whole, number) => whole + number, 0)), 0);
  const ours = data.loaders.some((one) => one.settings.engine === "stoker");
  element("faults-section").hidden = !named.length && !ours;
  if (!named.length) {
    element("faults-none").textContent = "No worker was replaced, no sample was left out.";
    element("faults").parentElement.hidden = true;
    return;
  }
  const several = named.some((one) => one.loader !== named[0].loader);
  fill(element("faults"), ["at", ...(several ? ["loader"] : []), "what", "worker", "batch", "sample", "message"],
    named.map((one) => [time(one.at), ...(several ? [shortened(one.loader, 40)] : []), one.what,
      ...[one.worker, one.batch, one.sample].map((word) => (word === null ? "" : shortened(String(word), 60))), one.text]));
  if (all > named.length) element("faults-more").textContent = `And ${(all - named.length).toLocaleString()} more: the first 20 of each kind are listed.`;
}

/* Lists the machines that made batches of the latest epochs, this one first, then those with the most. */
function showMachines() {
  const found = data.loaders.filter((one) => one.machines), several = found.length > 1;
  element("machines-section").hidden = !found.length;
  const rows = found.flatMap((one) => {
    const { machines, batches, seconds } = one.machines, rate = (number) => (seconds > 0 ? number / seconds : 0);
    const others = Object.entries(machines).sort(([, { batches: less }], [, { batches: more }]) => more - less);
    const left = batches - others.reduce((sum, [, counts]) => sum + counts.batches, 0);
    return [["this machine", { batches: Math.max(0, left), bytes: null }], ...others].map(([name, counts]) => [
      name.length > LONG ? name.replace(/\.\S*/, "") : name, ...(several ? [shortened(one.name, LONG)] : []), counts.batches.toLocaleString(),
      percent(counts.batches / Math.max(1, batches)), count(rate(counts.batches)), counts.bytes === null ? "" : size(counts.bytes),
      counts.bytes === null ? "" : count(rate(counts.bytes) / 1e6)]);
  });
  if (!rows.length) return;
  found.forEach((one) => one.machines.notes.forEach((text) => paragraph("machines-notes", `${one.name}: ${text}.`)));
  fill(element("machines"), ["machine", ...(several ? ["loader"] : []), "batches", "share", "batches/s", "network", "MB/s"], rows);
}

/* Curves of the workers that grow, over the times of the memory of all processes. */
function growthCurves() {
  return Object.entries(data.growth_curves).map(([loader, values]) => ({
    label: `workers of ${data.loaders[loader].name}, which grow`, values, dash: [6, 3] }));
}
