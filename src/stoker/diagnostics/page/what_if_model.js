/* A simulation of one epoch of a loader, from the figures of `report_page.py`. No page is needed: tests run it in node too.

   Workers make batches, in turn (torch) or whoever is idle (Stoker). At most workers x prefetch batches are ahead of the
   loop, which takes them in order. What runs at once shares the CPUs: a task that computes for a part of its time is slowed
   in that part where more is asked for than there is. */
const BATCHES = 400;  // that are simulated; those beyond go on at the pace of the second half

/* Returns how many times longer computing takes, because the tasks want more CPUs than there are. */
function crowding(tasks, cpus) {
  let wanted = 0;
  for (const task of tasks) wanted += task.use;
  if (wanted <= cpus) return 1;
  const given = (by) => tasks.reduce((sum, task) => sum + task.use / (1 + Math.min(1, task.use) * (by - 1)), 0);
  let low = 1, high = 2;
  while (given(high) > cpus && high < 1e6) high *= 2;
  for (let turn = 0; turn < 25; turn += 1) {
    const middle = (low + high) / 2;
    if (given(middle) > cpus) low = middle; else high = middle;
  }
  return high;
}

/* Returns the time of a batch: those that were measured are replayed in their order, again from the first one on. */
const replayed = (values, number) => values[number % values.length];

/* The setting under which the figures were measured. */
const asMeasured = (known) => ({
  workers: known.workers, prefetch: known.prefetch, batch_size: known.batch_size, work: 1, step: 1,
});

/* Simulates an epoch. `setting`: {workers, prefetch, batch_size, work, step}, the last two as factors of the times of a
   sample and of a training step. */
function simulate(known, setting) {
  const { workers } = setting, scale = setting.batch_size / known.batch_size;
  const whole = Math.max(1, known.batches / scale), count = Math.min(Math.ceil(whole), BATCHES);
  const stepUse = Math.min(known.cpus, known.step_cpu);
  let tasks = [], now = 0, used = 0, waited = 0, asked = 0, next = 0, sent = 0, isWaiting = false, ended = 0;
  const arrived = new Set(), gots = [], waits = [];
  const queues = Array.from({ length: known.in_turn ? workers : 1 }, () => []);
  const idle = new Set();
  const run = (seconds, use, then) => tasks.push({ left: Math.max(0, seconds), use, then });
  const work = (number, then) => {
    run(replayed(known.work, number) * setting.work * scale, known.work_cpu, then);
  };
  const begin = (worker) => {
    const queue = queues[known.in_turn ? worker : 0];
    if (!queue.length) { idle.add(worker); return; }
    idle.delete(worker);
    const number = queue.shift();
    work(number, () => {
      run(known.hand * scale, 0, () => {
        arrived.add(number);
        if (isWaiting && number === next) take();
      });
      begin(worker);
    });
  };
  const send = () => {
    if (sent >= count) return;
    const number = sent;
    sent += 1;
    queues[known.in_turn ? number % workers : 0].push(number);
    if (known.in_turn) { if (idle.has(number % workers)) begin(number % workers); }
    else if (idle.size) begin(idle.values().next().value);
  };
  const got = () => {
    waited += now - asked;
    gots.push(now);
    waits.push(waited);
    if (workers) send();
    run(replayed(known.step, next) * setting.step * scale, stepUse, () => {
      next += 1;
      if (next < count) ask(); else ended = now;
    });
  };
  const take = () => {
    isWaiting = false;
    arrived.delete(next);
    run(replayed(known.take, next) * scale, 0, got);  // what it computes is part of the step's share of the CPUs
  };
  const ask = () => {
    asked = now;
    if (!workers) work(next, got);
    else if (arrived.has(next)) take();
    else isWaiting = true;
  };
  const isStarted = known.workers > 0;  // else nothing is known of the start of workers
  /* torch gives workers something to do when all have been started; `start` is that of as many as were measured. */
  const startOf = (worker) => Math.max(0, known.start + known.start_each * (known.in_turn ? workers - known.workers : worker));
  if (workers) {
    for (let number = 0; number < workers * setting.prefetch; number += 1) send();
    for (let worker = 0; worker < workers; worker += 1) {
      run(isStarted ? startOf(worker) : 0, 0, () => begin(worker));
    }
    ask();
  } else {
    run(isStarted ? 0 : known.start, 0, () => { ask(); asked = 0; });
  }
  while (tasks.length) {
    const by = crowding(tasks, known.cpus);
    const pace = (task) => 1 / (1 + Math.min(1, task.use) * (by - 1));
    let least = Infinity;
    for (const task of tasks) least = Math.min(least, task.left / pace(task));
    now += least;
    const due = [];
    for (const task of tasks) {
      used += task.use * pace(task) * least;
      task.left -= pace(task) * least;
      if (task.left <= 1e-12) due.push(task);
    }
    tasks = tasks.filter((task) => task.left > 1e-12);
    due.forEach((task) => task.then());
  }
  let seconds = ended;
  if (whole > count) {  // the rest of the epoch, at the pace of the second half
    const half = Math.floor(count / 2), more = (whole - count) / (count - 1 - half);
    used *= 1 + ((gots[count - 1] - gots[half]) * more) / seconds;
    seconds += (gots[count - 1] - gots[half]) * more;
    waited += (waits[count - 1] - waits[half]) * more;
  }
  const end = workers && isStarted ? known.end : isStarted ? 0 : known.end;
  const batches = Math.max(whole, count);
  const slots = workers ? workers * setting.prefetch + 1 : 1;
  return {
    rate: (batches * setting.batch_size) / (seconds + end), share: (waited + end) / (seconds + end), first: gots[0],
    cpus: used / (seconds + end), slots, memory: known.batch_bytes === null ? null : slots * known.batch_bytes * scale,
  };
}

if (typeof module !== "undefined") module.exports = { asMeasured, simulate };
