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
    (one.machines || []).forEach((machine) => paragraph("findings", `${one.name}: ${machine}.`));
    if (one.worker_growth) paragraph("findings", `${one.worker_growth.text} See Over time.`);
  });
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

/* Curves of the workers that grow, over the times of the memory of all processes. */
function growthCurves() {
  return Object.entries(data.growth_curves).map(([loader, values]) => ({
    label: `workers of ${data.loaders[loader].name}, which grow`, values, dash: [6, 3] }));
}
