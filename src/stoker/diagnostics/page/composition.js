/* The samples in the batches: the order of an epoch, classes, lengths. */
const inBatches = data.loaders.map((one, number) => ({ number, name: one.name, ...one.composition })).filter((one) => one.orders);

/* Draws one epoch: x is the position in it, y the index in the dataset. */
function drawOrder(canvas, order, points, highest) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const last = Math.max(order.samples - 1, 1), top = 18, tall = height - 2 * top, side = points.positions.length > 2000 ? 1.5 : 2.5;
  pen.fillStyle = colour("curve-0");
  points.positions.forEach((position, place) => {
    const x = (position / last) * (width - side), y = top + (1 - points.indices[place] / Math.max(highest, 1)) * (tall - side);
    pen.fillRect(x, y, side, side);
  });
  pen.fillStyle = colour("quiet");
  pen.font = "11px system-ui, sans-serif";
  pen.fillText(`index ${highest.toLocaleString()}`, 4, 12);
  pen.fillText("index 0", 4, height - 5);
  const end = `position ${last.toLocaleString()}`;
  pen.fillText(end, width - pen.measureText(end).width - 4, height - 5);
}

function showOrders(one) {
  element("order").hidden = !one.orders.length;
  const highest = Math.max(...one.orders.map((order) => Math.max(order.highest, (order.dataset || 1) - 1)));
  element("order-pictures").replaceChildren(...one.orders.map((order, place) => {
    const figure = document.createElement("figure"), canvas = document.createElement("canvas");
    const words = document.createElement("figcaption");
    words.textContent = `Epoch ${order.epoch}. ${order.text}`;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Order of epoch ${order.epoch}: ${order.text}`);
    figure.append(canvas, words);
    const draw = () => { if (canvas.isConnected) drawOrder(canvas, order, data.pictures[one.number][place], highest); };
    new ResizeObserver(draw).observe(canvas);
    drawn.push(draw);
    return figure;
  }));
  element("order-same").textContent = one.same_order === null ? "" : one.same_order
    ? "Both epochs have the same order." : "The epochs have different orders.";
}

/* Appends a cell with bars to a row: a picture of the figures beside it. */
function bars(row, shares, highest) {
  const cell = row.insertCell();
  cell.className = "shares";
  cell.setAttribute("aria-hidden", "true");
  shares.forEach(([share, kind]) => {
    const bar = document.createElement("div");
    bar.className = kind;
    bar.style.width = `${(100 * share) / (highest || 1)}%`;
    cell.append(bar);
  });
}

function showClasses({ classes }) {
  element("classes").hidden = !classes;
  if (!classes) return;
  const { batch, farthest, others } = classes, parts = [`${classes.classes.toLocaleString()} classes, by ${classes.source}.`];
  if (batch) {
    const [few, mean, many] = batch.classes, [, most] = batch.most_frequent;
    parts.push(`A batch of ${batch.size} has ${count(mean)} of them on average (${few} to ${many}); drawn at random from the dataset it would have ${count(batch.classes_at_random)}.`);
    parts.push(`The most frequent class of a batch has ${percent(most)} of it on average.`);
  }
  if (Math.abs(farthest.batches - farthest.dataset) > 0.01) {
    parts.push(`Most changed is ${farthest.name}: ${percent(farthest.dataset)} of the dataset, ${percent(farthest.batches)} of the batches.`);
  }
  if (classes.labels_counted < classes.labels) parts.push(`Of ${classes.labels.toLocaleString()} labels of the dataset ${classes.labels_counted.toLocaleString()} were counted.`);
  element("classes-text").textContent = parts.join(" ");
  const rows = [...classes.shares];
  if (others.classes) rows.push({ name: `${others.classes.toLocaleString()} other classes`, ...others });
  const table = element("classes-table"), highest = Math.max(...rows.flatMap((row) => [row.dataset, row.batches]));
  table.replaceChildren();
  fill(table, ["class", "dataset", "batches"], rows.map((row) => [row.name, percent(row.dataset), percent(row.batches)]));
  [...table.tBodies[0].rows].forEach((row, place) => {
    bars(row, [[rows[place].dataset, "of-dataset"], [rows[place].batches, "of-batches"]], highest);
  });
}

function showLengths({ padding }) {
  element("lengths").hidden = !padding;
  if (!padding) return;
  element("lengths-text").textContent = `Lengths of ${padding.samples.toLocaleString()} samples in ${padding.batches.toLocaleString()} batches, by ${padding.source}: `
    + `${count(padding.shortest)} to ${count(padding.longest)}, median ${count(padding.median)}.`;
  const rows = [["these batches, each padded to its longest sample", padding.padding],
    ["the same samples in random order, in batches of the same sizes", padding.padding_at_random]];
  if (padding.padding_measured !== null) rows.push(["these batches as the loop got them", padding.padding_measured]);
  const table = element("padding-table"), { edges, counts } = padding.histogram;
  table.replaceChildren();
  fill(table, ["batches", "padding"], rows.map(([name, share]) => [name, percent(share)]));
  [...table.tBodies[0].rows].forEach((row, place) => bars(row, [[rows[place][1], "of-batches"]], 1));
  const highest = Math.max(...counts), box = element("histogram");
  box.replaceChildren(...counts.map((number, place) => {
    const bar = document.createElement("span");
    bar.style.height = `${(100 * number) / highest}%`;
    bar.title = `${count(edges[place])} to ${count(edges[place + 1])}: ${number.toLocaleString()} samples`;
    return bar;
  }));
  const most = counts.indexOf(highest);
  box.setAttribute("aria-label", `Samples by length, from ${count(padding.shortest)} to ${count(padding.longest)}; most, ${highest.toLocaleString()}, from ${count(edges[most])} to ${count(edges[most + 1])}`);
  element("shortest").textContent = count(padding.shortest);
  element("longest-length").textContent = count(padding.longest);
}

function showComposition(one) {
  showOrders(one);
  showClasses(one);
  showLengths(one);
}

if (inBatches.length) {
  element("composition").hidden = false;
  element("composition-loader").hidden = inBatches.length < 2;
  inBatches.forEach((one, place) => element("composition-which").add(new Option(shortened(one.name), String(place))));
  element("composition-which").addEventListener("change", (event) => showComposition(inBatches[Number(event.target.value)]));
  const main = Math.max(0, inBatches.findIndex((one) => one.number === data.main));
  element("composition-which").value = String(main);
  showComposition(inBatches[main]);
}
